"""What a GPU that is not here would take for a study, estimated from the step (`workers.engine.speed.cost`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spaces.errors import StudyError

if TYPE_CHECKING:
    from spaces.records import Trial

LANES = 128
"""Of the pack whose kernels are listed: what they do is in proportion to its lanes."""


def describe_gpu_estimate(trial: Trial, device: str) -> Iterator[str]:
    """A line for a single trial, and one for the width that a search would find: rate, kernels, and what bounds it.

    Raises StudyError for a task whose data cannot be drawn without numbers.
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
