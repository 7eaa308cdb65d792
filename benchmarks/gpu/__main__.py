"""A GPU's first day in four commands, each under ten minutes.

    python -m benchmarks.gpu checks    what is right: kernels, packs, trials as on a CPU
    python -m benchmarks.gpu rates     how fast: fused and traced steps, plain PyTorch, torch.compile, JAX
    python -m benchmarks.gpu tests     `pytest -m gpu`
    python -m benchmarks.gpu launch    a search, its replay and `search doctor`, by the program
    python -m benchmarks.gpu report [FILE]    the page of BENCHMARKS.md that the rows so far make, in Markdown

Each row is printed and written to the file as soon as it is known; a command that is repeated goes on where it ended,
and tries again what failed. `checks` and `rates` need torch, numpy and PyYAML alone, and run on a CPU, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MINUTES = 9.0


def main() -> int:
    """Run one of the commands; exit status 1 if a row failed or was not begun."""
    given = arguments()
    sys.path.insert(0, str(ROOT))
    if given.command == "report":
        from benchmarks.gpu.report import page

        print(page(given.file or given.out))
        return 0
    from benchmarks.gpu.results import Results

    start = time.monotonic()
    results = Results(given.out, given.command, about(given.device), 60 * given.minutes, since=given.since)
    for name, act in rows_of(given.command, given.device):
        if not results.add(name, act) and is_lost(given.device):
            print("the GPU's context is lost: another process goes on", flush=True)
            left = f"{given.minutes - (time.monotonic() - start) / 60:.2f}"
            words = [*sys.argv[1:], "--minutes", left, "--since", str(results.since)]
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.gpu", *words])
    if results.left:
        print(f"{results.left} more for want of time: the same command goes on with them")
    return int(bool(results.failed or results.left))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("checks", "rates", "tests", "launch", "report"))
    parser.add_argument("file", type=Path, nargs="?", help="of `report`: the rows; default: those of --out")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("gpu.jsonl"), help="where the rows go")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no row is begun after so many")
    parser.add_argument("--since", type=int, help="how many rows of --out are older than this run; default: all")
    return parser.parse_args()


def is_lost(device: str) -> bool:
    """Return whether a kernel has broken this process's context, in which every later call fails, too."""
    import torch

    try:
        torch.zeros(1, device=device).add(1).cpu()
    except torch.OutOfMemoryError:
        return False
    except RuntimeError:
        return True
    return False


def about(device: str) -> Mapping[str, str]:
    """Return what a row depends on beside its name: another GPU, or another torch, is measured again."""
    import torch

    from benchmarks.machine import processor

    where = processor() if device == "cpu" else torch.cuda.get_device_name(device)
    return {"device": where, "torch": torch.__version__}


def rows_of(command: str, device: str) -> Iterator[tuple[str, Any]]:
    """Yield the name of each row of a command, and what measures it."""
    if command in ("checks", "rates"):
        from workers.engine.machine.process import prepare

        prepare()
    if command == "checks":
        from benchmarks.gpu.checks import checks

        yield from checks(device)
    elif command == "rates":
        from benchmarks.gpu.rates import measurements

        yield from measurements(device)
    elif command == "tests":
        yield "pytest -m gpu", lambda: run(ROOT, "pytest", "-m", "gpu", "-q", "-p", "no:benchmark", "tests")
    else:
        yield from launch(device)


def launch(device: str) -> Iterator[tuple[str, Any]]:
    """Yield a search on the device, a replay of one of its trials, and what `doctor` says, all in an empty folder."""
    folder = Path(tempfile.mkdtemp(prefix="graft-gpu-"))
    for command in (
        f"launch quick/set_complement --device {device}",
        f"replay quick-set-complement 4 --device {device}",
        f"launch quick/add_mod --device {device} --trials 64",
        "launch language/web --dry-run --device h100",
        "doctor",
    ):
        yield f"search {command}", lambda words=command.split(): run(folder, "graft", *words)


def run(folder: Path, module: str, *words: str) -> dict[str, Any]:
    """Run a module of Python's and return the last line that it printed; RuntimeError if it failed."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    cwd = ROOT if module == "pytest" else folder
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines() or [""]
    if done.returncode:
        failed = [line.partition(" ")[2] for line in lines if line.startswith(("FAILED ", "ERROR "))]
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise RuntimeError(
            f"status {done.returncode}: {'; '.join(failed) or (done.stderr.strip().splitlines() or lines)[-1]}"
        )
    return {"said": lines[-1]}


if __name__ == "__main__":
    sys.exit(main())
