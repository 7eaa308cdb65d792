"""The answers of the server, typed. Times are UTC; a number that is not finite is null, as it is stored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from graft.stored.status import Status
from spaces.bounds import LARGEST_WEIGHT, LONGEST_OWNER, MOST_LANES, PRIORITIES
from storage import QueueEntry


class Problem(BaseModel):
    """Why a request was refused."""

    error: str
    """One line."""


class StudyRow(BaseModel):
    """A study in a list of studies."""

    name: str
    state: str
    ended: int
    trials: int
    objective: str
    best: float | None
    best_number: int | None
    created_at: datetime
    tags: list[str]
    note: str
    archived: bool


class StudyStatus(BaseModel):
    """Where a study stands: the fields of `graft.stored.status.Status`, and the time that is left."""

    status: Status
    eta_seconds: float | None


class TrialRow(BaseModel):
    """A trial in a list of trials: the columns of the table `trials`, `params` by dotted path."""

    number: int
    group_number: int
    state: str
    task: str
    model: str
    scorer: str | None
    seed: int
    parent: int | None
    parent_step: int | None
    steps: int
    objective: float | None
    architecture_id: int | None
    worker: str | None
    step_kind: str | None
    fingerprint: int | None
    deaths: int
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    params: dict[str, Any]
    second_objective: float | None
    constraints: dict[str, float | None] | None
    feasible: bool | None
    ended: int | None
    """Its place in the order in which the study's trials ended; null: it has not."""


class TrialPage(BaseModel):
    """Some of a study's trials."""

    trials: list[TrialRow]
    next: int | None
    """The cursor of the next page; null: this is the last one."""


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
    """The cursor of the next page; null: this is the last one."""


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


class WorkerRow(BaseModel):
    """A worker that trained for a study."""

    id: str
    host: str
    device: str
    state: str
    heartbeat_at: datetime
    lease_until: datetime | None
    steps: int
    room: int
    """What `steps` would be with no lane free."""
    log: str
    """Where what it says of itself can be read."""


class EndedTrial(BaseModel):
    """A trial that has ended, as an event tells it."""

    number: int
    state: str
    steps: int
    objective: float | None


class Change(BaseModel):
    """What an event says: where the study stands, and the trials that ended since the event before."""

    state: str
    counts: dict[str, int]
    planned: int
    best: float | None
    best_number: int | None
    ended: list[EndedTrial]
    more: bool
    """Whether more trials have ended, which the next event tells."""


class Submission(BaseModel, extra="forbid"):
    """A space for the queue, and on which terms it is run."""

    space: str
    """Its YAML text; it may name no file, and no plug-in that the server does not allow."""
    study: str | None = Field(default=None, max_length=100)
    """The study's name; null: the space's."""
    priority: int = Field(default=0, ge=PRIORITIES[0], le=PRIORITIES[-1])
    weight: float = Field(default=1.0, gt=0, le=LARGEST_WEIGHT)
    max_lanes: int | None = Field(default=None, ge=1, le=MOST_LANES)
    owner: str = Field(default="", max_length=LONGEST_OWNER)
    """Whose study it is, where no token says so."""


class Priority(BaseModel, extra="forbid"):
    """A priority class."""

    priority: int = Field(ge=PRIORITIES[0], le=PRIORITIES[-1])


class QueueState(BaseModel):
    """The queue of the service."""

    service: str | None
    """The process that runs it now; null: none does."""
    entries: list[QueueEntry]


class Accepted(BaseModel):
    """What became of a request to the queue."""

    study: str
    entry: QueueEntry | None
    """The study's entry after it; null: the next service does what was asked."""
