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
Draws = Mapping[str, float]
"""A sampler's own coordinates: name of a draw -> u in [0, 1)."""
Params = Mapping[str, Scalar]
"""Dotted path -> value: of what was drawn (`optimizer.learning_rate` -> 0.003), and of the facts that follow from it
(`task.generalisation_gap` -> 4)."""

Constraints = Mapping[str, float | None]
"""A constraint as the space writes it -> how far beyond its bound a trial is: broken above 0. None stands for a number
that is not finite, and is broken too."""


def is_feasible(constraints: Constraints | None) -> bool:
    """Return whether none of a trial's constraints is broken; of a trial without any it is true."""
    return all(excess is not None and excess <= 0 for excess in (constraints or {}).values())


def describe_constraints(constraints: Constraints | None) -> list[str]:
    """Return whether a trial is feasible, in a line; after it a line for each constraint that it breaks."""
    if constraints is None:
        return []
    broken = {text: excess for text, excess in constraints.items() if excess is None or excess > 0}
    by = {
        text: "by what is no finite number" if excess is None else f"by {excess:.6g}" for text, excess in broken.items()
    }
    return ["not feasible" if broken else "feasible", *(f"{text}: broken {much}" for text, much in by.items())]


TRAINED = "scorer=trained"
"""In a metric's condition: evaluated with the scorer of training, where validation has another."""

TERMINAL: frozenset[State] = frozenset({"finished", "pruned", "diverged", "failed"})


class Ancestor(NamedTuple):
    """A trial whose state another one took over."""

    number: int
    seed: int
    config: Mapping[str, Any]
    until: int
    """The step at which the next of the lineage took over."""


class StoredTrial(NamedTuple):
    """A trial of a lineage as it is stored: enough for a space to resolve it again."""

    number: int
    draws: Draws
    parent_step: int = 0
    """The step at which it took over the state of the trial before it; 0 for the first."""
    params: Params = MappingProxyType({})
    config: Mapping[str, Any] = MappingProxyType({})
    """As it is stored: where its architecture was found elsewhere, the draws alone do not give it."""


Component = Literal["mlp", "attention"]
"""The part of a model that a learned non-linearity is in."""


class LearnedSpline(NamedTuple):
    """A non-linearity that a trial learned: lines between values at evenly spaced points, constant beyond them."""

    component: Component
    low: float
    high: float
    knots: tuple[float, ...]
    """Values from `low` to `high`, both included."""


class TrialStart(NamedTuple):
    """One start of a trial: `fence` counts them, so that what a worker says of an earlier one is recognised."""

    number: int
    fence: int


class Checkpoint(NamedTuple):
    """Where the state of a running trial is stored, so that training can resume from there."""

    number: int
    fence: int
    """Of the start that wrote it."""
    step: int
    path: str
    """A file, or a URL that fsspec knows, with the states of a whole pack."""
    row: int
    """The trial's row in the file's tensors."""
    sha256: str
    """Checksum of the file, in hexadecimal digits."""
    controller_state: Mapping[str, Any] | None = None
    """What the controller knew of the trial at this step, JSON values; None as a worker sends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fully resolved configuration with a seed; everything a worker needs to train it alone.

    A trial with a `lineage` starts from the state that another trial had: parameters, moments, averages and step
    counter. Training its ancestors one after the other, each until the next took over, gives that state again.
    """

    number: int
    """In the study, 0 .. n-1."""
    group: int
    """Group number: trials of a group share the draws of the space's `group:` block."""
    seed: int
    """63-bit seed of all the trial's randomness: initial weights, data, dropout."""
    draws: Draws
    """With the space they determine the trial."""
    params: Params
    """Of every leaf that depends on a draw, and the facts that follow from them."""
    config: Mapping[str, Any]
    """Resolved configuration, plug-ins as {"name": ..., field: value}, every default filled in; JSON values only."""
    structure: str
    """Canonical JSON of what the trials of one pack must have in common (names, sizes, options; no knobs)."""
    lineage: tuple[Ancestor, ...] = ()
    """Whose state it starts from, the first of the lineage first; empty for a trial that starts from step 0."""
    evaluation_seed: int | None = None
    """63-bit seed of the sets that it is evaluated on, where trials share them; None: they come from its own seed."""
    architecture_trial: int | None = None
    """Number of the trial whose architecture it has, in stage two of a transfer; None elsewhere."""
    tested: bool = False
    """Whether it is evaluated on its test sets, too: draws of the validation sets' kinds from a stream of their own."""
    fence: int = field(default=0, compare=False)
    """How often it was started, this time included; 0 for one that no worker has."""
    checkpoints: tuple[Checkpoint, ...] = field(default=(), compare=False)
    """Those that its own training can resume from, the newest first; empty: it has to start again."""

    @property
    def start(self) -> TrialStart:
        """Which start of the trial it is."""
        return TrialStart(self.number, self.fence)

    @property
    def parent(self) -> int | None:
        """Number of the trial whose state this one took over."""
        return self.lineage[-1].number if self.lineage else None

    @property
    def parent_step(self) -> int:
        """The step at which it took it over: where its own training starts."""
        return self.lineage[-1].until if self.lineage else 0

    @property
    def checkpoint_step(self) -> int:
        """The step of its furthest checkpoint; 0 if it has none."""
        return max((one.step for one in self.checkpoints), default=0)


class Metric(NamedTuple):
    """One number of a report; a value that is not finite is stored as NULL."""

    name: str
    variant: str
    """Which parameters were evaluated: `raw`, `ema` or `bema`."""
    condition: str
    """The shifted evaluation set it belongs to, for example `length=64`; empty for the validation set."""
    value: float


DATA = "data "
"""How the name of a file or folder of data starts among the sources of a fingerprint: `data pairs.npz`."""


class Fingerprint(NamedTuple):
    """What determines the numbers of an optimizer step and an evaluation, beside a trial's configuration and seed.

    Equal fingerprints give equal bits.
    """

    numerics: int
    """The version of the numerics (`workers.numerics.version`)."""
    code: str
    """SHA-256 of the code of Graft that computes; 16 hexadecimal digits, as of `sources`."""
    torch: str
    """Its version."""
    processor: str
    """Instruction set and name: `AVX2, AMD EPYC`, `cuda 9.0, NVIDIA H200`."""
    compiler: str
    """What compiled a native step; empty for other steps."""
    step_kind: str
    """What computed the steps: `native AVX2`, `traced AVX512`, `traced cuda 9.0`."""
    sources: tuple[tuple[str, str], ...]
    """The trial's plug-ins, sorted, each with the SHA-256 of its source: (`averaging bema`, `9f86d081884c7d65`).

    And what it reads from disk, with the SHA-256 of its content: (`data pairs.npz`, `2c26b46b68ffc68f`).
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Metrics of one trial at one step, and whether its worker trains it further."""

    number: int
    step: int
    metrics: tuple[Metric, ...]
    state: Literal["running", "finished", "diverged", "failed"] = "running"
    error: str | None = None
    """Why the trial diverged or failed; None otherwise."""
    splines: tuple[LearnedSpline, ...] = ()
    """The non-linearities that a trial which finished has learned."""
    fence: int = 0
    """Of the start that it comes from."""
    fingerprint: Fingerprint | None = None
    """What determined its numbers; None where no step was made."""
    sealed: tuple[Metric, ...] = ()
    """Metrics on the test sets, where the trial is `tested`. The store alone reads them, and keeps them sealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A worker's free lanes. `structure` None means that its device is empty and takes any structure."""

    worker: str
    lanes: int
    structure: str | None = None
    common: tuple[str, ...] = ()
    """What its device trains for other studies: where that is asked for, lanes beside theirs cost the least."""
    host: str = ""
    device: str = ""
    steps: int = 0
    """Optimizer steps of all lanes together since the worker's last offer."""
    room: int = 0
    """What these steps would have been with no lane free, for lane utilisation."""
    holds: tuple[TrialStart, ...] = ()
    """The trials that it trains now; whatever else it was given and has not ended is requeued."""
    log: str = ""
    """The file of the worker's log."""
    saved: tuple[Checkpoint, ...] = ()
    """Checkpoints since its last offer, at the steps where its lanes are; no report of the same call is later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """What the controller answers: trials to drop, trials to train in free lanes."""

    stop: tuple[int, ...] = ()
    start: tuple[Trial, ...] = ()
    done: bool = False
    """True when the study will never need this worker again."""
    lease_lost: bool = False
    """True when the worker's lease has expired: it drops all trials and restarts as a new worker."""
    save: bool = False
    """True when the worker is about to be dismissed: it writes a checkpoint, if it can, and exchanges at once."""
    rounds: float = 0.0
    """How many times over the waiting trials would fill all running lanes; wide packs need a long queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """How a trial ended, as the controller decides; written before anyone acts on it."""

    number: int
    state: State
    objective: float | None
    error: str | None = None
    fence: int = 0
    """Of the start that ended."""
    second_objective: float | None = None
    constraints: Constraints | None = None
    """None: the space has none, or no validation tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a sampler learns from a trial that ended (objective None: diverged or failed)."""

    number: int
    group: int
    draws: Draws
    objective: float | None
    state: State
    splines: tuple[LearnedSpline, ...] = ()
    second_objective: float | None = None
    constraints: Constraints | None = None

    @property
    def feasible(self) -> bool:
        """Whether it breaks no constraint, as far as is known."""
        return is_feasible(self.constraints)


class WorkerStatus(NamedTuple):
    """What is known of a worker that is alive, or that was dismissed."""

    worker: str
    host: str
    device: str
    log: str
    state: Literal["running", "done"]
    steps: int
    """Optimizer steps of its lanes since it started."""
    room: int
    """What they would have been with no lane free."""
    seconds: float
    """Since it was last seen."""


class QueuedTrial(NamedTuple):
    """A trial that was started before and is in the queue again."""

    number: int
    crashes: int = 0
    """Workers that crashed while they trained it, since its last checkpoint."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Those that it can resume from, the newest first."""


class TimeLeft(NamedTuple):
    """Seconds until all trials of a study have ended."""

    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a study stands: by its controller, which knows what was done since it began, or by its database."""

    planned: int
    """Trials of the whole study, copies of a population made so far included; a grid may have fewer."""
    counts: Mapping[State, int]
    """Trials by state; one that has never been started is in none. `running` is the number of busy lanes."""
    objective: str
    best: float | None
    """The best objective of all trials that ended, in the user's direction; None where trials have different ones."""
    best_number: int | None
    steps: int
    """Optimizer steps that reports stand for, summed over trials."""
    model_steps: int
    """Optimizer steps that workers made, summed over lanes; those of trials that were restarted included."""
    lane_room: int
    """What these would have been with no lane free."""
    reports: int = 0
    """Reports recorded by this controller; a database does not count them."""
    stopping: bool = False
    """Whether a controller dismisses its workers before the study is finished."""
    time_left: TimeLeft | None = None
    """Until all trials have ended; `None` where nothing tells."""

    @property
    def ended(self) -> int:
        """Trials that will not train again."""
        return sum(count for state, count in self.counts.items() if state in TERMINAL)

    @property
    def utilisation(self) -> float | None:
        """Lane utilisation; None before the first step."""
        return self.model_steps / self.lane_room if self.lane_room else None
