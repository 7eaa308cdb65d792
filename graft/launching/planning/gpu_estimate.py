"""An estimate of a study on a GPU that is not here, from its step (`workers.engine.speed.cost`)."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from spaces.errors import StudyError
from spaces.experiment import ARM
from spaces.messages import shorten
from spaces.settings import list_leaves
from spaces.transfer import TransferSpace

if TYPE_CHECKING:
    from spaces.records import Trial
    from spaces.space import Space
    from workers.engine.speed.cost import Gpu
    from workers.engine.speed.fused_cost import FusedCost

LANES = 128
"""Lanes of the pack whose kernels are listed; their work is in proportion to the lanes."""
DRAWN = 1_000
"""The most trials that are drawn to see which structures a study has."""
COUNTED, COUNTED_OF_TRANSFER = 6, 32
"""The most structures whose kernels are listed, which takes a second or two each."""
_NAMED = 4
"""Arms, and parts of a structure, that tell it from the others."""


@dataclass(frozen=True, kw_only=True)
class TracedRate:
    """The rate of packs of one width by the traced step; bytes and flops are per lane and step."""

    lanes: int
    model_steps_per_second: float
    kernels: int
    bytes: float
    flops: float
    launch_share: float
    """The share of the time that is spent in kernels shorter than `LAUNCH_SECONDS`."""
    occupancy: float

    def __str__(self) -> str:
        return (
            f"{self.lanes:,} lanes: {self.model_steps_per_second:,.0f} model-steps/s (an estimate, not measured); "
            f"{self.kernels:,} kernels a step, {self.bytes / 1e6:.3g} MB and {self.flops / 1e6:.3g} MFLOP a lane, "
            f"{self.launch_share:.0%} of the time bound by launches, occupancy {self.occupancy:.0%}"
        )


@dataclass(frozen=True, kw_only=True)
class StructureEstimate:
    """An estimate for the trials of one structure."""

    name: str
    """The parts that differ from the other structures; empty if there is only one structure."""
    trials: int
    """Trials of the study with this structure, by a sample of its draws."""
    model_steps: float
    """Steps of all these trials together."""
    narrowest: TracedRate
    best: TracedRate
    """The rate at the width that a search for widths would find."""
    used: TracedRate
    """The rate at that width, or at the width that these trials fill if they are fewer."""
    fused: str
    """The rate of the fused step in words, or why there is none."""
    fused_rate: float | None
    """Model-steps per second of a pack that these trials fill; None without a fused step."""
    full_rate: float
    """Model-steps per second of the whole GPU, by the faster step, if enough lanes fill it."""
    blocks: int | None
    """The most blocks (one a lane) of the fused step that run at once; None without one."""

    @property
    def step(self) -> str:
        """The step that is estimated to be faster for these trials."""
        return "fused" if (self.fused_rate or 0) > self.used.model_steps_per_second else "traced"

    @property
    def model_steps_per_second(self) -> float:
        """The rate of that step."""
        return max(self.fused_rate or 0, self.used.model_steps_per_second)

    @property
    def seconds(self) -> float:
        """Seconds that one GPU takes for all of them."""
        return self.model_steps / self.model_steps_per_second

    @property
    def lanes(self) -> int:
        """The lanes of a pack."""
        return min(self.trials, self.blocks) if self.step == "fused" and self.blocks else self.used.lanes

    @property
    def filled(self) -> float:
        """The share of the GPU's blocks (traced step: threads) that a pack uses."""
        return self.lanes / self.blocks if self.step == "fused" and self.blocks else self.used.occupancy


@dataclass(frozen=True, kw_only=True)
class GpuEstimate:
    """An estimate for a whole study."""

    device: str
    counted: Sequence[StructureEstimate]
    """The structures whose step was looked at."""
    structures: int
    """The number of structures that were drawn."""
    model_steps: float
    packs: int
    """The number of packs that train side by side; each has a structure of its own."""

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that one GPU takes for the study, at the least and at the most.

        Other structures are assumed to be as fast as the fastest counted one, or as the slowest.
        Each pack is as fast as alone, until together they do what a full GPU does.
        """
        known = sum(structure.seconds for structure in self.counted)
        rest = max(self.model_steps - sum(structure.model_steps for structure in self.counted), 0.0)
        rates = [structure.model_steps_per_second for structure in self.counted]
        full = sum(structure.model_steps / structure.full_rate for structure in self.counted) / known
        share, longest = max(1 / self.packs, full), max(structure.seconds for structure in self.counted)
        low, high = (max((known + rest / rate) * share, longest) for rate in (max(rates), min(rates)))
        return low, high

    @property
    def filled(self) -> float:
        """The share of the GPU that the packs use together."""
        return min(1.0, self.packs * sum(structure.filled for structure in self.counted) / len(self.counted))


def estimate_gpu(
    space: Space, device: str, show: Callable[[str], None] = lambda _: None, packs: int | None = None
) -> GpuEstimate:
    """Estimate a study of this space on a GPU, without training anything.

    `show` is called with a line about each structure. `packs` train side by side; with None, as
    many as in a launch. Raises StudyError for a task whose data cannot be drawn without numbers.
    """
    from workers.engine.machine.memory import least_bytes
    from workers.engine.machine.side_by_side import PACKS

    groups = _draw_structures(space)
    drawn = sum(map(len, groups))
    planned = space.search.trials
    names = _name_structures(groups)
    most = COUNTED_OF_TRANSFER if isinstance(space, TransferSpace) else COUNTED
    chosen = list(range(len(groups)))
    if len(groups) > most:  # some from the smallest to the largest, by what a trial of each keeps
        chosen.sort(key=lambda index: least_bytes(groups[index][0].config))
        chosen = [chosen[position * (len(groups) - 1) // (most - 1)] for position in range(most)]
    counted: list[StructureEstimate] = []
    for index in chosen:
        show(f"counting the kernels of structure {len(counted) + 1} of {len(chosen)}")
        trials = max(round(planned * len(groups[index]) / drawn), 1)
        counted.append(_estimate_structure(groups[index], names[index], trials, device))
    steps = sum(_steps_of(trial) for group in groups for trial in group)
    return GpuEstimate(
        device=device,
        counted=counted,
        structures=len(groups),
        model_steps=planned * steps / drawn,
        packs=min(packs or PACKS, len(groups)),
    )


def estimated_as(device: str) -> str | None:
    """Return the name in `GPUS` of a device of this machine; None for a CPU or an unknown GPU."""
    from workers.engine.machine.devices import device_name
    from workers.engine.speed.cost import GPUS

    name = device_name(device).lower() if device.partition(":")[0] == "cuda" else ""
    return next((gpu for gpu in GPUS if gpu in name), None)


def describe_gpu_estimate(estimate: GpuEstimate) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line of an estimate, for people."""
    from graft.launching.progress_text import duration

    if len(estimate.counted) == 1:
        [structure] = estimate.counted
        for rate in dict.fromkeys((structure.narrowest, structure.best)):
            yield estimate.device, f"traced step, {rate}"
        yield estimate.device, structure.fused
        yield estimate.device, f"{structure.trials:,} trials {_describe_choice(structure)}"
    else:
        for structure in estimate.counted:
            yield (
                estimate.device,
                f"{structure.name}, {structure.trials:,} trials {_describe_choice(structure)}; "
                f"{structure.used}; {structure.fused}",
            )
    left = estimate.structures - len(estimate.counted)
    if left:
        yield "", f"and {left:,} more structures, taken to be as fast as these"
    yield estimate.device, describe_filling(estimate)
    short, long = (duration(seconds) for seconds in estimate.seconds)
    span = short if short == long else f"{short} to {long}"
    slow, fast = (f"{estimate.model_steps / seconds:,.0f}" for seconds in reversed(estimate.seconds))
    rate = f"{fast if slow == fast else f'{slow} to {fast}'} model-steps/s in all"
    yield "time", f"{span} on one {estimate.device}, {rate}, if every trial trains to its end (an estimate)"


def describe_filling(estimate: GpuEstimate) -> str:
    """Return how many lanes and packs train at once, and how much of the GPU they fill."""
    lanes = sorted(structure.lanes for structure in estimate.counted)
    span = f"{lanes[0]:,} to {lanes[-1]:,}" if lanes[0] < lanes[-1] else f"{lanes[0]:,}"
    packs = (
        f"{estimate.packs} packs of {span} lanes side by side" if estimate.packs > 1 else f"one pack of {span} lanes"
    )
    blocks = {structure.blocks if structure.step == "fused" else None for structure in estimate.counted}
    [held] = blocks if len(blocks) == 1 else [None]
    of_what = f"its {held:,} blocks" if held else "the GPU"
    return f"{packs}: {estimate.filled:.0%} of {of_what} at work (an estimate, not measured)"


def _describe_choice(structure: StructureEstimate) -> str:
    return f"by the {structure.step} step: {structure.model_steps_per_second:,.0f} model-steps/s"


def describe_structure(structure: StructureEstimate) -> dict[str, Any]:
    """Return the fields and the properties of a structure's estimate, as JSON shows them."""
    computed = ("step", "lanes", "filled", "model_steps_per_second", "seconds")
    return asdict(structure) | {name: getattr(structure, name) for name in computed}


def _draw_structures(space: Space) -> list[list[Trial]]:
    """Draw trials at random, spread evenly over the study, and group them by structure."""
    planned = space.search.trials
    drawn = min(planned, DRAWN)
    uniform = random.Random(0).random
    shared: dict[tuple[int, str], float] = {}
    groups: defaultdict[str, list[Trial]] = defaultdict(list)
    of_groups = {draw.name for draw in space.group_draws}
    for index in range(drawn):
        number = index * planned // drawn
        group = number // space.search.group
        trial = space.sample(
            number,
            lambda draw, group=group: (
                shared.setdefault((group, draw.name), uniform()) if draw.name in of_groups else uniform()
            ),
        )
        groups[trial.structure].append(trial)
    return list(groups.values())


def _steps_of(trial: Trial) -> int:
    return trial.config["training"]["steps"]


def _name_structures(groups: Sequence[Sequence[Trial]]) -> list[str]:
    """Name each structure by its task, its arms, and a few parts in which the structures differ."""
    leaves = [list_leaves(json.loads(group[0].structure)) for group in groups]
    parts = [{path: shorten(str(value)) for path, value in pairs} for pairs in leaves]
    paths = dict.fromkeys(path for part in parts for path in part if path != "task.name")
    telling = [path for path in paths if len({part.get(path) for part in parts}) > 1]
    telling.sort(key=lambda path: any(path not in part for part in parts))  # paths of all structures first
    names: list[str] = []
    for group, part in zip(groups, parts, strict=True):
        arms = dict.fromkeys(str(trial.params[ARM]) for trial in group if ARM in trial.params)
        values = [f"{path} {part[path]}" for path in telling if path in part]
        names.append(", ".join([group[0].config["task"]["name"], *arms, *values][: 1 + _NAMED]))
    return names


def _estimate_structure(group: Sequence[Trial], name: str, trials: int, device: str) -> StructureEstimate:
    from workers.engine.machine.memory import estimate_lane_bytes
    from workers.engine.speed.cost import GPUS, StepCost, count_step, estimate_rates
    from workers.engine.speed.widths import knee

    gpu, trial = GPUS[device], group[0]
    try:
        counted = count_step(trial, LANES)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise StudyError(f"--device {device}: the steps of this space cannot be counted: {reason}") from error

    def rate_of(lanes: int) -> TracedRate:
        cost: StepCost = counted.of_lanes(lanes)
        return TracedRate(
            lanes=lanes,
            model_steps_per_second=lanes / cost.seconds(gpu),
            kernels=len(cost.kernels),
            bytes=cost.bytes / lanes,
            flops=cost.flops / lanes,
            launch_share=cost.launch_share(gpu),
            occupancy=cost.occupancy(gpu),
        )

    rates = estimate_rates(counted, gpu, estimate_lane_bytes(trial.config))
    best = knee(rates)
    used = rate_of(min(best, trials))
    fused, cost = _estimate_fused(trial, gpu, trials)
    full_rate = max([*rates.values(), used.model_steps_per_second])
    return StructureEstimate(
        name=name,
        trials=trials,
        model_steps=trials * sum(map(_steps_of, group)) / len(group),
        narrowest=rate_of(min(rates, default=2)),
        best=rate_of(best),
        used=used,
        fused=fused,
        fused_rate=cost and cost.rate(gpu, min(trials, cost.lanes_at_once(gpu))),
        full_rate=max(full_rate, cost.rate(gpu)) if cost else full_rate,
        blocks=cost and cost.lanes_at_once(gpu),
    )


def _estimate_fused(trial: Trial, gpu: Gpu, lanes: int) -> tuple[str, FusedCost | None]:
    """Describe the fused step of at most `lanes` lanes, or its obstacle; return its cost, too."""
    from workers.engine.fused.step import find_obstacle
    from workers.engine.speed.fused_cost import count_fused_step
    from workers.training.recipe import Recipe

    recipe = Recipe.of(trial.config).pad()
    if reason := find_obstacle(recipe):
        return f"no fused step: {reason}", None
    cost = count_fused_step(recipe, gpu)
    if cost is None:
        return "no fused step: its arrays do not fit into the GPU's shared memory", None
    room = cost.lanes_at_once(gpu)
    lanes = min(lanes, room)
    rate, full = cost.rate(gpu, lanes), cost.rate(gpu)
    idle = f", which leave {1 - lanes / room:.0%} of the GPU idle" if lanes < room else ""
    said = (
        f"fused step, {lanes:,} lanes{idle}: {rate:,.0f} model-steps/s, and {full:,.0f} with {room:,} lanes "
        f"(an estimate, not measured); {2 * cost.multiplications / 1e6:.3g} MFLOP and {cost.phases:,} phases a lane, "
        f"{cost.workspace.shared_bytes / 1024:.0f} KB in shared memory, "
        f"{4 * cost.workspace.scratch_floats / 1024:.0f} KB in the GPU's own"
    )
    return said, cost
