"""The answers of the server, typed. Times are UTC; a number that is not finite is null."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, Field, RootModel, WithJsonSchema, create_model

from graft.stored.status import Status
from graft.stored.studies import LISTED_STUDY
from graft.stored.trials import LISTED
from spaces.bounds import LARGEST_WEIGHT, LONGEST_OWNER, MOST_LANES, PRIORITIES
from storage import QueueEntry
from storage.frames.columns import REQUIRED, TRIALS, WORKERS, Schema


class Problem(BaseModel):
    """The reason for which a request was refused."""

    error: str
    """One line."""


class StudyStatus(BaseModel):
    """The standing of a study: `graft.stored.status.Status`, and the time that is left."""

    status: Status
    eta_seconds: float | None


INTERNAL = ("study_id", "fence")
"""Columns of workers that no answer has."""


def _describe_row(name: str, schema: Schema, required: Collection[str], **others: Any) -> dict[str, Any]:
    """Return the JSON Schema of a table's row; `others`: types of columns that hold JSON."""
    kinds = {name: others.get(name, kind.to_python()) for name, kind in schema.items()}
    fields: Any = {key: (kind if key in required else kind | None, ...) for key, kind in kinds.items()}
    return create_model(name, **fields).model_json_schema()


_TRIAL = _describe_row(
    "TrialRow",
    {name: TRIALS[name] for name in LISTED},
    REQUIRED["trials"],
    params=dict[str, Any],
    constraints=dict[str, float | None],
)
_WORKER = _describe_row(
    "WorkerRow", {name: WORKERS[name] for name in WORKERS if name not in INTERNAL}, REQUIRED["workers"]
)


_STUDY = _describe_row("StudyRow", LISTED_STUDY, [*LISTED_STUDY.keys() - {"best", "best_number"}], tags=list[str])


class StudyRow(RootModel[Annotated[dict[str, Any], WithJsonSchema(_STUDY)]]):
    """A study in a list of studies."""


class TrialRow(RootModel[Annotated[dict[str, Any], WithJsonSchema(_TRIAL)]]):
    """A trial in a list of trials: the columns of the table `trials`, `params` by dotted path."""


class WorkerRow(RootModel[Annotated[dict[str, Any], WithJsonSchema(_WORKER)]]):
    """A worker that trained for a study: the columns of the table `workers`."""


class TrialPage(BaseModel):
    """Some of a study's trials."""

    trials: list[TrialRow]
    next: int | None
    """The cursor of the next page; null on the last one."""


class Point(BaseModel):
    """One number of a validation of one trial."""

    step: int
    name: str
    variant: str
    condition: str
    value: float | None


class MetricRow(Point):
    """One number of a validation of a trial that is named."""

    number: int


class MetricPage(BaseModel):
    """The metrics of some of a study's trials."""

    metrics: list[MetricRow]
    next: int | None
    """The cursor of the next page; null on the last one."""


class TrialDetails(BaseModel):
    """One trial, whole."""

    trial: TrialRow
    draws: dict[str, float]
    """The sampler's coordinates."""
    config: dict[str, Any]
    metrics: list[Point]
    """In the order of steps."""
    replay: str
    """The command that trains it again and compares."""


class EndedTrial(BaseModel):
    """A trial that has ended, as an event tells it."""

    number: int
    state: str
    steps: int
    objective: float | None


class Change(BaseModel):
    """An event: where the study stands, and the trials that ended since the event before."""

    state: str
    counts: dict[str, int]
    planned: int
    best: float | None
    best_number: int | None
    ended: list[EndedTrial]
    more: bool
    """True if more trials have ended, which the next event tells."""


class Submission(BaseModel, extra="forbid"):
    """A space for the queue, and the terms on which it is run."""

    space: str
    """YAML text, or a packaged space's name; it names no file, and no plug-in but allowed ones."""
    study: str | None = Field(default=None, max_length=100)
    """The study's name; null for the space's."""
    priority: int = Field(default=0, ge=PRIORITIES[0], le=PRIORITIES[-1])
    weight: float = Field(default=1.0, gt=0, le=LARGEST_WEIGHT)
    max_lanes: int | None = Field(default=None, ge=1, le=MOST_LANES)
    owner: str = Field(default="", max_length=LONGEST_OWNER)
    """The study's owner, where no token says it."""


class Priority(BaseModel, extra="forbid"):
    """A priority class."""

    priority: int = Field(ge=PRIORITIES[0], le=PRIORITIES[-1])


class QueueState(BaseModel):
    """The queue of the service."""

    service: str | None
    """The process that runs it now; null if none does."""
    entries: list[QueueEntry]


class Accepted(BaseModel):
    """The result of a request to the queue."""

    study: str
    entry: QueueEntry | None
    """The study's entry after it; null if the next service does what was asked."""
