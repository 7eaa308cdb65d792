"""A prior that the database gives a new study, written into its space once and for all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from graft.plugins.families import families
from graft.plugins.stored import read_outside
from graft.stored.studies import has_arms, read_target_objectives
from search.analysis.transfer.compatibility_matrix import Matrix, TransferError, compute_matrix
from search.analysis.transfer.stage_two import READ as OF_STAGE_TWO
from search.analysis.transfer.stage_two import results
from search.analysis.warm_start import READ, Earlier, gains, prior, task_of, winners_of
from search.samplers.warm import Warm, format_prior
from spaces import parse, parse_stored
from spaces.errors import PluginError, SpaceError, StorageError, StudyError
from spaces.experiment import ExperimentSpace
from spaces.messages import list_some
from spaces.plugins import config_of
from spaces.plugins.active import using
from spaces.settings import Direction
from spaces.transfer import TransferSpace
from storage import migrate_if_older, open_reader

if TYPE_CHECKING:
    from spaces.space import Space
    from storage import Reader

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """A space with the prior of earlier studies in its sampler."""

    space: Space
    finding: str
    """The candidates that were found and the studies they are from, in a line."""


def warm_start(url: str, study: str, space: Space, earlier: str) -> WarmStart:
    """Return the space with a prior in its sampler, from all earlier studies (`auto`) or `a,b`.

    If a study of this name exists, it keeps the prior that it started with. Raises StudyError for
    an unknown study, a transfer and an experiment, new or earlier, and PluginError for a sampler
    that does not go with a prior.
    """
    _check_may_start_warm(space)
    cold = Warm(sampler=space.search.sampler)
    try:
        migrate_if_older(url)
        reader = open_reader(url)
    except StorageError as error:
        if earlier != AUTO:
            raise
        return WarmStart(space=space, finding=f"nothing to learn from ({error})")
    with reader:
        rows = {row["name"]: row for row in reader.studies().iter_rows(named=True)}
        if study in rows:
            stored = _parse_stored(reader, rows[study])
            sampler = stored.search.sampler if stored else None
            if isinstance(sampler, Warm):
                space = _with_sampler(space, replace(sampler, sampler=cold.sampler))
            return WarmStart(space=space, finding=f"study {study} exists and keeps what it started with")
        studies = _read_earlier(reader, _list_earlier(reader, earlier))
        matrices = [_read_matrix(reader, row) for row in rows.values()]
        start = prior(space, studies, gains([matrix for matrix in matrices if matrix], task_of(space)))
    if not start.candidates:
        shared = "no earlier study that may help shares a draw with this space (experiments are left out)"
        finding = f"{shared}; the search starts cold"
        return WarmStart(space=space, finding=finding)
    candidates, box = format_prior(start.candidates, start.box)
    count, narrowed = len(start.candidates), len(start.box)
    lessons = f"{count} candidate{'s' * (count > 1)} and {narrowed} narrowed draw{'s' * (narrowed != 1)}"
    return WarmStart(
        space=_with_sampler(space, replace(cold, candidates=candidates, box=box)),
        finding=f"{lessons} from {list_some(start.studies)}",
    )


def _check_may_start_warm(space: Space) -> None:
    """Raise StudyError for a space of several searches that are compared."""
    if isinstance(space, TransferSpace):
        raise StudyError("warm start: a transfer compares what is found on each task, so its searches start cold")
    if isinstance(space, ExperimentSpace):
        raise StudyError("warm start: an experiment compares its arms from equal draws, so they start cold")


def _list_earlier(reader: Reader, earlier: str) -> list[dict[str, Any]]:
    """Return the rows of all studies (`auto`) but experiments, or of the named ones.

    Raises StudyError for an unknown name, and for an experiment's.
    """
    if earlier == AUTO:
        return [row for row in reader.studies().iter_rows(named=True) if not has_arms(reader.study(row["name"]))]
    studies = [reader.study(word.strip()) for word in earlier.split(",")]
    if names := [study.row["name"] for study in studies if has_arms(study)]:
        rule = "is an experiment, and no search starts from its arms; name other studies, or auto"
        raise StudyError(f"warm start: {names[0]} {rule}")
    return [study.row for study in studies]


def _with_sampler(space: Space, sampler: Warm) -> Space:
    inner = json.dumps(config_of(sampler.sampler))
    fields = f"sampler: {inner}, candidates: '{sampler.candidates}', box: '{sampler.box}', floor: {sampler.floor}"
    return parse(space.text, f"the space of {space.name}", families(), {"search.sampler": f"{{warm: {{{fields}}}}}"})


def _parse_stored(reader: Reader, row: Mapping[str, Any]) -> Space | None:
    """Return a stored study's space; None if only another version of Graft can read it."""
    try:
        with using(read_outside(reader, row["name"])):
            return parse_stored(row, families())
    except (SpaceError, PluginError):
        return None


def _read_earlier(reader: Reader, rows: Sequence[Mapping[str, Any]]) -> list[Earlier]:
    """Return the studies that have finished trials, with their best trials."""
    # A copy of population-based training has the result of its whole lineage, not of its draws.
    ended = "state = 'finished' AND objective IS NOT NULL AND parent IS NULL AND feasible IS NOT FALSE"
    studies: list[Earlier] = []
    for row in rows:
        name, finished = row["name"], reader.study(row["name"]).counts().get("finished", 0)
        space = _parse_stored(reader, row) if finished else None
        if not space:
            continue
        searches = [(ended, space)]
        if isinstance(space, TransferSpace):  # a search on every task
            searches = [
                (f"{ended} AND group_number = {group}", domain.searched)
                for group, domain in enumerate(space.domains)
                if domain.searched
            ]
        for where, part in searches:
            sort = "objective ASC" if part.search.objective.direction == "minimize" else "objective DESC"
            tried = part.search.trials if isinstance(space, TransferSpace) else finished
            top = winners_of(min(finished, tried))
            studies.append(Earlier(name=name, space=part, winners=reader.study(name).trials(where, sort, top, READ)))
    return studies


def _read_matrix(reader: Reader, row: Mapping[str, Any]) -> Matrix | None:
    """Return a study's compatibility matrix; None if trials lack architecture, task or pair."""
    name, space = row["name"], _parse_stored(reader, row)
    directions: Mapping[str, Direction] | Direction = {
        target: objective.direction for target, objective in read_target_objectives(reader, row).items()
    } or row["direction"]
    try:
        # The last trial tells what kind of study it is: configurations are most of its size.
        results(reader.study(name).trials(sort="number DESC", top=1, columns=OF_STAGE_TWO), directions)
        matrix = compute_matrix(results(reader.study(name).trials(columns=OF_STAGE_TWO), directions))
    except TransferError:
        return None
    if not isinstance(space, TransferSpace):
        return matrix
    # The names that the transfer gives to its tasks are replaced by the tasks' own.
    names = {domain.name: task for domain in space.domains if (task := task_of(domain.baseline))}
    columns = [pl.col(side).replace(names) for side in ("source", "target")]
    return replace(matrix, cells=matrix.cells.with_columns(columns))
