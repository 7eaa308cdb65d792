"""How much memory the commands take that read a whole large study.

    python -m benchmarks.memory [--trials 200000] [--history thin] [--storage FILE.db]

The study is that of `benchmarks.scale`: paper 003's space with simulated workers, 3 validations of 7 metrics a trial.
Peak resident memory is that of each command's own process, as the system counts it; what it writes goes to a file or
nowhere. A database that is named by --storage is kept, and used as it is if it holds such a study.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path

from benchmarks.scale import STUDY, alone, study_of
from graft.launching.enrolling import enrol

WORKERS, LANES = 64, 32
LIMIT = 400
"""MiB that each command may take."""


def commands(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return what is run, by what it is called."""
    return {
        "trials --format csv": ["trials", STUDY, "--format", "csv"],
        "trials --format json": ["trials", STUDY, "--format", "json"],
        "trials --format parquet": ["trials", STUDY, "--format", "parquet"],
        "trials": ["trials", STUDY],
        "export csv": ["export", STUDY, "-o", f"{folder}/trials.csv"],
        "export json": ["export", STUDY, "-o", f"{folder}/trials.json"],
        "export parquet": ["export", STUDY, "-o", f"{folder}/trials.parquet"],
        "report study html": ["report", "study", STUDY, "-o", f"{folder}/report.html"],
        "report study md": ["report", "study", STUDY, "-o", f"{folder}/report.md"],
    }


def measure(arguments: Sequence[str], url: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak MiB of one command, in a process whose only child it is."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (arguments, url))


def _measure(arguments: Sequence[str], url: str) -> tuple[float, float, float]:
    command = [sys.executable, "-c", "from cli.main import main; main()", *arguments, "--storage", url]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200_000)
    parser.add_argument("--history", choices=("full", "thin", "last"), default="thin")
    parser.add_argument("--storage", type=Path, help="a SQLite file, which is kept")
    parser.add_argument("--only", help="commands whose name has this text")
    options = parser.parse_args()
    keep = nullcontext(str(options.storage.parent)) if options.storage else tempfile.TemporaryDirectory()
    with keep as folder, tempfile.TemporaryDirectory() as out:
        file = options.storage or Path(folder) / "graft.db"
        url = f"sqlite:///{file}"
        if not file.exists():
            enrol(url, STUDY, study_of(options.trials, options.history))
            alone(url, WORKERS, LANES, options.trials)
        print(f"{options.trials:,} trials, {file.stat().st_size / 1e6:,.0f} MB on the disk", flush=True)
        costs: dict[str, tuple[float, float, float]] = {}
        for name, arguments in commands(Path(out)).items():
            if not options.only or options.only in name:
                costs[name] = seconds, cpu, peak = measure(arguments, url)
                note = "" if peak <= LIMIT else f", above {LIMIT}"
                print(
                    f"{name:<24} {seconds:6.1f} s ({cpu:6.1f} of processor), at most {peak:5,.0f} MiB{note}", flush=True
                )
        print(json.dumps(costs))


if __name__ == "__main__":
    main()
