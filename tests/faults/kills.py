"""Kills launches again and again, and looks whether the study goes forward and ends as if nothing had happened.

    python -m tests.faults.kills [--kills 200] [--database sqlite|postgresql|both] [--seed N]

Each launch is killed by SIGKILL, at a random moment from 1 to 15 seconds after it has claimed the study. When a study
is finished all the same, the next one is launched. At each ten kills more steps must be safe in results and checkpoints
than at the ten before; in the end each study's metrics must be those of an undisturbed run, and no trial may have
failed. Exit status 0: so it was, for each database; 1: it was not.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from graft.launching.planning.reading import read_space
from spaces.errors import GraftError
from storage import open_reader
from tests.support.databases import DATABASES, place_for_server, raw, running_server
from tests.support.launch_faults import open_nursery
from tests.support.launches import SPACE, Metrics, search
from workers.engine.speed.timing import model_steps_per_second

FIRST, LAST = 1.0, 15.0
"""Seconds from the claim to the kill."""
TRIALS, WORKERS, REPORTS = 8, 2, 10
SECONDS = 60.0
"""So long a study takes about, if nobody disturbs it."""
PROGRESS = """
SELECT coalesce(sum(CASE WHEN state IN ('finished', 'pruned', 'diverged', 'failed') THEN steps
    ELSE coalesce((SELECT max(step) FROM checkpoints WHERE trial_id = trials.id), 0) END), 0) FROM trials
"""
PASSED, BROKEN = 0, 1


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of studies whose launches were killed."""

    database: str
    kills: int
    tens: tuple[int, ...]
    """Steps that were safe after each ten kills."""
    states: Mapping[str, int]
    """Trials by state."""
    studies: int
    same: int
    """Studies whose metrics are those of an undisturbed run."""

    @property
    def forward(self) -> int:
        """Tens of kills in which the study went forward."""
        return sum(later > earlier for earlier, later in itertools.pairwise((0, *self.tens)))

    @property
    def passed(self) -> bool:
        """Whether all was as it should be."""
        return self.forward == len(self.tens) and self.same == self.studies and [*self.states] == ["finished"]

    def __str__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        return (
            f"kills {self.database}: {self.kills} launches killed {FIRST:g} to {LAST:g} s after the claim, forward in "
            f"{self.forward} of {len(self.tens)} tens, trials {states}, {self.same} of {self.studies} studies with the "
            f"metrics of an undisturbed run: {'PASS' if self.passed else 'FAIL'}"
        )


def sized() -> tuple[str, ...]:
    """Return a launch that takes about `SECONDS`."""
    trial = read_space(SPACE, {}).sample(0, lambda draw: 0.5)
    rate = WORKERS * model_steps_per_second(trial, width=TRIALS // WORKERS, device="cpu")
    steps = max(1, round(rate * SECONDS / TRIALS / REPORTS)) * REPORTS
    sizes = ("--trials", str(TRIALS), "--steps", str(steps), "--set", f"training.validate_every={steps // REPORTS}")
    return ("launch", SPACE, *sizes, "--workers", str(WORKERS), "--pack", str(TRIALS // WORKERS))


def killed_after_claim(url: str, claims: int, seconds: float) -> Callable[[], bool]:
    """Whether it is so long since the study was claimed more often than `claims` times."""
    since: list[float] = []

    def reached() -> bool:
        if not since and claims_of(url) > claims:
            since.append(time.monotonic())
        return bool(since) and time.monotonic() >= since[0] + seconds

    return reached


def claims_of(url: str) -> int:
    """How often the study was claimed; 0 while there is none."""
    with suppress(GraftError), open_reader(url) as reader:
        return int(reader.studies()["fence"].sum())
    return 0


def torment(database: str, url: str, launch: tuple[str, ...], kills: int, chance: random.Random) -> Result:
    """Kill so many launches, let the last study end, and compare."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--storage", url, "--checkpoints", f"{folder}/checkpoints")
        tens, done, studies = list[int](), 0, 1
        with open_nursery() as nursery:
            while done < kills:
                moment = killed_after_claim(url, claims_of(url), chance.uniform(FIRST, LAST))
                if not nursery.killed(moment, *launch, "--study", f"study-{studies}", *options):
                    studies += 1
                    continue
                done += 1
                if done % 10 == 0:
                    tens.append(raw(url, PROGRESS)[0][0])
                    print(f"{database}: {done} kills, {tens[-1]:,} steps are safe", file=sys.stderr, flush=True)
        search(Path(folder), *launch, "--study", f"study-{studies}", *options, seconds=3600)
    states = raw(url, "SELECT state, count(*) FROM trials GROUP BY state ORDER BY state")
    expected = undisturbed(launch)
    measured = [metrics_of(url, f"study-{number + 1}") for number in range(studies)]
    same = sum(is_same(metrics, expected) for metrics in measured)
    return Result(database=database, kills=done, tens=tuple(tens), states=dict(states), studies=studies, same=same)


def undisturbed(launch: tuple[str, ...]) -> Metrics:
    """Return the metrics of the same launch in peace."""
    with tempfile.TemporaryDirectory() as folder:
        search(Path(folder), *launch, "--study", "peace", seconds=3600)
        return metrics_of(f"sqlite:///{folder}/graft.db", "peace")


def metrics_of(url: str, study: str) -> Metrics:
    """Return the metrics of one study, by (number, step, name, variant)."""
    with open_reader(url) as reader:
        rows = reader.study(study).metrics().select("number", "step", "name", "variant", "value").iter_rows()
        return {row[:4]: row[4] for row in rows}


def is_same(metrics: Metrics, other: Metrics) -> bool:
    """Return the same keys, and the same numbers to the last digits that another pack's sums may change."""
    return metrics.keys() == other.keys() and metrics == pytest.approx(other, rel=1e-9, abs=1e-9)


@contextmanager
def database_of(kind: str) -> Generator[str]:
    """Yield the URL of a new database."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/graft.db"
        return
    with running_server(place_for_server()) as server, server.database() as url:
        yield url


def main() -> None:
    """Say of each database what became of the study in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--database", choices=(*DATABASES, "both"), default="both")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    chance = random.Random(options.seed)
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    launch, passed = sized(), list[bool]()
    for database in DATABASES if options.database == "both" else (options.database,):
        with database_of(database) as url:
            result = torment(database, url, launch, options.kills, chance)
        print(result, flush=True)
        passed.append(result.passed)
    sys.exit(PASSED if all(passed) else BROKEN)


if __name__ == "__main__":
    main()
