"""Blocks of a fused step that train several lanes in turn, and instructions of its loops; no GPU is needed."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.emulated_gpu import CPU, HOPPER, count_phases, emulated_step
from tests.support.trials import config
from workers.engine.fused.memory import Limits
from workers.engine.fused.step import TrainingPlan
from workers.engine.fused_check import _start
from workers.engine.machine.process import flush_subnormals
from workers.numerics import native
from workers.numerics.cuda import compiler
from workers.numerics.cuda.programs import LAYERED, MINIMAL, Program
from workers.numerics.tracing import tree_leaves
from workers.training.recipe import Recipe

TRANSFORMER = {"name": "transformer", "width": 12, "depth": 1, "heads": 2}
CASES: dict[str, tuple[dict[str, Any], Limits]] = {
    "minimal, weights in the GPU's own memory": (config(dtype="float32", batch=6), Limits(16 << 10, 8 << 10)),
    "layered": (
        {**config(dtype="float32", batch=6), "task": {"name": "copying", "length": 4}, "model": TRANSFORMER},
        Limits(64 << 10, 63 << 10),
    ),
}


@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
@pytest.mark.parametrize("name", CASES)
def test_a_block_trains_lane_after_lane_in_memory_of_its_own(name: str) -> None:
    """Seven lanes by three blocks, to the bit as by seven: no lane reads what the one before left in scratch memory."""
    configuration, limits = CASES[name]
    recipe = Recipe.of(configuration)
    found: list[list[torch.Tensor]] = []
    plans: list[int] = []
    for blocks in (7, 3):
        step = emulated_step(recipe, limits=limits)
        assert step.workspace.scratch_floats > 0
        step.most_blocks, launch = blocks, step.launch

        def noted(workspace: Any, plan: TrainingPlan, launch: Any = launch) -> None:
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


LOOPS = [(MINIMAL, True, 131), (LAYERED, False, 151)]
"""Instructions of the loop that multiplies tiles of four by four, four terms at a time: 64 multiplications, 32 loads.

The same with NVRTC 13.0, which torch brings along, and 13.5. Addresses of 64 bits in shared memory would be 187."""


@pytest.mark.long
@pytest.mark.parametrize(("program", "in_shared", "most"), LOOPS, ids=["minimal", "layered"])
def test_the_loop_that_multiplies_has_no_more_instructions(
    program: Program, in_shared: bool, most: int, tmp_path: Path
) -> None:
    package = importlib.util.find_spec("nvidia")
    folders = (package.submodule_search_locations or []) if package else []
    tool = next((tool for folder in folders if (tool := Path(folder) / "cu13/bin/nvdisasm").is_file()), None)
    if tool is None:
        pytest.skip("no nvdisasm here: pip install nvidia-cuda-nvdisasm")
    try:
        cubin = compiler.compile_cubin(program.source, "sm_90", program.options(weights_in_shared=in_shared))
    except compiler.CompilerError as error:
        pytest.skip(str(error))
    (tmp_path / "kernel.cubin").write_bytes(cubin)
    tool.chmod(0o755)
    said = subprocess.run([str(tool), "-c", str(tmp_path / "kernel.cubin")], check=True, capture_output=True, text=True)
    [loop] = [one for one in loops_of(said.stdout) if count(one, "FFMA") == 64]
    assert len(loop) <= most
    assert count(loop, "LDS" if in_shared else "LD") == 32


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


@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
def test_threads_meet_before_rows_without_loss_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two meetings for each block of sequences that carries no loss: a slow warp still reads how many rows do."""
    found: list[int] = []
    for batch in (64, 128):
        gpt = {"name": "transformer", "width": 32, "depth": 1, "heads": 2}
        task = {"name": "copying", "length": 4}
        recipe = Recipe.of({**config(dtype="float32", batch=batch), "task": task, "model": gpt})
        targets = type(recipe.task).position_targets

        def without_loss(own: Any, given: Any, dtype: torch.dtype, targets: Any = targets) -> Any:
            numbers, weights = targets(own, given, dtype)
            return numbers, torch.zeros_like(weights)

        with monkeypatch.context() as patch:
            patch.setattr(type(recipe.task), "position_targets", without_loss)
            found.append(count_phases(recipe)[0])
        blocks = batch // emulated_step(recipe).workspace.sequences
        found[-1] -= 2 * blocks
    assert found[0] == found[1]
