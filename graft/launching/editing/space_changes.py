"""Another space for a study that exists: the differences, and whether its trials stay valid."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from graft.launching.checkpoints import folder_of
from graft.plugins.families import version
from graft.stored.differences import compare_spaces, describe_differences
from search.objectives import Rating, list_metrics, no_such_metric, rating_after
from spaces.errors import SpaceError, StudyError
from spaces.plugins import active, canonical_json
from spaces.plugins.bundles import Bundle
from spaces.records import Constraints, Metric, Report, StoredTrial
from spaces.space import DrawnSpace
from storage import SpaceChange
from storage.frames import Reader

if TYPE_CHECKING:
    from spaces.space import Space

_RATING_PATHS = ("search.objective", "search.feasible")
"""Paths that decide a trial's rating, beside its validations."""
CHANGEABLE = ("search.trials", "search.stopping", *_RATING_PATHS, "search.history", "study", "plugins", "claim")
"""Paths that may change in a study with results; all others define its trials or their choice."""
_RESTARTING = ("search.stopping", *_RATING_PATHS)
"""Paths whose change invalidates checkpoints, since they have the controller's state of a trial."""
_NAMED = 3
"""Files that a line names."""


def plan_change(reader: Reader, row: Mapping[str, Any], space: Space) -> SpaceChange:
    """Plan the change of a stored study, given its row, to this space, whose plug-ins are in use.

    Raises StudyError with the differences if its trials would not stay the same.
    """
    name: str = row["name"]
    differences = compare_spaces(row["space"], space.text)
    foreign = [difference for difference in differences if not _is_below(difference.path, CHANGEABLE)]
    if foreign:
        raise StudyError(f"study {name!r} exists with another space ({describe_differences(foreign)})")
    bundles = _find_new_bundles(reader, name)
    changed = [difference for difference in differences if difference.path != "study"]
    paths = {difference.path for difference in changed}
    _check_numbers(reader, name, space, paths)
    renumbers = "search.trials" in paths and not isinstance(space, DrawnSpace)
    ratings_change = any(_is_below(difference.path, _RATING_PATHS) for difference in changed)
    return SpaceChange(
        space=space.text,
        space_hash=space.hash,
        objective=space.search.objective,
        trials=space.search.trials,
        version=version(),
        differences=differences,
        checkpoint_folder=folder_of(row),
        bundles=bundles,
        second_objective=str(space.search.second) if space.search.second else None,
        ratings=_compute_ratings(reader, name, space) if ratings_change else {},
        groups=_renumber_groups(reader, name, space) if renumbers else {},
        restarts=any(_is_below(difference.path, _RESTARTING) for difference in changed),
    )


def _find_new_bundles(reader: Reader, name: str) -> list[Bundle]:
    """Return the plug-ins in use that a study does not have yet; StudyError if others are missing."""
    bundles, stored = active.current().asked_for, reader.study(name).bundles()
    packages = {bundle.package for bundle in bundles}
    for bundle in stored:
        if bundle.package not in packages:
            files = ", ".join(source.path for source in bundle.sources[:_NAMED])
            raise StudyError(f"study {name!r} exists with other plug-ins ({files}), with which its trials were made")
    return [bundle for bundle in bundles if bundle.package not in {copy.package for copy in stored}]


def _is_below(path: str, roots: Sequence[str]) -> bool:
    return any(path == root or path.startswith(f"{root}.") for root in roots)


def _check_numbers(reader: Reader, name: str, space: Space, paths: set[str]) -> None:
    """Raise StudyError if a stored number would mean another trial, or exceed the trials."""
    there = reader.study(name).trials(columns=("number", "parent"))
    if there.is_empty():
        return
    if (copies := there["parent"].count()) and paths - {"search.history"}:
        raise StudyError(
            f"study {name!r}: {copies:,} of its trials are copies in a population, which have the state of others and "
            "the numbers after search.trials, so its space stays as it is"
        )
    if not isinstance(space, DrawnSpace) and any(_is_below(path, _RATING_PATHS) for path in paths):
        raise StudyError(
            f"study {name!r}: the objective of a transfer or an experiment decides what it trains, so it stays as it is"
        )
    if "search.trials" not in paths:
        return
    least = int(there.select(pl.col("number").max()).item()) + 1
    if space.search.trials < least:
        raise StudyError(
            f"search.trials: {space.search.trials:,} is less than study {name!r} has started; "
            f"it must be at least {least:,}"
        )


def _renumber_groups(reader: Reader, name: str, space: Space) -> dict[int, int]:
    """Return number -> group of the trials whose group has another number in the new space.

    The groups of an experiment are numbered arm by arm, so that more configurations move those of
    later arms: two arms would share a number. Raises StudyError unless each number means the same
    trial as before.
    """
    groups: dict[int, int] = {}
    columns = ("number", "group_number", "seed", "draws", "config")
    for number, group, seed, draws, config in reader.study(name).trials(columns=columns).iter_rows():
        try:
            trial = space.restore([StoredTrial(number, json.loads(draws), config=json.loads(config))])
        except (SpaceError, IndexError):
            trial = None
        same = trial and trial.seed == seed and canonical_json(trial.config) == canonical_json(json.loads(config))
        if not trial or not same:
            raise StudyError(
                f"search.trials: with another number, trial {number} of study {name!r} would be another one; "
                "a launch under another name (--study) takes it"
            )
        if trial.group != group:
            groups[number] = trial.group
    return groups


def _compute_ratings(
    reader: Reader, name: str, space: Space
) -> dict[int, tuple[float | None, float | None, Constraints | None]]:
    """Return the new rating of each trial with a result, from its stored validations.

    Raises StudyError if a metric was not reported, or a validation that may count is not stored.
    """
    search = space.search
    columns = ("number", "steps", "draws", "config")
    ended = reader.study(name).trials(where="state IN ('finished', 'pruned')", columns=columns)
    if ended.is_empty():
        return {}
    named = {metric.name for _, metric in list_metrics(search)}
    wanted = pl.col("number").is_in(ended["number"].implode())
    # Reports that are no validation have the training loss.
    metrics = reader.study(name).metrics().filter(wanted, (pl.col("name") != "loss") | pl.lit("loss" in named))
    reports: dict[int, dict[int, list[Metric]]] = defaultdict(lambda: defaultdict(list))
    for number, step, *metric, value in metrics.iter_rows():
        reports[number][step].append(Metric(*metric, value=math.nan if value is None else value))
    ratings: dict[int, tuple[float | None, float | None, Constraints | None]] = {}
    for number, steps, draws, config in ended.iter_rows():
        kept = [Report(number=number, step=step, metrics=tuple(m)) for step, m in sorted(reports[number].items())]
        known = [metric[:3] for report in kept for metric in report.metrics]
        for path, wanted in list_metrics(search):
            if wanted not in known:
                reason = no_such_metric(wanted, sorted(set(known)))
                raise StudyError(f"{path}: trial {number} of {name} has {reason}")
        validations = math.ceil(steps / json.loads(config)["training"]["validate_every"])
        if search.objective.at == "best" and len(kept) < validations:
            raise StudyError(
                f"search.objective: trial {number} of {name} keeps {len(kept):,} of its {validations:,} validations, "
                f"so that its best {search.objective} is not known; ask for the last one (at: last)"
            )
        trial, rating = space.resolve(number, json.loads(draws)), Rating()
        for report in kept:
            rating = rating_after(search, rating, trial, report)
        ratings[number] = rating.objective, rating.second_objective, rating.constraints
    return ratings
