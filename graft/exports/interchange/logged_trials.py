"""Chosen trials of a study, as loggers of experiments have their runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import nan

from graft.stored.params import StoredParams
from graft.stored.trials import read_metrics
from spaces.errors import StudyError
from spaces.records import Params, Scalar
from spaces.settings import MetricName, list_leaves
from storage.frames import Reader


@dataclass(frozen=True, kw_only=True)
class LoggedTrial:
    """One trial, written after the fact."""

    name: str
    """`trial-0017`"""
    params: Params
    """The drawn values, and what follows from them."""
    config: Mapping[str, Scalar]
    """Dotted path -> value, of the whole configuration."""
    facts: Mapping[str, Scalar]
    """The number, seed, state, objective and the like, where there are any."""
    started: datetime
    ended: datetime
    """The time when it ended, or was last seen to train."""
    validations: Sequence[tuple[int, Mapping[str, float]]]
    """Step, and `tvd/bema` or `tvd/bema/length=64` -> value; NaN for one that was not finite."""


_FACTS = ("number", "group_number", "seed", "state", "steps", "objective", "second_objective", "feasible", "parent")


def read_logged(reader: Reader, study: str, where: str | None, top: int) -> Iterator[LoggedTrial]:
    """Yield the `top` best trials of `where` (SQL), one at a time; StudyError if there is none."""
    stored = reader.study(study)
    condition = "objective IS NOT NULL" + (f" AND ({where}\n)" if where else "")
    rows = stored.trials(condition, top=top)
    if rows.is_empty():
        raise StudyError(f"study {study!r} has no trial with an objective{' of this --where' if where else ''} yet")
    for row in StoredParams(stored).decode(rows):
        validations: dict[int, dict[str, float]] = {}
        for step, name, variant, under, value in read_metrics(reader, row["id"]).iter_rows():
            metrics = validations.setdefault(step, {})
            metrics[str(MetricName(name, variant, under))] = nan if value is None else value
        started = row["started_at"] or row["created_at"]
        yield LoggedTrial(
            name=f"trial-{row['number']:04}",
            params=row["params"],
            config={
                path: value if isinstance(value, int | float | str) else json.dumps(value)
                for path, value in list_leaves(row["config"])
                if value is not None
            },
            facts={name: row[name] for name in _FACTS if row[name] is not None},
            started=started,
            ended=row["finished_at"] or started,
            validations=sorted(validations.items()),
        )
