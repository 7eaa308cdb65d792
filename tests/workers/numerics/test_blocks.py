"""Memory of large tensors that is used again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.native import lanes_alone_and_together
from tests.support.native_layered import COMPLEMENT, Case, recipe_of
from tests.support.trials import config, trial
from workers.numerics import blocks, native
from workers.numerics.blocks import Blocks


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "LEAST", 1024)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
def test_a_tensor_has_the_shape_and_type_of_the_other_and_starts_a_line(dtype: torch.dtype) -> None:
    like = torch.zeros(3, 1000, 7, dtype=dtype).transpose(0, 1)
    made = Blocks().empty_like(like)
    assert (made.shape, made.dtype) == (like.shape, dtype)
    assert made.is_contiguous()
    assert made.data_ptr() % 64 == 0
    made.fill_(3)
    assert made.sum() == 3 * made.numel()


def test_a_block_is_used_again_once_nothing_refers_to_it() -> None:
    memory, like = Blocks(), torch.zeros(2, 1000)
    first = memory.empty_like(like)
    address = first.data_ptr()
    second = memory.empty_like(like)
    assert second.data_ptr() != address
    del first
    assert memory.empty_like(like).data_ptr() == address


def test_what_is_held_by_a_view_alone_keeps_its_numbers() -> None:
    memory, like = Blocks(), torch.zeros(2, 1000)
    view = memory.empty_like(like).fill_(5.0)[1, 10:20]
    detached = memory.empty_like(like).fill_(6.0).detach().view(-1)[-1:]
    for _ in range(4):
        memory.empty_like(like).fill_(9.0)
    assert view.tolist() == [5.0] * 10
    assert detached.tolist() == [6.0]


def test_free_blocks_of_another_size_are_given_back() -> None:
    memory = Blocks()
    held = memory.empty_like(torch.zeros(3000))
    memory.empty_like(torch.zeros(5000))
    memory.empty_like(torch.zeros(7000))
    assert len(memory._blocks) == 2
    del held


def test_small_tensors_are_torchs_own() -> None:
    memory = Blocks()
    assert memory.empty_like(torch.zeros(4)).shape == (4,)
    assert not memory._blocks


MODEL: dict[str, Any] = {"name": "transformer", "width": 12, "heads": 2}


def test_trials_train_alike_in_blocks_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(steps=12, every=4, dtype="float32")
    settings["task"], settings["model"] = COMPLEMENT, MODEL
    trials = [trial(number, settings) for number in range(3)]
    in_blocks = lanes_alone_and_together(trials)
    monkeypatch.setattr(blocks, "LEAST", 1 << 40)
    assert in_blocks == lanes_alone_and_together(trials)


@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
def test_what_a_thread_computed_before_changes_nothing() -> None:
    """Its memory is kept as it is between steps of one structure: also where that were no numbers."""
    case = Case(recipe_of(COMPLEMENT, MODEL, dtype="float32"))
    gradient, loss = case.native()
    parameters = case.parameters.clone()
    case.parameters.fill_(torch.nan)
    case.native()
    case.parameters.copy_(parameters)
    again, again_loss = case.native()
    assert torch.equal(again, gradient)
    assert torch.equal(again_loss, loss)
