"""The plain values that cross the seam between search, workers and storage.

Legend: a *trial* is one fully resolved configuration with a seed; a *group* is the trials that share one draw of the
structural parameters; a *structure* is everything of a configuration that cannot differ between the lanes of a pack.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

State = Literal["queued", "running", "finished", "pruned", "diverged", "failed"]
Scalar = int | float | str | bool

TRAINED = "scorer=trained"
"""In a metric's condition: evaluated with the scorer of training, where validation has another."""

TERMINAL: frozenset[State] = frozenset({"finished", "pruned", "diverged", "failed"})


class Ancestor(NamedTuple):
    """What a trial's state was before the trial took it over."""

    number: int
    seed: int
    config: Mapping[str, Any]
    until: int
    """The step at which the next of the line took over."""


class StoredTrial(NamedTuple):
    """One trial of a line of descent, as it is stored."""

    number: int
    draws: Mapping[str, float]
    parent_step: int = 0
    """The step at which it took over the state of the stage before; 0 for the first."""
    params: Mapping[str, Scalar] = MappingProxyType({})
    config: Mapping[str, Any] = MappingProxyType({})
    """As it is stored: where its architecture was found elsewhere, the draws alone do not give it."""


class Architecture(NamedTuple):
    """A non-linearity that a trial learned: lines between values at evenly spaced places, constant beyond them."""

    component: Literal["mlp", "attention"]
    low: float
    high: float
    knots: tuple[float, ...]
    """Values from `low` to `high`, both included."""


class TrialStart(NamedTuple):
    """A trial in training: `fence` counts its starts, so that what is left of an earlier one can be told."""

    number: int
    fence: int


class Checkpoint(NamedTuple):
    """Where the state of a trial in training lies, so that it can go on from there."""

    number: int
    fence: int
    """Of the start of the trial that wrote it."""
    step: int
    path: str
    """A file, or a URL that fsspec knows, with the states of a whole pack."""
    row: int
    """The trial's row in it."""
    sha256: str
    """Of the file, in hexadecimal digits."""
    controller_state: Mapping[str, Any] | None = None
    """What the controller knew of the trial at this step, JSON values; None as a worker gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fully resolved configuration with a seed; everything a worker needs to train it alone.

    A trial with a `lineage` goes on from the state that another trial had: parameters, moments, averages and step
    counter. Training its ancestors one after the other, each until the next took over, gives that state again.
    """

    number: int
    """Place in the study, 0 .. n-1."""
    group: int
    """Group number: trials of a group share the draws of the space's `group:` block."""
    seed: int
    """63-bit seed of all the trial's randomness: initial weights, data, dropout."""
    draws: Mapping[str, float]
    """The sampler's own coordinates: name of the draw -> u in [0, 1). With the space they determine the trial."""
    params: Mapping[str, Scalar]
    """Dotted path -> value of every leaf that depends on a draw (`optimizer.learning_rate` -> 0.003), and the facts
    that follow from them (`task.generalisation_gap` -> 4)."""
    config: Mapping[str, Any]
    """Resolved configuration, plug-ins as {"name": ..., field: value}, every default filled in; JSON values only."""
    structure: str
    """Canonical JSON of what the trials of one pack must have in common (names, sizes, options; no knobs)."""
    lineage: tuple[Ancestor, ...] = ()
    """Whose state it goes on from, the first of the line first; empty for a trial that starts anew."""
    architecture_trial: int | None = None
    """Number of the trial whose architecture it has, in stage two of a transfer; None elsewhere."""
    fence: int = field(default=0, compare=False)
    """How often it was started, this time included; 0 for one that is in nobody's hands."""
    checkpoints: tuple[Checkpoint, ...] = field(default=(), compare=False)
    """Where its own training can go on, the newest first; empty: it starts anew."""

    @property
    def start(self) -> TrialStart:
        """Number and fence: which start of the trial it is."""
        return TrialStart(self.number, self.fence)

    @property
    def parent(self) -> int | None:
        """Number of the trial whose state this one took over."""
        return self.lineage[-1].number if self.lineage else None

    @property
    def parent_step(self) -> int:
        """The step at which it took it over: where its own training starts."""
        return self.lineage[-1].until if self.lineage else 0


class Metric(NamedTuple):
    """One number of a report; a value that is not finite is stored as NULL."""

    name: str
    variant: str
    """Which parameters were evaluated: `raw`, `ema` or `bema`."""
    condition: str
    """The shifted evaluation it belongs to, for example `length=64`; empty for the plain one."""
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Metrics of one trial at one step, and whether its worker goes on with it."""

    number: int
    step: int
    metrics: tuple[Metric, ...]
    state: Literal["running", "finished", "diverged", "failed"] = "running"
    error: str | None = None
    """Why the trial diverged or failed; None otherwise."""
    architectures: tuple[Architecture, ...] = ()
    """What a trial that finished has learned of non-linearities."""
    fence: int = 0
    """Of the start of the trial that it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A worker's free lanes. `structure` None means that its device is empty and takes any structure."""

    worker: str
    lanes: int
    structure: str | None = None
    host: str = ""
    device: str = ""
    steps: int = 0
    """Training steps of all lanes together since the worker's last offer."""
    room: int = 0
    """Lanes that these steps would have been with none free, for lane utilisation."""
    holds: tuple[TrialStart, ...] = ()
    """The trials that it trains now; whatever else it was given, and is not over, goes back in the queue."""
    log: str = ""
    """Where what the worker says of itself can be read."""
    saved: tuple[Checkpoint, ...] = ()
    """What it wrote since its last offer, at the steps where its lanes stand; no report that comes along is later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What the controller answers: trials to drop, trials to place in free lanes."""

    stop: tuple[int, ...] = ()
    start: tuple[Trial, ...] = ()
    done: bool = False
    """True when the study will never need this worker again."""
    lease_lost: bool = False
    """True when the worker's lease ran out: it holds nothing any more, and begins anew under another name."""
    save: bool = False
    """True when the worker is about to be sent home: it writes a checkpoint, if it can, and comes back at once."""
    rounds: float = 0.0
    """How many times over the trials that wait would fill all lanes at work; wide packs need a long queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The controller's verdict on a trial that ended; written before anyone acts on it."""

    number: int
    state: State
    objective: float | None
    error: str | None = None
    fence: int = 0
    """Of the start of the trial that ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a sampler learns from a trial that ended (objective None: diverged or failed)."""

    number: int
    group: int
    draws: Mapping[str, float]
    objective: float | None
    state: State
    architectures: tuple[Architecture, ...] = ()


class WorkerStatus(NamedTuple):
    """What is known of a worker that lives, or that has gone home."""

    worker: str
    host: str
    device: str
    log: str
    state: Literal["running", "done"]
    steps: int
    """Training steps of its lanes since it started."""
    room: int
    """What they would have been with no lane free."""
    seconds: float
    """How long ago it was heard of."""


class QueuedTrial(NamedTuple):
    """A trial that was started before and is in the queue again."""

    number: int
    crashes: int = 0
    """Workers that died while they trained it, since its last checkpoint."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Where it can go on, the newest first."""
