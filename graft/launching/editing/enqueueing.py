"""Trials by hand: configurations that a person adds to those of a study's sampler."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from graft.plugins.families import families
from graft.plugins.stored import read_outside
from search.samplers import Strategy
from search.steering.strategies import resume
from spaces import parse_stored
from spaces.errors import SpaceError, StudyError
from spaces.grammar.nodes import compose, read, to_plain
from spaces.inversion import find_trial
from spaces.plugins.active import using
from spaces.records import TERMINAL, Outcome, Trial
from spaces.space import DrawnSpace
from storage import open_reader, open_store
from storage.frames import Reader

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw
    from spaces.space import Space

MOST = 100_000
"""Trials of one call."""


def enqueue(url: str, study: str, settings: Sequence[Mapping[str, Any]]) -> list[int]:
    """Add a trial for each of the settings to a study that does not run; return their numbers.

    A setting gives values by path (`spaces.inversion.find_trial`), and the study's sampler draws
    the others. The trials are trained when the study is resumed, and their results teach the
    sampler. Raises StudyError or SpaceError, one line, before anything is written.
    """
    if not 0 < len(settings) <= MOST:
        raise StudyError(f"{len(settings):,} trials by hand; there must be 1 to {MOST:,}")
    with open_store(url) as store, open_reader(url) as reader:
        row = reader.study(study).row
        with using(read_outside(reader, study)):
            space = parse_stored(row, families())
            if not isinstance(space, DrawnSpace):
                raise StudyError(
                    f"study {study!r} is a transfer or an experiment, whose trials all have a part in it; "
                    "trials by hand are for a study of one space"
                )
            trials = list(_make_trials(reader, study, space, row["trials"], settings))
        store.edit(row["id"]).enqueue(trials)
    return [trial.number for trial in trials]


def read_settings(file: Path) -> list[dict[str, Any]]:
    """Read settings from a csv: paths in the first line, then a trial a line, with empty cells."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            table = csv.DictReader(lines, strict=True)
            settings: list[dict[str, Any]] = []
            for row in table:
                if None in row:
                    raise StudyError(f"{file}:{table.line_num}: the line has more cells than the first one has paths")
                cells = {path: cell for path, cell in row.items() if path and cell and cell.strip()}
                settings.append({path.strip(): parse_value(cell) for path, cell in cells.items()})
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StudyError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not settings:
        raise StudyError(f"{file} has no trials: its first line names paths, and each other line is a trial")
    return settings


def parse_value(text: str) -> Any:
    """Return a value as a space has it, but a number in quotes as a number."""
    try:
        value = to_plain(read(compose(text, "a value")))
    except SpaceError:
        raise SpaceError(f"{text!r} is no value: write a number, a word, or a plug-in as a space has it") from None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _make_trials(
    reader: Reader, study: str, space: DrawnSpace, planned: int, settings: Sequence[Mapping[str, Any]]
) -> Iterator[Trial]:
    strategy = resume(space, *_read_outcomes(reader, study))
    shared = {draw.name for draw in space.group_draws} if space.search.group > 1 else set[str]()
    for number, wanted in enumerate(settings, planned):
        if group_values := sorted(shared & wanted.keys()):
            group = number // space.search.group
            raise SpaceError(
                f"{group_values[0]}: the trials of group {group} share it; by hand, only what each trial draws for "
                "itself can be set"
            )
        yield find_trial(space, number, _Coordinates(space, strategy, number), wanted)


def _read_outcomes(reader: Reader, study: str) -> tuple[list[Outcome], list[Outcome]]:
    """Return the trials that ended, in that order, and those that did not, by number."""
    columns = ("number", "group_number", "state", "draws", "objective", "second_objective", "constraints")
    stored = reader.study(study).trials(columns=(*columns, "finished_at"))
    ended: list[Outcome] = []
    opened: list[Outcome] = []
    for row in stored.sort("finished_at", "number", nulls_last=True).iter_rows(named=True):
        has_ended = row["state"] in TERMINAL
        outcome = Outcome(
            number=row["number"],
            group=row["group_number"],
            draws=json.loads(row["draws"]),
            objective=row["objective"] if has_ended else None,
            state=row["state"] if has_ended else "queued",
            second_objective=row["second_objective"] if has_ended else None,
            constraints=json.loads(row["constraints"]) if row["constraints"] else None,
        )
        (ended if has_ended else opened).append(outcome)
    return ended, opened


class _Coordinates:
    """The coordinates that the sampler draws for a number, and random ones for its other draws."""

    def __init__(self, space: Space, strategy: Strategy, number: int) -> None:
        asked = strategy.ask(range(number, number + 1))  # none beyond the end of a grid
        self._draws = asked[0].draws if asked else {}
        self._seed = space.search.seed
        self._indices = {"group": number // space.search.group, "trial": number}

    def __call__(self, draw: Draw) -> float:
        if draw.name in self._draws:
            return self._draws[draw.name]
        return Random(f"{self._seed}/{draw.scope}/{self._indices[draw.scope]}/{draw.name}").random()
