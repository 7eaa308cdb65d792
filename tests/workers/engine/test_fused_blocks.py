"""Blocks of a fused step that train several lanes in turn, and instructions of its loops; no GPU is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.emulated_gpu import CPU, HOPPER, emulated_step
from tests.support.machine_code import compiled_for, count, loops_of, say
from tests.support.trials import config
from workers.engine.fused.plan import Limits, Plan
from workers.engine.fused_check import _start
from workers.engine.machine.process import flush_subnormals
from workers.numerics import native
from workers.numerics.cuda import minimal
from workers.numerics.tracing import tree_leaves
from workers.training.recipe import Recipe


@pytest.mark.long
@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
def test_a_block_trains_lane_after_lane_in_memory_of_its_own() -> None:
    """Seven lanes by three blocks, to the bit as by seven: no lane reads what the one before left in scratch memory."""
    recipe, limits = Recipe.of(config(dtype="float32", batch=6)), Limits(16 << 10, 8 << 10)
    states: list[list[torch.Tensor]] = []
    plans: list[int] = []
    for blocks in (7, 3):
        step = emulated_step(recipe, limits=limits)
        assert step.workspace.scratch_floats > 0
        step.most_blocks, launch = blocks, step.launch

        def noted(workspace: Any, plan: Plan, launch: Any = launch) -> None:
            plans.append(plan.blocks)
            launch(workspace, plan)

        step.launch = noted
        knobs, seeds, state = _start(recipe, 7, CPU)
        with flush_subnormals():
            states.append(tree_leaves(step.advance(knobs, seeds, state, 3)[0]))
    assert plans == [7, 3]
    assert all(torch.equal(leaf, other) for leaf, other in zip(*states, strict=True))
    assert not torch.equal(states[0][0][0], states[0][0][6])


@pytest.mark.fast
def test_two_blocks_are_at_once_where_their_shared_memory_allows_it() -> None:
    assert [HOPPER.blocks_at_once(kilobytes << 10) for kilobytes in (1, 113, 114, 227)] == [2, 2, 1, 1]


@pytest.mark.long
def test_the_loop_that_multiplies_has_no_more_instructions(tmp_path: Path) -> None:
    """Of the loop over tiles of four by four, four terms at a time: 64 multiplications, 32 loads.

    The same with NVRTC 13.0, which torch brings along, and 13.5. Addresses of 64 bits would be 187.
    """
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled_for("sm_90", minimal.options(weights_in_shared=True)))
    text = say("nvdisasm", "-c", file)
    [loop] = [instructions for instructions in loops_of(text) if count(instructions, "FFMA") == 64]
    assert len(loop) <= 131
    assert count(loop, "LDS") == 32
