"""The batches of several steps, drawn together, are those of the steps one by one, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spaces.records import Report, Trial
from tests.support.alone import cases, configuration
from tests.support.trials import trial
from workers.engine.pack import Pack, stepping
from workers.engine.pack.lane_data import draw_training_batches
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.lanes import LaneTrial
from workers.training.recipe import Recipe, layout_of

CASES = {name: case for name, case in cases() if name.startswith("task ") or not name[-1].isdigit()}
STEPS = 5


def draw(trials: list[Trial], chunks: list[int]) -> list[dict[str, Tensor]]:
    """Return the batches of the next steps of these trials, each of them at another step, drawn so many together."""
    recipes = [Recipe.of(candidate.config) for candidate in trials]
    recipe = recipes[0].pad()
    tensors = LaneTensors.of_copies(trials[0], recipe, layout_of(recipe), len(trials), torch.device("cpu"))
    for index, candidate in enumerate(trials):
        tensors.assign(index, candidate, recipes[index])
        tensors.state.step[index] = 3 * index
    batches = list[dict[str, Tensor]]()
    for steps in chunks:
        batches += map(
            dict, draw_training_batches(recipe, [LaneTrial.of(candidate) for candidate in trials], tensors, steps)
        )
        tensors.state.step.add_(steps)
    return batches


def assert_same(trials: list[Trial]) -> None:
    """Assert that the batches do not depend on how many are drawn together."""
    single, together = draw(trials, [1] * STEPS), draw(trials, [STEPS - 1, 1])
    for step, (batch, other) in enumerate(zip(single, together, strict=True)):
        assert batch.keys() == other.keys()
        for name, tensor in batch.items():
            assert len(tensor) == len(trials)
            assert torch.equal(tensor, other[name]), f"{name} at step {step}"


@pytest.mark.parametrize("name", CASES)
def test_of_a_case(name: str) -> None:
    assert_same([trial(number, CASES[name]) for number in range(2)])


def test_lanes_with_tasks_of_their_own() -> None:
    model = {"name": "transformer", "width": 8, "heads": 2, "depth": 1}
    tasks = [{"name": name, "digits": 2} for name in ("add", "add_reversed", "add")]
    assert_same([trial(number, configuration(task=task, model=model)) for number, task in enumerate(tasks)])


@pytest.mark.parametrize("most", [1, 2, 1000])
def test_reports_are_the_same(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pack that is refilled, whether batches are drawn ahead or step by step."""

    def train() -> tuple[list[Report], list[int]]:
        drawn = list[int]()

        def note(*arguments: Any) -> list[Any]:
            batches = draw_training_batches(*arguments)
            drawn.append(len(batches))
            return batches

        monkeypatch.setattr(stepping, "draw_training_batches", note)
        first, second, third = (trial(number, configuration()) for number in range(3))
        pack = Pack(first, width=2)
        pack.fill([first, second])
        reports = pack.train(most)
        pack.release([first.number])
        pack.fill([third])
        while pack.running:
            reports += pack.train(most)
        return reports, drawn

    ahead, drawn = train()
    monkeypatch.setattr(stepping, "_AHEAD_BYTES", 0)
    singly, drawn_singly = train()
    assert ahead == singly
    assert set(drawn_singly) == {1}
    assert max(drawn) == {1: 1, 2: 1}.get(most, 2)
