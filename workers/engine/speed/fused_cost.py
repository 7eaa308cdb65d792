"""What a fused step of a layered transformer costs on a GPU: an estimate from the kernel's loops, which none confirmed.

Legend: N sequences, s positions, d width, f hidden channels, v tokens, P parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workers.engine.fused.layered import arrange, sizes_of
from workers.engine.fused.memory import Workspace
from workers.engine.speed.cost import BANDWIDTH_SHARE, Gpu
from workers.training.recipe import Recipe

PRODUCT_INSTRUCTIONS, ATTENTION_INSTRUCTIONS = 2.4, 5.7
"""Of a thread for each multiplication and addition, in the loops that NVRTC 13.5 makes for sm_90: of products in tiles
of 4 by 4 (149 for 64), and of attention's sums (371 for 64)."""
ENTRY_INSTRUCTIONS = 25
"""Of a thread for each number that is normed, activated, added or dropped, about."""
ISSUE_SHARE = 0.4
"""What of its instructions a multiprocessor is taken to issue, as threads wait for memory and for one another."""
_PASSES = 4
"""What is in scratch memory is written once and read three times, about."""
_UPDATE_BYTES = 44
"""Read and written of a parameter, its gradient and its two moments; 16 more for each average."""


@dataclass(frozen=True, kw_only=True)
class FusedCost:
    """One optimizer step of one lane."""

    multiplications: float
    """And additions, in products and attention."""
    instructions: float
    """Of threads."""
    update_bytes: float
    """Between the GPU's memory and its multiprocessors, whatever a cache holds."""
    scratch_bytes: float
    """The same of what does not fit into shared memory, unless a cache holds it."""
    workspace: Workspace

    def lanes_at_once(self, gpu: Gpu) -> int:
        """Return two on each multiprocessor."""
        return 2 * gpu.multiprocessors

    def rate(self, gpu: Gpu) -> float:
        """Model-steps per second, with as many lanes as there is room for."""
        held = 4 * self.workspace.scratch_floats * self.lanes_at_once(gpu) <= gpu.cache
        moved = self.update_bytes + (0 if held else self.scratch_bytes)
        computing = ISSUE_SHARE * gpu.instructions / self.instructions
        return min(computing, BANDWIDTH_SHARE * gpu.bandwidth / moved)


def count_fused_step(recipe: Recipe, gpu: Gpu) -> FusedCost | None:
    """Return the cost of a step; None where its arrays do not fit. There is no obstacle, and nothing is trained."""
    workspace = arrange(recipe, gpu.limits)
    if workspace is None:
        return None
    sizes = sizes_of(recipe)
    d, f, layers, averages = sizes.width, sizes.hidden, sizes.depth, len(recipe.averaging.start(torch.zeros(1)))
    rows = sizes.batch * sizes.length
    loss_rows = _count_loss_rows(recipe)
    ends = (layers - 1) * rows + loss_rows  # of all layers: the last one ends with the rows that carry loss
    forward = 2 * d * d * (layers * rows + ends) + (1 + sizes.gates) * d * f * ends + loss_rows * d * sizes.outputs
    seen = ends * (sizes.length + 1) / 2
    entries = 30 * d * (layers * rows + ends) / 2 + 4 * sizes.gates * f * ends + 3 * sizes.outputs * loss_rows
    entries += 3 * sizes.parameters
    products, attention = 3 * forward, 6 * seen * d
    return FusedCost(
        multiplications=products + attention,
        instructions=PRODUCT_INSTRUCTIONS * products
        + ATTENTION_INSTRUCTIONS * attention
        + ENTRY_INSTRUCTIONS * entries,
        update_bytes=(_UPDATE_BYTES + 16 * averages) * sizes.parameters,
        scratch_bytes=4 * _PASSES * workspace.scratch_floats * sizes.batch / workspace.sequences,
        workspace=workspace,
    )


def _count_loss_rows(recipe: Recipe) -> int:
    """Count the rows that carry loss in a batch of one lane."""
    none = torch.zeros(1, dtype=torch.int64)
    batch = recipe.learning.training(recipe.task, none, recipe.training.batch, none)
    _, weights = recipe.task.position_targets(batch, recipe.dtype)
    return int(weights.count_nonzero())
