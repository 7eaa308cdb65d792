"""The update of all lanes as one kernel, emulated on a CPU: it is the traced one, whatever is drawn and however wide.

`pytest -m gpu` runs it on a GPU.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import emulated_kernels
from tests.support.native_update import AVERAGINGS, OPTIMIZERS, SCHEDULES, recipe_of, start_of, traced_of, trained
from workers.numerics.cuda import compiler
from workers.numerics.cuda.compiler import CompilerError, compile_cubin
from workers.numerics.tracing import tree_leaves
from workers.training import cuda_update
from workers.training.cuda_update import SOURCE, CudaUpdate, cuda_update_of, find_fault
from workers.training.recipe import Recipe, layout_of

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
FUSED = [optimizer for optimizer in OPTIMIZERS if optimizer["name"] != "muon"]


def of(recipe: Recipe) -> CudaUpdate:
    return CudaUpdate(recipe, layout_of(recipe))


def assert_close(recipe: Recipe, actual: Any, expected: Any, *, doubled: bool) -> None:
    close = {"rtol": 1e-12, "atol": 1e-14} if doubled else {"rtol": 1e-5, "atol": 1e-7}
    for leaf, other in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(leaf, other, equal_nan=True, **close)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(FUSED),
    st.sampled_from(AVERAGINGS),
    st.sampled_from(SCHEDULES),
    st.sampled_from([0, 3]),
    st.sampled_from([1e-3, 1.0, 1e6]),
    st.sampled_from(["float32", "float64"]),
)
def test_it_is_the_traced_update(
    optimizer: dict[str, Any], averaging: dict[str, Any], schedule: str, warmup: int, clip_norm: float, dtype: str
) -> None:
    warmed = {"warmup": warmup} if schedule in ("linear", "cosine") else {}
    fields = {**optimizer, "schedule": {"name": schedule, **warmed}, "clip_norm": clip_norm, "learning_rate": 0.01}
    recipe = recipe_of(fields, averaging, dtype)
    layout = layout_of(recipe)
    state = trained(of(recipe), recipe, layout, lanes=3)
    assert_close(recipe, state, trained(traced_of(recipe, layout), recipe, layout, 3), doubled=dtype == "float64")


@pytest.mark.parametrize("optimizer", FUSED, ids=str)
def test_bits_depend_neither_on_the_number_of_lanes_nor_on_the_order_of_threads(optimizer: dict[str, Any]) -> None:
    recipe = recipe_of(optimizer, {"name": "bema_grid", "kappas": 3, "etas": 2}, "float32")
    layout = layout_of(recipe)
    expected = tree_leaves(trained(of(recipe), recipe, layout, lanes=7))
    emulated_kernels.library(SOURCE).order(1)
    try:
        for lanes in (1, 2, 7):
            leaves = tree_leaves(trained(of(recipe), recipe, layout, lanes))
            assert all(torch.equal(leaf, other[:lanes]) for leaf, other in zip(leaves, expected, strict=True))
    finally:
        emulated_kernels.library(SOURCE).order(0)


def test_knobs_of_each_lane_are_its_own_and_what_is_written_into_them_shows() -> None:
    recipe = recipe_of({"name": "adamw", "schedule": {"name": "cosine"}}, {"name": "ema"})
    layout, lanes = layout_of(recipe), 3
    knobs = {path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()}
    knobs["optimizer.learning_rate"] *= torch.tensor([1.0, 2.0, 3.0])
    fused, traced = of(recipe), traced_of(recipe, layout)
    state = expected = start_of(recipe, layout, lanes)
    for step in range(4):
        gradient = torch.randn(lanes, layout.total, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        loss = torch.tensor([1.0, torch.nan if step == 2 else 0.5, 2.0], dtype=torch.float64)
        if step == 2:
            knobs["optimizer.weight_decay"][1] = 0.7
            state.step[2] = expected.step[2] = 0
        state, expected = (
            update(knobs, before, gradient, loss) for update, before in ((fused, state), (traced, expected))
        )
    assert_close(recipe, state, expected, doubled=True)
    assert state.diverged_at.tolist() == [0, 3, 0]


def test_frozen_parameters_keep_their_values() -> None:
    spline = {"name": "spline", "knots": 3, "start": "given", "values": "1 2 3", "frozen": True}
    recipe = recipe_of(
        {"name": "sgd"}, {"name": "none"}, model={"name": "transformer", "width": 8, "activation": spline}
    )
    layout = layout_of(recipe)
    state = trained(of(recipe), recipe, layout, lanes=2)
    assert_close(recipe, state, trained(traced_of(recipe, layout), recipe, layout, 2), doubled=True)
    assert layout.split(state.parameters[0])["activation.knots"].tolist() == [1, 2, 3]


def test_a_double_loss_of_parameters_in_float32_is_read_as_what_it_is() -> None:
    recipe = recipe_of({"name": "adamw"}, {"name": "none"}, "float32")
    layout, lanes = layout_of(recipe), 4
    knobs = {path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()}
    gradient, loss = torch.zeros(lanes, layout.total), torch.tensor([0.7, torch.nan, 1.1, 1.3], dtype=torch.float64)
    updates = of(recipe), traced_of(recipe, layout)
    state, expected = (update(knobs, start_of(recipe, layout, lanes), gradient, loss) for update in updates)
    torch.testing.assert_close(state.loss_sum, expected.loss_sum, rtol=1e-6, atol=0, equal_nan=True)
    assert state.diverged_at.tolist() == expected.diverged_at.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_and_is_told(broken: float) -> None:
    recipe = recipe_of({"name": "adamw"}, {"name": "bema"}, "float32")
    state = trained(of(recipe), recipe, layout_of(recipe), lanes=2, scale=broken)
    assert not state.parameters.isfinite().any()
    assert state.diverged_at.tolist() == [1, 1]


# -- which is used ---------------------------------------------------------------------------------------------------


def test_what_it_does_not_know_and_what_is_on_a_cpu_has_none() -> None:
    muon, adam = ({"name": name} for name in ("muon", "adam"))
    for optimizer, device in ((muon, torch.device("meta")), (adam, CPU)):
        recipe = recipe_of(optimizer, {"name": "none"})
        assert cuda_update_of(recipe, layout_of(recipe), device) is None


@pytest.mark.parametrize("optimizer", FUSED, ids=str)
def test_it_is_compared_with_the_traced_one_before_it_is_used(optimizer: dict[str, Any], monkeypatch: Any) -> None:
    recipe = recipe_of(optimizer, {"name": "bema"}, "float32")
    layout = layout_of(recipe)
    assert find_fault(of(recipe), recipe, layout, CPU) is None
    drawn = cuda_update._knobs_of
    wrong = 3  # weight decay
    monkeypatch.setattr(
        cuda_update, "_knobs_of", lambda bound: [knob + 0.1 * (at == wrong) for at, knob in enumerate(drawn(bound))]
    )
    assert find_fault(of(recipe), recipe, layout, CPU) == "the kernel gives other numbers than the traced update"


def test_one_that_does_not_compile_is_told_once_and_updates_are_traced(monkeypatch: Any, caplog: Any) -> None:
    def fail(*arguments: Any) -> str:
        raise CompilerError("there is no libnvrtc.so.13 here")

    monkeypatch.setattr(cuda_update, "_VERDICTS", {})
    monkeypatch.setattr(CudaUpdate, "__call__", fail)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device, dtype: self)  # there is no such device here
    recipe = recipe_of({"name": "adam"}, {"name": "none"}, "float64")
    layout = layout_of(recipe)
    with caplog.at_level(logging.WARNING):
        assert cuda_update_of(recipe, layout, GPU) is None
        assert cuda_update_of(recipe, layout, GPU) is None
    [line] = [record.getMessage() for record in caplog.records]
    assert line == "updates are traced, not one kernel each: there is no libnvrtc.so.13 here"


@pytest.fixture(scope="module")
def nvrtc() -> None:
    try:
        compiler.compiler_version()
    except CompilerError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_it_compiles_for_gpus_of_several_generations(architecture: str) -> None:
    cubin = compile_cubin(SOURCE, architecture)
    assert cubin.startswith(b"\x7fELF")
    assert all(name.encode() in cubin for name in cuda_update.FUNCTIONS.values())


@pytest.mark.usefixtures("nvrtc")
def test_what_the_compiler_says_is_the_error(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("__global__ void wrong() { nothing; }")
    with pytest.raises(RuntimeError, match="identifier"):
        compile_cubin(source, "sm_90")


def test_without_a_compiler_that_is_the_error(monkeypatch: Any) -> None:
    monkeypatch.setattr(compiler, "_libraries", lambda: ["libnvrtc.so.3"])
    compiler._nvrtc.cache_clear()
    with pytest.raises(RuntimeError, match=r"there is no NVRTC, which compiles kernels"):
        compile_cubin(SOURCE, "sm_90")
