"""A Ray cluster of several nodes on this machine, told of nodes that come and go; and the processes of one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.launches import ROOT


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """A cluster in a process of its own, which is told of nodes that come and go."""

    process: subprocess.Popen[str]

    def add(self, *, cpus: int, gpus: int = 0) -> str:
        """One more node, the first the head; the cluster's address."""
        return self._told(f"add {cpus} {gpus}")[0]

    def kill(self, node: int) -> None:
        """All processes of a node, as when its machine is taken away."""
        self._told(f"kill {node}")

    def hold(self) -> None:
        """Take a core for somebody else's work."""
        self._told("hold")

    def cover(self, file: Path, other: Path) -> None:
        """Let nodes that are added from here on find the content of another file in `file`."""
        self._told(f"cover {file} {other}")

    def logs(self, pattern: str) -> str:
        """All that the cluster's processes have written about themselves."""
        folder = self._told("where")[1]
        return "".join(file.read_text(errors="replace") for file in Path(folder).glob(pattern))

    def _told(self, command: str) -> list[str]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()


@contextmanager
def open_nodes() -> Generator[Nodes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_nodes"],
        cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield Nodes(process=process)
    finally:
        with suppress(BrokenPipeError):
            process.communicate(timeout=60)


def descendants(root: int, title: str) -> list[int]:
    """Return processes below `root` whose command line starts with `title`."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue

    def below(process: int) -> bool:
        return process == root or (process in parents and below(parents[process]))

    return sorted(pid for pid in parents if below(pid) and _command(pid).startswith(title))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
