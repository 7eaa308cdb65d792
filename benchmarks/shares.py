"""How near the studies of a service come to their weights: three people, six studies, two workers.

    python -m benchmarks.shares [--seconds 300]

A service runs six studies of one shape that are not over when the time is; counted are the optimizer steps of their
trials, from when all of them train. Prints each study's part of them beside its weight's, and the largest departure.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from graft.launching.run import read_space
from graft.serving.submitting import submit
from storage import Terms, open_reader

SPACE = "quick/set_complement"
STEPS = 400
"""Of a trial: it ends within seconds, so that lanes come free often."""
PLACE = ("--workers", "2", "--pack", "16", "--device", "cpu")
SIZES = {
    "search.trials": "1000000",
    "training.steps": str(STEPS),
    "training.validate_every": str(STEPS // 4),
    "training.validation_batch": "128",
    "model.key_width": "16",
    "model.value_width": "16",
}
STUDIES: Mapping[str, tuple[str, float]] = {
    "a": ("ann", 1.0),
    "b": ("ann", 2.0),
    "c": ("bo", 1.0),
    "d": ("bo", 3.0),
    "e": ("cy", 1.0),
    "f": ("cy", 2.0),
}
"""Name -> owner and weight."""


class Row(NamedTuple):
    """What became of a study."""

    study: str
    steps: int
    due: float
    """The weight's part of all weights."""
    part: float
    """Of all steps."""

    @property
    def departure(self) -> float:
        """Of its part from what it is due, as a part of that."""
        return self.part / self.due - 1


def read_steps(url: str) -> dict[str, int]:
    """Study -> optimizer steps of its trials that were reported."""
    with open_reader(url) as reader:
        return dict(reader.query("SELECT name, steps FROM studies").iter_rows())


def compare(before: Mapping[str, int], after: Mapping[str, int]) -> list[Row]:
    """A row for each study, by what it trained between two looks."""
    done = {study: after[study] - before[study] for study in STUDIES}
    weights = sum(weight for _, weight in STUDIES.values())
    return [Row(study, steps, STUDIES[study][1] / weights, steps / sum(done.values())) for study, steps in done.items()]


def measure(url: str, folder: str, seconds: float) -> list[Row]:
    """Submit the studies, serve them for so long after all of them train, and compare."""
    for study, (owner, weight) in STUDIES.items():
        space = read_space(SPACE, {**SIZES, "search.seed": str(ord(study))})
        submit(url, space, study=study, terms=Terms(owner=owner, weight=weight))
    command = [sys.executable, "-m", "graft", "serve", *PLACE, "--checkpoints", "none", "--storage", url]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL) as service:
        try:
            before = read_steps(url)
            while not all(before.values()):
                if service.poll() is not None:
                    raise SystemExit(f"the service ended with status {service.returncode}")
                time.sleep(1)
                before = read_steps(url)
            time.sleep(seconds)
            return compare(before, read_steps(url))
        finally:
            service.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    seconds: float = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(f"sqlite:///{Path(folder, 'graft.db')}", folder, seconds)
    print("study  owner  weight    due  trained  lane-steps  departure")
    for row in rows:
        owner, weight = STUDIES[row.study]
        print(
            f"{row.study:<6} {owner:<6} {weight:>6g} {row.due:>6.1%} {row.part:>8.1%} {row.steps:>11,} "
            f"{row.departure:>+10.1%}"
        )
    total = sum(row.steps for row in rows)
    largest = max(rows, key=lambda row: abs(row.departure))
    print(
        f"{seconds:g} s, {total:,} lane-steps, {total / seconds:,.0f} /s; "
        f"largest departure {largest.departure:+.1%} (study {largest.study})"
    )


if __name__ == "__main__":
    main()
