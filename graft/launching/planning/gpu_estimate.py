"""What a GPU that is not here would take for a study, estimated from the step (`workers.engine.speed.cost`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spaces.errors import StudyError

if TYPE_CHECKING:
    from spaces.records import Trial
    from workers.engine.speed.cost import Gpu

LANES = 128
"""Of the pack whose kernels are listed: what they do is in proportion to its lanes."""


def describe_gpu_estimate(trial: Trial, device: str) -> Iterator[str]:
    """A line for a single trial, and one for the width that a search would find: rate, kernels, and what bounds it.

    A third one is of the fused step, or says why there is none. Raises StudyError for a task whose data cannot be
    drawn without numbers.
    """
    from workers.engine.machine.memory import estimate_lane_bytes
    from workers.engine.speed.cost import GPUS, count_step, estimate_rates
    from workers.engine.speed.widths import knee

    gpu = GPUS[device]
    try:
        counted = count_step(trial, LANES)
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise StudyError(f"--device {device}: the steps of this space cannot be counted: {reason}") from error
    rates = estimate_rates(counted, gpu, estimate_lane_bytes(trial.config))
    for lanes in dict.fromkeys((min(rates, default=2), knee(rates))):
        cost = counted.of_lanes(lanes)
        rate = lanes / cost.seconds(gpu)
        yield (
            f"{lanes:,} lanes: {rate:,.0f} model-steps/s (an estimate, not measured); {len(cost.kernels):,} kernels a "
            f"step, {cost.bytes / lanes / 1e6:.3g} MB and {cost.flops / lanes / 1e6:.3g} MFLOP a lane, "
            f"{cost.launch_share(gpu):.0%} of the time bound by launches, occupancy {cost.occupancy(gpu):.0%}"
        )
    yield _describe_fused(trial, gpu)


def _describe_fused(trial: Trial, gpu: Gpu) -> str:
    from workers.engine.fused.kernels import kernel_for, name_of_kernel
    from workers.engine.speed.fused_cost import count_fused_step
    from workers.training.recipe import Recipe

    recipe = Recipe.of(trial.config).pad()
    if reason := kernel_for(recipe).find_obstacle(recipe):
        return f"no fused step: {reason}"
    if name_of_kernel(recipe) != "layered":
        return "a fused step of its own, which BENCHMARKS.md estimates"
    cost = count_fused_step(recipe, gpu)
    if cost is None:
        return "no fused step: its arrays do not fit into the GPU's shared memory"
    return (
        f"fused step, {cost.lanes_at_once(gpu):,} lanes: {cost.rate(gpu):,.0f} model-steps/s (an estimate, not "
        f"measured), without the drawing of data; {2 * cost.multiplications / 1e6:.3g} MFLOP a lane, "
        f"{cost.workspace.shared_bytes / 1024:.0f} KB of it in shared memory, "
        f"{4 * cost.workspace.scratch_floats / 1024:.0f} KB in the GPU's own"
    )
