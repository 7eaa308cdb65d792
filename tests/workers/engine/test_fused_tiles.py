"""The fused step whose products are made in tiles of TF32 by warps, in the emulator and compiled; no GPU is needed."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.support.emulated_gpu import BACKWARDS, CPU, FORWARDS, HOPPER, SHUFFLED, count_phases, emulated_step, library
from tests.support.fused import assert_close, assert_same, fused_steps, native_steps, start_of_first
from tests.support.machine_code import compiled_for, count, loops_of, say
from tests.support.trials import config
from workers.engine import fused_check as check
from workers.engine.fused.step import arrange, find_obstacle, find_tile_obstacle
from workers.numerics import native
from workers.numerics.cuda import minimal
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe

Numbers = NDArray[np.float32]
compiled = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
TILES: dict[str, Any] = {"tf32": True}
PAPER: dict[str, Any] = {"length": 8, "vocabulary": 17, "width": 32, "key_width": 16, "value_width": 24}
SIZES: dict[str, dict[str, Any]] = {
    "paper 003": {**PAPER, "batch": 16},
    "one sequence too many for whole warps": {**PAPER, "batch": 9},
    "small": {"batch": 21},
    "as large as tiles are": {**PAPER, "vocabulary": 24, "batch": 6},
    "a single short sequence": {"length": 2, "vocabulary": 3, "width": 1, "key_width": 1, "value_width": 1, "batch": 1},
}


def recipe_of(sizes: dict[str, Any], **parts: Any) -> Recipe:
    return Recipe.of(config(dtype="float32", steps=60, every=60, **sizes, **parts))


# -- a product of a warp ----------------------------------------------------------------------------------------------


def rounded(x: Numbers) -> Numbers:
    """To 11 significant bits, halves away from zero, by arithmetic of float64."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    whole = np.copysign(np.floor(np.abs(mantissa) * 2048 + 0.5), mantissa)
    return np.ldexp(whole / 2048, exponent).astype(np.float32)


@compiled
def test_factors_are_rounded_to_11_bits() -> None:
    made = library(weights_in_shared=True, tf32=True)
    made.emulate_rounding.restype = ctypes.c_float
    halves = [1 + 2**-11, -1 - 2**-11, 1 + 2**-11 - 2**-23, 2 - 2**-23, 0.0, 3e38]
    numbers = np.array([*halves, *np.random.default_rng(0).normal(size=200)], np.float32)
    assert [made.emulate_rounding(ctypes.c_float(x)) for x in numbers] == rounded(numbers).tolist()
    assert np.isnan(made.emulate_rounding(ctypes.c_float(np.nan)))


@compiled
@pytest.mark.parametrize("order", [FORWARDS, BACKWARDS, SHUFFLED])
def test_a_warp_multiplies_matrices_by_the_layout_of_the_instruction(order: int) -> None:
    """PTX describes the layout of mma.m16n8k8 for .tf32, which ignores what is below 11 bits of a factor."""
    numbers = np.random.default_rng(1)
    a, b, c = (numbers.normal(size=shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8)))
    lanes = np.arange(32)
    g, t = lanes // 4, lanes % 4
    left = np.stack([a[g, t], a[g + 8, t], a[g, t + 4], a[g + 8, t + 4]], 1)
    right = np.stack([b[t, g], b[t + 4, g]], 1)
    sums = np.stack([c[g, 2 * t], c[g, 2 * t + 1], c[g + 8, 2 * t], c[g + 8, 2 * t + 1]], 1)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (left, right, sums)]
    library(weights_in_shared=True, tf32=True).emulate_multiply(order, *pointers)
    product = np.zeros((16, 8), np.float32)
    for n in range(4):
        product[g + n // 2 * 8, 2 * t + n % 2] = sums[:, n]
    left, right = ((matrix.view(np.int32) & ~0x1FFF).view(np.float32).astype(np.float64) for matrix in (a, b))
    np.testing.assert_allclose(product, left @ right + c, rtol=0, atol=2e-6)


# -- a step -----------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@compiled
@pytest.mark.parametrize("sizes", SIZES)
def test_without_rounding_it_trains_as_the_native_step_does(sizes: str) -> None:
    """The same source with factors of float32: all that TF32 changes is rounding."""
    recipe = recipe_of(SIZES[sizes], optimizer={"name": "adamw", "epsilon": 1e-4})
    actual = fused_steps(recipe, 2, 10, launch=4, rounded_bits=0, **TILES)
    assert_close(actual, native_steps(recipe, 2, 10), 1e-5)


@pytest.mark.sampled(4)
@compiled
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("steps", [1, 20])
def test_it_trains_as_the_native_step_does_within_what_rounding_changes(sizes: str, steps: int) -> None:
    """Gradients and so moments within 4e-3 of the largest, parameters and averages within 1e-4, losses within 1e-5."""
    recipe = recipe_of(SIZES[sizes], optimizer={"name": "adamw", "epsilon": 1e-4})
    actual, expected = fused_steps(recipe, 2, steps, **TILES), native_steps(recipe, 2, steps)
    assert_close(actual, expected, check.TF32_TOLERANCE)
    assert (actual.parameters - expected.parameters).abs().max() <= 1e-4 * expected.parameters.abs().max()
    torch.testing.assert_close(actual.loss_sum, expected.loss_sum, rtol=1e-5, atol=0)


@compiled
def test_its_gradient_is_as_near_to_float64_as_factors_are_rounded() -> None:
    """The first moment after a step is a share of the gradient; rounding a factor changes it by up to 4.9e-4."""
    recipe = recipe_of({**PAPER, "batch": 128})
    exact = Recipe.of(config(dtype="float64", steps=60, every=60, **PAPER, batch=128))
    actual, expected = (
        state.moments["first"].double() for state in (fused_steps(recipe, 1, 1, **TILES), native_steps(exact, 1, 1))
    )
    error = float((actual - expected).norm() / expected.norm())
    assert 1e-5 < error < 1e-3


@pytest.mark.long
@compiled
def test_bits_depend_neither_on_width_nor_on_launches_nor_on_the_order_of_threads() -> None:
    recipe = recipe_of({**PAPER, "batch": 9})
    expected = fused_steps(recipe, 7, 6, **TILES)
    for lanes in (1, 2):
        few = start_of_first(recipe, lanes, 7, **TILES)
        assert_same(few, tree_map(lambda tensor, n=lanes: tensor[:n], expected))
    assert_same(fused_steps(recipe, 7, 6, launch=1, **TILES), expected)
    for order in (BACKWARDS, SHUFFLED):
        assert_same(fused_steps(recipe, 7, 6, order=order, **TILES), expected)


@compiled
def test_a_loss_that_is_no_number_is_noticed_at_its_step() -> None:
    recipe = recipe_of({}, optimizer={"learning_rate": 1e30})
    actual, expected = fused_steps(recipe, 2, 6, **TILES), native_steps(recipe, 2, 6)
    assert actual.diverged_at.tolist() == expected.diverged_at.tolist()
    assert 0 not in actual.diverged_at


@compiled
@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_the_check_of_a_gpu_finds_rounding_and_nothing_else(number: int) -> None:
    recipe = Recipe.of([*check.tile_configurations()][number])
    step = emulated_step(recipe, **TILES)
    assert check.find_difference(recipe, CPU, step, check.TF32_TOLERANCE) is None
    assert "moments differ by" in (check.find_difference(recipe, CPU, step) or "")


# -- who has it -------------------------------------------------------------------------------------------------------


@pytest.mark.fast
@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"residual_dropout": 0.1}},
        {"model": {"scorer": {"name": "average"}}},
        {"length": 9, "vocabulary": 17},
        {"vocabulary": 25},
        {"width": 33},
    ],
)
def test_other_trials_have_a_reason_and_the_kernel_of_float32(parts: dict[str, Any]) -> None:
    recipe = Recipe.of(config(dtype="float32", **parts))
    assert find_obstacle(recipe) is None
    reason = find_tile_obstacle(recipe, HOPPER)
    assert reason == "tiles know softmax without dropout, up to length 8, vocabulary 24, width 32"


@pytest.mark.fast
def test_no_trial_gets_it_without_asking_and_two_blocks_fit_into_a_multiprocessor() -> None:
    assert minimal.options(weights_in_shared=True) == ("--ftz=true", "-DWEIGHTS_IN_SHARED=1")
    recipe = recipe_of({**PAPER, "batch": 128}).pad()
    assert find_tile_obstacle(recipe, HOPPER) is None
    workspace = arrange(recipe, HOPPER, tf32=True)
    assert workspace
    assert HOPPER.blocks_at_once(workspace.shared_bytes) == 2
    small = HOPPER._replace(block=64 << 10)
    assert find_tile_obstacle(recipe, small) == "its arrays do not fit into the GPU's shared memory"


@compiled
def test_a_batch_has_no_meeting_of_a_block_between_its_tokens_and_its_gradients() -> None:
    """A step has as many phases for 128 sequences as for two."""
    few, many = (count_phases(recipe_of({**PAPER, "batch": batch}), **TILES)[0] for batch in (2, 128))
    assert few == many
    assert many < count_phases(recipe_of({**PAPER, "batch": 128}))[0] / 2


# -- compiled for GPUs that are not here ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_its_loop_has_no_barrier_no_spill_and_no_more_instructions(architecture: str, tmp_path: Path) -> None:
    """Two sequences take 80 products of 16 by 8 by 8. With two blocks of 128 threads, each may have 255 registers."""
    file = tmp_path / "kernel.cubin"
    file.write_bytes(compiled_for(architecture, minimal.options(weights_in_shared=True, tf32=True)))
    used = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", say("cuobjdump", "--dump-resource-usage", file)))
    assert int(used["REG"]) <= 255
    assert used["STACK"] == used["LOCAL"] == "0"
    text = say("nvdisasm", "-c", file)
    assert text.count("BAR.SYNC") <= 52
    [loop] = [instructions for instructions in loops_of(text) if count(instructions, r"HMMA\.1688\.F32\.TF32")]
    assert count(loop, r"HMMA\.1688\.F32\.TF32") == 80
    assert count(loop, r"BAR\.SYNC") == 0
    assert len(loop) <= 800
    assert count(loop, "LDS") + count(loop, "STS") <= 60
