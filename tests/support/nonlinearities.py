"""A database with learned non-linearities of known form."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sqlalchemy import insert

from graft.report.nonlinearities.learned import Learned
from spaces.records import TrialResult
from storage.clock import Now
from storage.databases import find_database
from storage.frames.columns import ARCHITECTURES
from storage.schema import architectures, trial_id
from tests.support.databases import controlled, make_trial

PLACES = np.linspace(-20, 20, 121)
"""The places of the knots, 1/3 apart."""
Row = tuple[int, str, str, Sequence[float]]
"""Number of the trial, task, component, knots."""


def wave(frequency: float, width: float) -> list[float]:
    """Return a wavelet with compact support, as the splines look that tasks of addition learn."""
    inside = np.cos(np.pi * PLACES / (2 * width)) ** 2 * (np.abs(PLACES) < width)
    return (np.sin(frequency * PLACES + 0.4) * inside).tolist()


ROWS: list[Row] = [
    (0, "add", "mlp", wave(1.0, 6)),
    (1, "add", "mlp", wave(1.3, 8)),
    (2, "copying", "mlp", [max(0.0, x) for x in PLACES]),
    (2, "copying", "attention", wave(0.5, 5)),
    (3, "add", "mlp", wave(0.8, 6)),
]
OBJECTIVES = [0.5, 0.25, 0.75, None]
"""The objectives of the trials, which are minimised."""


def add_architectures(url: str, study: int, rows: Sequence[Row], low: float = -20.0, high: float = 20.0) -> None:
    """Write rows of the table `architectures`, whatever made them."""
    columns = ("trial_id", "task", "component", "knots")
    values = [
        {"study_id": study, "low": low, "high": high}
        | dict(zip(columns, (trial_id(study, row[0]), *row[1:]), strict=True))
        for row in rows
    ]
    database = find_database(url)
    with database.writer() as connection, connection.begin():
        connection.execute(insert(architectures).values(created_at=Now()), values)
    database.close()


def write(url: str, name: str = "study", rows: Sequence[Row] = ROWS) -> None:
    """Write a study whose first four trials ended with OBJECTIVES, and with what they learned."""
    with controlled(url, name=name) as study:
        study.start([make_trial(number) for number in range(len(OBJECTIVES))], "w")
        endings = [
            TrialResult(number=number, fence=1, state="finished" if value else "diverged", objective=value)
            for number, value in enumerate(OBJECTIVES)
        ]
        study.end(endings)
    if rows:
        add_architectures(url, study.id, rows)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("learned") / "graft.db"
    write(f"sqlite:///{path}")
    write(f"sqlite:///{path}", "nothing", [])
    return path


def learned(objectives: Sequence[float | None], direction: str = "minimize", task: str = "add") -> Learned:
    """One spline for each objective, of trials 0, 1, .., in which trial n has the height n + 1."""
    rows = [(n, n, task, "mlp", 0.0, 4.0, [0.0, 0.0, n + 1.0, 0.0, 0.0], value) for n, value in enumerate(objectives)]
    frame = pl.DataFrame(rows, schema=dict(ARCHITECTURES), orient="row")
    return Learned.of({"name": "made", "objective": "tvd/bema", "direction": direction}, frame)
