"""How near the studies of a service come to their weights: three people, six studies, two workers.

    python -m benchmarks.shares [--seconds 300] [--structures]

A service runs six studies of one shape that are not over when the time is; counted from when all of them train are the
optimizer steps of their trials, and the time of the workers' devices, that of a pack of several studies by their lanes.
Prints each study's part of both beside its weight's, and the largest departures. All trials have one structure, so that
the studies share packs and a step of one costs what a step of another does; `--structures`: whether there is dropout is
drawn, too, which makes four structures, and steps are comparable no more.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from graft.launching.checkpoints import Checkpoints
from graft.launching.placement import Placement
from graft.launching.planning.reading import read_space
from graft.serving.service import Service
from graft.serving.submitting import submit
from storage import Terms, open_reader
from workers.pool.shared_packs import StudyLanes

SPACE = "quick/set_complement"
STEPS = 400
"""Of a trial: it ends within seconds, so that lanes come free often."""
PLACE = Placement(executor="inline", device="cpu", workers=2, width=16)
SIZES = {
    "search.trials": "1000000",
    "training.steps": str(STEPS),
    "training.validate_every": str(STEPS // 4),
    "training.validation_batch": "128",
    "model.key_width": "16",
    "model.value_width": "16",
}
ONE_STRUCTURE = {"model.embedding_dropout": "0.1", "model.residual_dropout": "0.1"}
"""Dropout as in all trials; drawn, each rate is 0 in half of them, which makes four structures of unlike speed."""
STUDIES: Mapping[str, tuple[str, float]] = {
    "a": ("ann", 1.0),
    "b": ("ann", 2.0),
    "c": ("bo", 1.0),
    "d": ("bo", 3.0),
    "e": ("cy", 1.0),
    "f": ("cy", 2.0),
}
"""Name -> owner and weight."""


class Look(NamedTuple):
    """What was trained up to a moment, by study."""

    steps: Mapping[str, int]
    """Of trials that were reported."""
    seconds: Mapping[str, float]
    """Of the workers' devices."""


class Row(NamedTuple):
    """What became of a study between two looks."""

    study: str
    due: float
    """The weight's part of all weights."""
    steps: float
    """Its part of all steps."""
    seconds: float
    """Its part of all seconds."""

    def departures(self) -> tuple[float, float]:
        """Of both parts from what it is due, as parts of that."""
        return self.steps / self.due - 1, self.seconds / self.due - 1


def count_seconds(numbers: Mapping[int, str]) -> Counter[str]:
    """Seconds of the workers' devices, by study, from now on; `numbers`: the studies' ids and names."""
    spent, turn, train = Counter[str](), threading.Lock(), StudyLanes.train

    def train_and_count(lanes: StudyLanes, most: int) -> None:
        users, begin = lanes.users(), time.monotonic()
        train(lanes, most)
        seconds = time.monotonic() - begin
        with turn:
            for study, count in users.items():
                spent[numbers[study]] += seconds * count / sum(users.values())

    StudyLanes.train = train_and_count
    return spent


def measure(url: str, seconds: float, overrides: Mapping[str, str]) -> tuple[Look, Look]:
    """Submit the studies and serve them: what was trained when all of them did, and so many seconds later."""
    for study, (owner, weight) in STUDIES.items():
        space = read_space(SPACE, {**SIZES, **overrides, "search.seed": str(ord(study))})
        submit(url, space, study=study, terms=Terms(owner=owner, weight=weight))
    with open_reader(url) as reader:
        spent = count_seconds(dict(reader.query("SELECT id, name FROM studies").iter_rows()))
    looks: list[Look] = []
    begin = 0.0

    def is_over() -> bool:
        nonlocal begin
        if looks and time.monotonic() < begin + seconds:
            return False
        with open_reader(url) as reader:
            steps = dict(reader.query("SELECT name, steps FROM studies").iter_rows())
        if all(steps.values()):
            begin = time.monotonic()
            looks.append(Look(steps, dict(spent)))
        return len(looks) == 2

    with Service(url, placement=PLACE, checkpoints=Checkpoints(url="none", seconds=60)) as service:
        service.run(is_over)
    return looks[0], looks[1]


def compare(before: Look, after: Look) -> list[Row]:
    """Return a row for each study, by what it trained between two looks."""
    weights = sum(weight for _, weight in STUDIES.values())

    def parts(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
        done = {study: after[study] - before[study] for study in STUDIES}
        return {study: amount / sum(done.values()) for study, amount in done.items()}

    steps, seconds = (parts(*pair) for pair in zip(before, after, strict=True))
    return [Row(study, weight / weights, steps[study], seconds[study]) for study, (_, weight) in STUDIES.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--structures", action="store_true", help="four structures in place of one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'graft.db')}"
        before, after = measure(url, options.seconds, {} if options.structures else ONE_STRUCTURE)
    rows = compare(before, after)
    print("study  owner  weight    due    steps  departure  seconds  departure")
    for row in rows:
        owner, weight = STUDIES[row.study]
        of_steps, of_seconds = row.departures()
        print(
            f"{row.study:<6} {owner:<6} {weight:>6g} {row.due:>6.1%} {row.steps:>8.1%} {of_steps:>+10.1%} "
            f"{row.seconds:>8.1%} {of_seconds:>+10.1%}"
        )
    total = sum(after.steps.values()) - sum(before.steps.values())
    of_steps, of_seconds = (max(column, key=abs) for column in zip(*(row.departures() for row in rows), strict=True))
    print(
        f"{options.seconds:g} s, {total:,} lane-steps, {total / options.seconds:,.0f} /s; "
        f"largest departures: steps {of_steps:+.1%}, seconds {of_seconds:+.1%}"
    )


if __name__ == "__main__":
    main()
