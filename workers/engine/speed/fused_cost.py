"""An estimate of what a fused step costs on a GPU, made from the loops of its kernel.

Two blocks share a multiprocessor. Their instructions take slots to issue, and at each phase's end a
block waits for its slowest thread: both times are added up. The emulator counts these phases, too.
Legend: s positions, d width, v tokens, k key width, u value width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from workers.data.tasks.set_complement import SetComplement
from workers.engine.fused.plan import Workspace
from workers.engine.fused.step import arrange
from workers.engine.speed.cost import BANDWIDTH_SHARE, Gpu
from workers.networks.models.minimal import Minimal
from workers.training.recipe import Recipe, layout_of

PRODUCT_INSTRUCTIONS, ATTENTION_INSTRUCTIONS = 2.1, 4.4
"""A thread's instructions for a multiplication and addition in NVRTC's loops for sm_90: in products
by tiles of 4 by 4 (131 for 64), and in attention's sums.
"""
ENTRY_INSTRUCTIONS = 25
"""A thread's instructions, about, for each number that is normed, added or dropped."""
ISSUE_SHARE = 0.4
"""Share of its instructions that a multiprocessor issues, as threads wait for memory and others."""
PHASE_CYCLES = 1300
"""Cycles, about, that a block waits at a phase's end: 309 phases of the minimal transformer (v =
17, s = 8, d = 32) have a longest chain of 414,000 cycles, by the latencies in its machine code.
"""
_PASSES = 4
"""Scratch memory is written once and read three times, about."""
_UPDATE_BYTES = 44
"""Bytes moved per parameter with its gradient and two moments; 16 more for each average."""


@dataclass(frozen=True, kw_only=True)
class FusedCost:
    """One optimizer step of one lane."""

    multiplications: float
    """Multiplications with additions, in products and attention."""
    instructions: float
    """Instructions of threads."""
    phases: int
    """Meetings of a block's threads."""
    update_bytes: float
    """Bytes between the GPU's memory and its multiprocessors, whatever a cache holds."""
    scratch_bytes: float
    """The same of arrays outside shared memory, unless a cache holds them."""
    workspace: Workspace

    def lanes_at_once(self, gpu: Gpu) -> int:
        """Return how many blocks, of a lane each, the GPU holds."""
        return gpu.limits.blocks_at_once(self.workspace.shared_bytes) * gpu.multiprocessors

    def rate(self, gpu: Gpu, lanes: int | None = None) -> float:
        """Return model-steps per second of packs of so many lanes; None: as many as fit."""
        room = self.lanes_at_once(gpu)
        # A few lanes more than the GPU holds take two turns, as the last ones wait for a block.
        lanes = lanes or room
        turns, at_once = -(-lanes // room), min(lanes, room)
        held = 4 * self.workspace.scratch_floats * at_once <= gpu.cache
        moved = self.update_bytes + (0 if held else self.scratch_bytes)
        a_multiprocessor = -(-at_once // gpu.multiprocessors)
        issued = a_multiprocessor * self.instructions * gpu.multiprocessors / (ISSUE_SHARE * gpu.instructions)
        waited = self.phases * PHASE_CYCLES * 128 * gpu.multiprocessors / gpu.instructions
        seconds = max(issued + waited, at_once * moved / (BANDWIDTH_SHARE * gpu.bandwidth))
        return lanes / (turns * seconds)


def count_fused_step(recipe: Recipe, gpu: Gpu) -> FusedCost | None:
    """Return the cost of a step; None if its arrays do not fit. The recipe has no obstacle."""
    workspace = arrange(recipe, gpu.limits)
    if workspace is None:
        return None
    model, task, batch = recipe.model, recipe.task, recipe.training.batch
    assert isinstance(model, Minimal) and isinstance(task, SetComplement), "there is no obstacle"  # noqa: PT018
    s, v, d, k, u = task.length, task.vocabulary, model.width, model.key_width, model.value_width
    rows, seen, parameters = batch * s, batch * s * (s + 1) / 2, layout_of(recipe, "meta").total
    blocks = -(-batch // workspace.sequences)
    occurrences = bool(model.embedding_dropout) and model.dropout_unit == "occurrence"
    drops_rows = bool(model.residual_dropout) and model.dropout_unit == "occurrence"
    mapped = rows if occurrences else v  # each position, or each token once, is mapped
    maps = 3 * mapped * (2 * d * k + d * d) + 3 * d * d * u + (0 if occurrences else 3 * v * v * k)
    products, attention = 3 * rows * v * d + maps, 3 * seen * (d + (k if occurrences else 0))
    entries = rows * (3 * d + 2 * s + 2 * v / s + 4) + blocks * v * (d + (0 if occurrences else v)) + 4 * parameters
    entries += rows * (2 * d + 2 * k) * occurrences + rows * 2 * d * drops_rows
    phases = 50 + blocks * (31 if occurrences else 16) + 3 * blocks * drops_rows + (0 if occurrences else 19)
    return FusedCost(
        multiplications=products + attention,
        instructions=PRODUCT_INSTRUCTIONS * products
        + ATTENTION_INSTRUCTIONS * attention
        + ENTRY_INSTRUCTIONS * entries,
        phases=phases,
        update_bytes=(_UPDATE_BYTES + 16 * len(recipe.averaging.start(torch.zeros(1)))) * parameters,
        scratch_bytes=4 * _PASSES * workspace.scratch_floats,
        workspace=workspace,
    )
