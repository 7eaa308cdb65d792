"""Blocks of a fused step that train several lanes in turn, and instructions of its loops; no GPU is needed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.emulated_gpu import CPU, HOPPER, emulated_step
from tests.support.trials import config
from workers.engine.fused.plan import Limits, Plan
from workers.engine.fused_check import _start
from workers.engine.machine.process import flush_subnormals
from workers.numerics import native
from workers.numerics.cuda import compiler, minimal
from workers.numerics.tracing import tree_leaves
from workers.training.recipe import Recipe


@pytest.mark.long
@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
def test_a_block_trains_lane_after_lane_in_memory_of_its_own() -> None:
    """Seven lanes by three blocks, to the bit as by seven: no lane reads what the one before left in scratch memory."""
    recipe, limits = Recipe.of(config(dtype="float32", batch=6)), Limits(16 << 10, 8 << 10)
    found: list[list[torch.Tensor]] = []
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
            found.append(tree_leaves(step.advance(knobs, seeds, state, 3)[0]))
    assert plans == [7, 3]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert not torch.equal(found[0][0][0], found[0][0][6])


@pytest.mark.fast
def test_two_blocks_are_at_once_where_their_shared_memory_allows_it() -> None:
    assert [HOPPER.blocks_at_once(kilobytes << 10) for kilobytes in (1, 113, 114, 227)] == [2, 2, 1, 1]


@pytest.mark.long
def test_the_loop_that_multiplies_has_no_more_instructions(tmp_path: Path) -> None:
    """Of the loop over tiles of four by four, four terms at a time: 64 multiplications, 32 loads.

    The same with NVRTC 13.0, which torch brings along, and 13.5. Addresses of 64 bits would be 187.
    """
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations or []) if package else []
    tool = next((tool for folder in folders if (tool := Path(folder) / "cu13/bin/nvdisasm").is_file()), None)
    if tool is None:
        pytest.skip("no nvdisasm here: pip install nvidia-cuda-nvdisasm")
    try:
        cubin = compiler.compile_cubin(minimal.SOURCE, "sm_90", minimal.options(weights_in_shared=True))
    except compiler.CompilerError as error:
        pytest.skip(str(error))
    (tmp_path / "kernel.cubin").write_bytes(cubin)
    tool.chmod(0o755)
    said = subprocess.run([str(tool), "-c", str(tmp_path / "kernel.cubin")], check=True, capture_output=True, text=True)
    [loop] = [one for one in loops_of(said.stdout) if count(one, "FFMA") == 64]
    assert len(loop) <= 131
    assert count(loop, "LDS") == 32


def count(loop: list[str], operation: str) -> int:
    return sum(bool(re.match(rf"(@!?U?P\d+ )?{operation}\b", one)) for one in loop)


def loops_of(text: str) -> list[list[str]]:
    """Return the instructions of each loop that has no other one in it."""
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line):
            instructions.append(found[1])
    jumps = (
        (labels.get(to[1], len(instructions)), end)
        for end, one in enumerate(instructions)
        if (to := re.search(r"BRA.*`\((\.L_x_\d+)\)", one))
    )
    loops = [(start, end) for start, end in jumps if start <= end]
    inner = [own for own in loops if not any(own[0] <= one[0] <= one[1] <= own[1] for one in loops if one != own)]
    return [instructions[start : end + 1] for start, end in inner]
