"""The compatibility matrix of a stored study, read and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from graft.report.compatibility.content import Paths, Transfer
from graft.report.nonlinearities.learned import Learned
from graft.stored.params import StoredParams
from graft.stored.studies import read_target_objectives
from search.analysis.statistics.intervals import Bootstrap, Student
from search.analysis.transfer.affinity import by_similarity
from search.analysis.transfer.compatibility_matrix import compute_matrix
from search.analysis.transfer.stage_two import READ, results, target_of
from spaces.settings import Direction
from storage.frames import Reader


@dataclass(frozen=True, kw_only=True)
class MatrixRequest:
    """A request for a matrix: its rows and columns, and how they are compared."""

    source: str = "architecture.source"
    """Rows: the path at which a trial says what its architecture was made for."""
    target: str | None = None
    """Columns: the path of the task trained on; by default `transfer.target`, else `task.name`."""
    pair: str = "pair"
    """The path of the integer that says which trials are compared."""
    baseline: str = "baseline"
    """The row that all others are compared with."""
    interval: Literal["student", "bootstrap"] = "student"
    order: Literal["similarity", "name"] = "similarity"


def read_transfer(reader: Reader, study: str, request: MatrixRequest) -> tuple[Transfer, Learned | None]:
    """Return a study's matrix and what its trials learned; TransferError if they make no matrix."""
    stored = reader.study(study)
    row, architectures = stored.row, stored.architectures.read()
    trials = StoredParams(stored).renew(stored.trials("feasible IS NOT FALSE", columns=(*READ, "state")))
    # A stopping policy ends trials early: their objectives are of fewer steps than those of others.
    trials = trials.with_columns(objective=pl.when(pl.col("state") == "finished").then("objective"))
    column = request.target or target_of(trials)
    wanted = read_target_objectives(reader, row) if column == "transfer.target" else {}
    directions: dict[str, Direction] = {name: objective.direction for name, objective in wanted.items()}
    outcomes = results(trials, directions or row["direction"], source=request.source, target=column, seed=request.pair)
    interval = Bootstrap() if request.interval == "bootstrap" else Student()
    matrix = compute_matrix(outcomes, request.baseline, interval)
    transfer = Transfer(
        study=study,
        objective=row["objective"] if len(set(wanted.values())) < 2 else "the target's objective",
        direction=row["direction"] if len(set(directions.values())) != 1 else next(iter(directions.values())),
        paths=Paths(source=request.source, target=column, pair=request.pair),
        matrix=by_similarity(matrix) if request.order == "similarity" else matrix,
        results=outcomes,
        left_out=trials.height - outcomes.height,
    )
    if architectures.is_empty():
        return transfer, None
    return transfer, Learned.of({**row, "objective": transfer.objective}, architectures, directions)
