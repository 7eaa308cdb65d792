"""The native steps of attention pooling and of linearised attention against torch's own gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.support.native import lanes_alone_and_together
from tests.support.native_layered import CPU, SCORERS, Case, assert_torchs
from tests.support.native_pooling import recipe_of
from tests.support.trials import config, trial
from workers.data.tasks import Batch
from workers.data.tasks.linear_regression import LinearRegression
from workers.engine.step import NativeStep, find_obstacle, step_of
from workers.numerics import native
from workers.numerics.randomness import Streams

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")

RETRIEVAL = {"name": "max_retrieval", "smallest": 1, "items": 9, "largest": 16}
REGRESSION = {"name": "linear_regression", "dimension": 3, "pairs": 8}
ONE_HEADED = [
    scorer
    for scorer in SCORERS
    if scorer["name"] not in ("mixed", "length_scaled_softmax") and scorer.get("keys") != "all"
]
"""The logarithm of one item is 0, by which length_scaled_softmax divides; all keys are not counted of sets."""


def pooling(width: int, scorer: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": "attention_pooling", "width": width} | ({"scorer": scorer} if scorer else {})


@pytest.mark.parametrize("scorer", ONE_HEADED, ids=str)
def test_every_scorer(scorer: dict[str, Any]) -> None:
    assert_torchs(recipe_of(RETRIEVAL, pooling(12, scorer)))


@settings(max_examples=15)
@given(
    width=st.integers(1, 40),
    classes=st.integers(2, 20),
    items=st.integers(1, 30),
    batch=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_sizes_of_pooling(width: int, classes: int, items: int, batch: int, seed: int) -> None:
    task = {"name": "max_retrieval", "smallest": 1, "items": items, "largest": items, "item_classes": classes}
    assert_torchs(recipe_of(task, pooling(width), batch), seed)


@settings(max_examples=15)
@given(
    dimension=st.integers(1, 9),
    pairs=st.integers(2, 20),
    temperature=st.floats(0.3, 4),
    centred=st.booleans(),
    batch=st.integers(1, 37),
    seed=st.integers(0, 99),
)
def test_sizes_of_linearised_attention(
    dimension: int, pairs: int, temperature: float, centred: bool, batch: int, seed: int
) -> None:
    task = {"name": "linear_regression", "dimension": dimension, "pairs": pairs}
    model = {"name": "linearised_attention", "temperature": temperature, "centred": centred}
    assert_torchs(recipe_of(task, model, batch), seed)


@dataclass(frozen=True, kw_only=True)
class Everywhere(LinearRegression):
    """A loss at all positions, given or not, of prompts of different lengths."""

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        prompts = super().training(streams, batch, step)
        lengths = 3 + streams.words(batch).remainder(self.pairs - 1)
        return prompts | {"lengths": lengths}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return (outputs[..., 0] - batch["targets"][..., None]).square().mean()

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        targets = batch["targets"][..., None].expand(batch["inputs"].shape[:-1]).to(dtype)
        return targets, torch.full_like(targets, 1 / targets[0].numel())


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("batch", [5, 19])
def test_linearised_attention_where_all_positions_count(batch: int, centred: bool) -> None:
    recipe = recipe_of(REGRESSION, {"name": "linearised_attention", "temperature": 0.7, "centred": centred}, batch)
    assert_torchs(replace(recipe, task=Everywhere(dimension=3, pairs=8)))


CASES = [
    (RETRIEVAL, pooling(32)),
    (REGRESSION, {"name": "linearised_attention"}),
    (REGRESSION, {"name": "linearised_attention", "centred": False}),
]


@pytest.mark.parametrize(("task", "model"), CASES, ids=str)
def test_float32_is_close_and_alone_as_together(task: dict[str, Any], model: dict[str, Any]) -> None:
    exact, exact_loss = Case(recipe_of(task, model, 16), lanes=4).torchs()
    single = Case(recipe_of(task, model, 16, "float32"), lanes=4)
    gradient, loss = single.native()
    assert (gradient - exact).norm() <= 1e-5 * exact.norm()
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-5, atol=0)
    for lane in range(4):
        alone, alone_loss = single.native(slice(lane, lane + 1))
        assert torch.equal(alone[0], gradient[lane])
        assert torch.equal(alone_loss[0], loss[lane])


@pytest.mark.parametrize(("task", "model"), CASES, ids=str)
def test_trials_train_alike_alone_and_together(task: dict[str, Any], model: dict[str, Any]) -> None:
    configuration = config(steps=20, every=10, dtype="float32")
    configuration["task"], configuration["model"] = task, model
    in_pack, alone = lanes_alone_and_together([trial(number, configuration) for number in range(5)])
    assert in_pack == alone


@pytest.mark.parametrize(("task", "model"), CASES, ids=str)
def test_what_is_no_number_shows_in_the_loss(task: dict[str, Any], model: dict[str, Any]) -> None:
    case = Case(recipe_of(task, model, dtype="float32"))
    case.parameters[1] = torch.nan
    assert case.native()[1].isfinite().tolist() == [True, False]


@pytest.mark.parametrize(("task", "model"), CASES, ids=str)
def test_a_pack_trains_by_it(task: dict[str, Any], model: dict[str, Any]) -> None:
    assert find_obstacle(recipe_of(task, model), CPU) is None
    assert isinstance(step_of(recipe_of(task, model), "one", CPU), NativeStep)


@pytest.mark.parametrize(
    ("task", "model", "reason"),
    [
        (
            RETRIEVAL,
            pooling(12, {"name": "spline_kernel", "phi": {"name": "chebyshev"}}),
            "the activation chebyshev is not in the native step",
        ),
        (REGRESSION, {"name": "linearised_attention", "estimated": True}, "an estimated temperature is not"),
    ],
    ids=str,
)
def test_what_is_not_covered_says_why(task: dict[str, Any], model: dict[str, Any], reason: str) -> None:
    recipe = recipe_of(task, model)
    assert reason in (find_obstacle(recipe, CPU) or "")
    assert not isinstance(step_of(recipe, "one", CPU), NativeStep)
