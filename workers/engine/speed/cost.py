"""An estimate of what a training step costs on a GPU, made from the code of the step itself.

The traced step runs on tensors without numbers, and its kernels are listed with what they read,
write and compute. A kernel takes the longest of three times: to be launched, to move its bytes, to
make its FLOPs (the roofline; Williams, Waterman and Patterson 2009), one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from spaces.records import Trial
from workers.engine.fused.plan import Limits
from workers.engine.pack.lane_data import draw_training_batches
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.speed.operations import Kernel, KernelList
from workers.engine.speed.widths import FREE_SHARE, WIDEST, next_width
from workers.engine.step import TracedStep
from workers.training.recipe import Recipe, layout_of


class Gpu(NamedTuple):
    """A GPU by its maker's data."""

    name: str
    multiprocessors: int
    threads: int
    """Threads that a multiprocessor holds."""
    flops: float
    """FLOPs per second, float32 without tensor cores."""
    bandwidth: float
    """Bytes per second."""
    memory: float
    """Bytes."""
    instructions: float
    """Threads' instructions per second: 128 a multiprocessor and cycle, at the boost clock."""
    cache: float
    """Bytes of the second level."""
    limits: Limits
    """The limits of shared memory."""


GPUS: Mapping[str, Gpu] = {
    "a100": Gpu("A100 (SXM, 80 GB)", 108, 2048, 19.5e12, 2.039e12, 80e9, 1.95e13, 40e6, Limits(164 << 10, 163 << 10)),
    "h100": Gpu("H100 (SXM)", 132, 2048, 67e12, 3.35e12, 80e9, 3.35e13, 50e6, Limits(228 << 10, 227 << 10)),
    "h200": Gpu("H200 (SXM)", 132, 2048, 67e12, 4.8e12, 141e9, 3.35e13, 60e6, Limits(228 << 10, 227 << 10)),
    "4090": Gpu("RTX 4090", 128, 1536, 82.6e12, 1.008e12, 24e9, 4.13e13, 72e6, Limits(100 << 10, 99 << 10)),
}
"""Source: NVIDIA's data sheets of the A100, H100, H200 and the Ada architecture; shared memory: the
CUDA C++ Programming Guide, "Compute Capabilities".
"""
LAUNCH_SECONDS = 8e-6
"""The least time of a kernel, however little it computes."""
BANDWIDTH_SHARE, FLOPS_SHARE = 0.25, 0.5
"""The shares of memory bandwidth and FLOPs per second that our kernels are taken to reach.

These three fit what an H200 trained of six structures at 32 to 4,096 lanes: an estimate lies
between .54 and 1.9 of the measured rate (docs/log/gpu.md).
"""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """One optimizer step of a pack: its data, its dropout and its update."""

    lanes: int
    kernels: Sequence[Kernel]

    @property
    def bytes(self) -> int:
        """The bytes read and written."""
        return sum(kernel.bytes for kernel in self.kernels)

    @property
    def flops(self) -> int:
        """The FLOPs of all kernels."""
        return sum(kernel.flops for kernel in self.kernels)

    def of_lanes(self, lanes: int) -> StepCost:
        """Estimate the cost of another number of lanes, to which kernels are in proportion."""
        share = lanes / self.lanes
        kernels = [Kernel(kernel[0], *(int(n * share) for n in kernel[1:])) for kernel in self.kernels]
        return StepCost(lanes=lanes, kernels=kernels)

    def seconds(self, gpu: Gpu) -> float:
        """Estimate the seconds that the step takes on a GPU."""
        return sum(_seconds(kernel, gpu) for kernel in self.kernels)

    def launch_share(self, gpu: Gpu) -> float:
        """Return the share of that time in kernels no longer than `LAUNCH_SECONDS`."""
        bound = (kernel for kernel in self.kernels if _seconds(kernel, gpu) <= LAUNCH_SECONDS)
        return sum(_seconds(kernel, gpu) for kernel in bound) / self.seconds(gpu)

    def occupancy(self, gpu: Gpu) -> float:
        """Return the share of the GPU's threads that have numbers, averaged over the time."""
        room = gpu.multiprocessors * gpu.threads
        filled = sum(_seconds(kernel, gpu) * min(1.0, kernel.size / room) for kernel in self.kernels)
        return filled / self.seconds(gpu)


def estimate_rates(cost: StepCost, gpu: Gpu, lane_bytes: int) -> dict[int, float]:
    """Return width of a pack -> model-steps per second, for the powers of two of a search.

    Until doubling twice gains less than 5 %, or memory ends (`workers.engine.speed.widths`).
    """
    rates: dict[int, float] = {}
    most = min(WIDEST, int(FREE_SHARE * gpu.memory // lane_bytes))
    while width := next_width(rates, most):
        rates[width] = width / cost.of_lanes(width).seconds(gpu)
    return rates


def _seconds(kernel: Kernel, gpu: Gpu) -> float:
    moving = kernel.bytes / (BANDWIDTH_SHARE * gpu.bandwidth)
    return max(LAUNCH_SECONDS, moving, kernel.flops / (FLOPS_SHARE * gpu.flops))


def count_step(trial: Trial, lanes: int) -> StepCost:
    """Return the cost of a step of so many lanes of this trial's structure; nothing is trained.

    Raises RuntimeError or NotImplementedError if data depend on numbers (Othello without a pool).
    """
    device = torch.device("meta")  # of shapes without numbers: operations cost nothing
    recipe = Recipe.of(trial.config).pad()
    step = TracedStep(recipe, trial.structure, device)
    tensors = LaneTensors.of_copies(trial, recipe, layout_of(recipe, device), lanes, device)

    def arguments() -> tuple[Any, ...]:
        [batch] = draw_training_batches(recipe, [None] * lanes, tensors)
        return tensors.knobs, tensors.seeds, tensors.state, batch

    advance = step.unscripted(*arguments())
    with KernelList(device) as listed:
        advance(*arguments())
    return StepCost(lanes=lanes, kernels=listed.kernels)
