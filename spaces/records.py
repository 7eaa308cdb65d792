"""The plain values that cross the seam between search, workers and storage.

Legend: a *trial* is one fully resolved configuration with a seed; a *group* is the trials that
share one draw of the structural parameters; a *pack* trains trials side by side, one in each of its
*lanes*; a *structure* is the part of a configuration that cannot differ between the lanes of a
pack; a *fence* counts the starts of a trial, and how often a process took control of a study.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self

State = Literal["queued", "running", "finished", "pruned", "diverged", "failed"]
Scalar = int | float | str | bool
Draws = Mapping[str, float]
"""The coordinates that a sampler chose: name of a draw -> u in [0, 1)."""
Params = Mapping[str, Scalar]
"""Dotted path -> value, for drawn values (`optimizer.learning_rate` -> 0.003) and for facts that
follow from them (`task.generalisation_gap` -> 4)."""

Constraints = Mapping[str, float | None]
"""Text of a constraint in the space -> excess of a trial over its bound; above 0 the constraint is
broken. None is a number that is not finite, and counts as broken."""


def is_feasible(constraints: Constraints | None) -> bool:
    """Return True if a trial breaks no constraint, or has none."""
    return all(excess is not None and excess <= 0 for excess in (constraints or {}).values())


def describe_constraints(constraints: Constraints | None) -> list[str]:
    """Return a line on whether a trial is feasible, and one per broken constraint."""
    if constraints is None:
        return []
    broken: list[str] = []
    for text, excess in constraints.items():
        if excess is None:
            broken.append(f"{text}: broken by what is no finite number")
        elif excess > 0:
            broken.append(f"{text}: broken by {excess:.6g}")
    return ["not feasible" if broken else "feasible", *broken]


TRAINED = "scorer=trained"
"""Part of a metric's condition: with the scorer of training, where validation uses another."""

TERMINAL: frozenset[State] = frozenset({"finished", "pruned", "diverged", "failed"})
"""States of a trial that has ended."""


class Ancestor(NamedTuple):
    """A trial whose state a later trial took over."""

    number: int
    seed: int
    config: Mapping[str, Any]
    until: int
    """The step at which the next trial of the lineage took over."""


class StoredTrial(NamedTuple):
    """The stored values of one trial of a lineage, from which a space resolves it again."""

    number: int
    draws: Draws
    parent_step: int = 0
    """The step at which it took over the trial before it; 0 for the first of a lineage."""
    params: Params = MappingProxyType({})
    config: Mapping[str, Any] = MappingProxyType({})
    """The stored configuration: the draws lack an architecture that another trial found."""


Component = Literal["mlp", "attention"]
"""The part of a model that holds a learned non-linearity."""


class LearnedSpline(NamedTuple):
    """A learned non-linearity: linear between evenly spaced knots, constant outside [low, high]."""

    component: Component
    low: float
    high: float
    knots: tuple[float, ...]
    """The values at the knots, from `low` to `high`, both included."""


class TrialStart(NamedTuple):
    """One start of a trial. `fence` counts starts: messages about earlier ones are ignored."""

    number: int
    fence: int


class Checkpoint(NamedTuple):
    """The place of a running trial's stored state, from which training can resume."""

    number: int
    fence: int
    """The fence of the start that wrote it."""
    step: int
    path: str
    """A file, or a URL that fsspec knows, which holds the states of a whole pack."""
    row: int
    """The trial's row in the file's tensors."""
    sha256: str
    """SHA-256 of the file, in hexadecimal digits."""
    controller_state: Mapping[str, Any] | None = None
    """The controller's own state of the trial at this step, as JSON values; None from a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One fully resolved configuration with a seed: all that a worker needs to train it alone.

    A trial with a `lineage` starts from another trial's state: parameters, optimizer moments,
    averages and step counter. Training its ancestors one after the other, each until the next took
    over, gives that state again.
    """

    number: int
    """Its number in the study, from 0."""
    group: int
    """Group number: trials of a group share the draws of the space's `group:` block."""
    seed: int
    """63-bit seed of all the trial's randomness: initial weights, data, dropout."""
    draws: Draws
    """The sampler's coordinates, from which the space resolves the trial."""
    params: Params
    """The values of all leaves that depend on a draw, and the facts that follow from them."""
    config: Mapping[str, Any]
    """Configuration with all defaults, as JSON; a plug-in is {"name": ..., field: value}."""
    structure: str
    """Canonical JSON of the part that a pack shares: names, sizes and options, but no knobs."""
    lineage: tuple[Ancestor, ...] = ()
    """The ancestors whose state it starts from, oldest first; empty if it starts from step 0."""
    evaluation_seed: int | None = None
    """63-bit seed of evaluation sets that trials share; None: they come from its own seed."""
    architecture_trial: int | None = None
    """In stage two of a transfer the trial that found its architecture; None elsewhere."""
    tested: bool = False
    """True if it is also evaluated on test sets, which have a random stream of their own."""
    fence: int = field(default=0, compare=False)
    """How often it was started, this start included; 0 for a trial that no worker has."""
    checkpoints: tuple[Checkpoint, ...] = field(default=(), compare=False)
    """Checkpoints from which it can resume, the newest first; empty: it has to start again."""

    @property
    def start(self) -> TrialStart:
        """The trial's number with its fence: this start of it."""
        return TrialStart(self.number, self.fence)

    @property
    def parent(self) -> int | None:
        """Number of the trial whose state this one took over; None without a lineage."""
        return self.lineage[-1].number if self.lineage else None

    @property
    def parent_step(self) -> int:
        """The step at which it takes over its parent's state; 0 without a parent."""
        return self.lineage[-1].until if self.lineage else 0

    @property
    def checkpoint_step(self) -> int:
        """The step of its furthest checkpoint; 0 if it has none."""
        return max((checkpoint.step for checkpoint in self.checkpoints), default=0)


class Metric(NamedTuple):
    """One number of a report; a value that is not finite is stored as NULL."""

    name: str
    variant: str
    """The parameters that were evaluated: `raw`, `ema` or `bema`."""
    condition: str
    """The shifted evaluation set, for example `length=64`; empty for the validation set."""
    value: float


DATA = "data "
"""The start of names of data files and folders in a fingerprint's sources: `data pairs.npz`."""


class Fingerprint(NamedTuple):
    """The conditions of a trial's numbers beside configuration and seed: equal ones, equal bits."""

    numerics: int
    """The version of the numerics (`workers.numerics.version`)."""
    code: str
    """SHA-256 of the parts of Graft's code that compute: 16 hexadecimal digits, as in `sources`."""
    torch: str
    processor: str
    """Instruction set and name: `AVX2, AMD EPYC`, `cuda 9.0, NVIDIA H200`."""
    compiler: str
    """The compiler of a native or generated step; empty for other steps."""
    step_kind: str
    """The kind of optimizer step: `native AVX2`, `traced AVX512`, `traced cuda 9.0`."""
    sources: tuple[tuple[str, str], ...]
    """The trial's plug-ins with the SHA-256 of their source, (`averaging bema`,
    `9f86d081884c7d65`), and its files and folders with that of their content, (`data pairs.npz`,
    `2c26b46b68ffc68f`); sorted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The metrics of one trial at one step, and whether its worker trains it further."""

    number: int
    step: int
    metrics: tuple[Metric, ...]
    state: Literal["running", "finished", "diverged", "failed"] = "running"
    error: str | None = None
    """Why the trial diverged or failed; None otherwise."""
    splines: tuple[LearnedSpline, ...] = ()
    """The learned non-linearities of a trial that finished; empty for other reports."""
    fence: int = 0
    """The fence of the start that it comes from."""
    fingerprint: Fingerprint | None = None
    """The conditions that determined its numbers; None if no step was made."""
    sealed: tuple[Metric, ...] = ()
    """Metrics of a `tested` trial on its test sets; only the store reads them, and seals them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A worker's offer of free lanes. `structure` None: an empty device takes any structure."""

    worker: str
    lanes: int
    structure: str | None = None
    common: tuple[str, ...] = ()
    """Structures that its device trains for other studies: trials of these join and cost least."""
    is_beside: bool = False
    """True if other workers train on its device: while empty, it takes no structure of theirs."""
    host: str = ""
    device: str = ""
    steps: int = 0
    """Optimizer steps since the worker's last offer, summed over lanes."""
    room: int = 0
    """The number that `steps` would be if no lane had been free: `steps / room` is lane utilisation."""
    holds: tuple[TrialStart, ...] = ()
    """The trials that it trains now; others that it was given and that did not end are requeued."""
    surplus: int = 0
    """Lanes that the study fills beyond its share: so many lanes of stopped trials are not refilled."""
    log: str = ""
    """Path of the worker's log file."""
    saved: tuple[Checkpoint, ...] = ()
    """Checkpoints since its last offer, at its lanes' steps; no report of the call is later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Directives:
    """The controller's answer to an offer: trials to stop, and trials to start in free lanes."""

    stop: tuple[int, ...] = ()
    start: tuple[Trial, ...] = ()
    done: bool = False
    """True when the study will never need this worker again."""
    lease_lost: bool = False
    """True when the lease has expired: the worker drops all trials and restarts as a new one."""
    save: bool = False
    """True before a dismissal: the worker writes a checkpoint, if it can, and exchanges at once."""
    waiting_per_running: float = 0.0
    """Waiting trials per running one; a worker widens its packs only when many wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """The end of a trial, as the controller decides it; written before anyone acts on it."""

    number: int
    state: State
    objective: float | None
    error: str | None = None
    fence: int = 0
    """The fence of the start that ended."""
    second_objective: float | None = None
    constraints: Constraints | None = None
    """None if the space has no constraints, or if the trial has no validation to rate them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A trial as a sampler sees it; `objective` is None if it diverged, failed or did not end."""

    number: int
    group: int
    draws: Draws
    objective: float | None
    state: State
    splines: tuple[LearnedSpline, ...] = ()
    second_objective: float | None = None
    constraints: Constraints | None = None

    @classmethod
    def of_open(cls, trial: Trial) -> Self:
        """Return the outcome of a trial that has not ended."""
        return cls(number=trial.number, group=trial.group, draws=trial.draws, objective=None, state="queued")

    @property
    def feasible(self) -> bool:
        """True if it is not known to break a constraint."""
        return is_feasible(self.constraints)


class WorkerStatus(NamedTuple):
    """The last known status of a worker that is alive or was dismissed."""

    worker: str
    host: str
    device: str
    log: str
    state: Literal["running", "done"]
    steps: int
    """Optimizer steps since it started, summed over its lanes."""
    room: int
    """The `steps` without a free lane."""
    seconds: float
    """Seconds since it was last seen."""


class QueuedTrial(NamedTuple):
    """A trial that was started before and is in the queue again."""

    number: int
    crashes: int = 0
    """Crashes of workers that were training it, since its last checkpoint."""
    checkpoints: tuple[Checkpoint, ...] = ()
    """Checkpoints from which it can resume, the newest first."""
