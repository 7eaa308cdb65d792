"""A small process beside a launch that says in a line that the launch was killed, which cannot say so itself.

It is run by its path and imports next to nothing, so that it takes few megabytes and lives when memory runs out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self, final

LOG_VARIABLE = "SEARCH_LOG_FORMAT"
"""The environment variable that says in which format a launch says what it says: `text` or `json`."""
_KILLED = "error: this launch was killed, or crashed"
_SHORT = "error: the kernel killed this launch, as it seems because memory ran out: give it more, or less by --pack"
_KEPT = "; what was recorded is kept, and the study can be resumed"


@final
class Watcher:
    """Watches this process until it is closed. A context manager; where it cannot be started nobody watches."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with suppress(OSError):
            # The write end of the pipe is this process's alone: the kernel closes it however the process ends.
            self._process = subprocess.Popen([sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watch, as a launch does at its end."""
        if self._process and self._process.stdin:
            with suppress(OSError):
                os.write(self._process.stdin.fileno(), b".")
            self._process.stdin.close()
            self._process.wait()
            self._process = None


def _out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory so far, on the machine or in one cgroup."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _watch() -> None:
    # Ctrl-C in a terminal, and a terminal that closes, reach all processes in it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    before = _out_of_memory_kills()
    if not os.read(0, 1):
        line = (_SHORT if _out_of_memory_kills() > before else _KILLED) + _KEPT
        if os.environ.get(LOG_VARIABLE) == "json":  # as the launch said its other lines
            import json
            import time

            now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
            line = json.dumps({"time": now, "level": "error", "message": line.removeprefix("error: ")})
        with suppress(OSError):
            os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    _watch()
