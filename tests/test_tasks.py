"""What every task promises: the same data for a seed wherever it trains, shapes and tokens as declared, chance told."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from spaces import plugins
from workers.data.tasks import Batch, SetTask, Task, TokenTask, VectorTask
from workers.numerics.randomness import Purpose, Streams

SEQUENCES = 24
STEPS = torch.tensor([0, 7, 10_000])
SEEDS = torch.tensor([11, 5, 77])


@pytest.fixture(params=plugins.examples(Task), ids=lambda configuration: configuration["name"])
def task(request: pytest.FixtureRequest) -> Task:
    return plugins.build(Task, request.param)


def streams(seeds: Tensor, purpose: Purpose, steps: Tensor | int, site: int = 0) -> Streams:
    return Streams.of(seeds, purpose, steps, site)


def sets(task: Task, seeds: Tensor, steps: Tensor) -> dict[str, Batch]:
    """Every set of a task by its condition, training and validation included."""
    validation, shifted = (streams(seeds, Purpose.VALIDATION_DATA, 0, site) for site in range(2))
    return {
        "training": task.training(streams(seeds, Purpose.TRAINING_DATA, steps), SEQUENCES, steps),
        "": task.validation(validation, SEQUENCES),
        **task.shifted(shifted, SEQUENCES),
    }


def test_a_lane_draws_the_same_data_in_any_pack(task: Task) -> None:
    together = sets(task, SEEDS, STEPS)
    for lane in range(3):
        alone = sets(task, SEEDS[lane : lane + 1], STEPS[lane : lane + 1])
        assert alone.keys() == together.keys()
        for condition, batch in alone.items():
            assert batch.keys() == together[condition].keys()
            for name, tensor in batch.items():
                assert torch.equal(tensor[0], together[condition][name][lane]), (condition, name)


def test_other_seeds_and_steps_draw_other_data_and_the_same_the_same(task: Task) -> None:
    def drawn(seed: int, step: int) -> Tensor:
        at = torch.tensor([step])
        stream = streams(torch.tensor([seed]), Purpose.TRAINING_DATA, at)
        return task.training(stream, SEQUENCES, torch.zeros_like(at))["inputs"]

    assert torch.equal(drawn(3, 4), drawn(3, 4))
    for other in (drawn(3, 5), drawn(4, 4)):
        one = drawn(3, 4)
        assert one.shape != other.shape or not torch.equal(one, other)


def test_inputs_have_the_shape_and_the_tokens_that_are_declared(task: Task) -> None:
    found = sets(task, SEEDS, STEPS)
    for condition, batch in found.items():
        inputs, limit = batch["inputs"], task.context if condition == "training" else task.longest
        assert inputs.shape[0] == 3
        assert condition != "training" or inputs.shape[1] == SEQUENCES
        if isinstance(task, TokenTask):
            assert inputs.dtype == torch.int64
            assert inputs.dim() == 3
            assert 0 <= int(inputs.min()) <= int(inputs.max()) < task.tokens
            assert inputs.shape[2] <= limit
        else:
            assert isinstance(task, VectorTask | SetTask)
            assert inputs.is_floating_point()
            assert inputs.shape[3] == task.features
            assert bool(inputs.isfinite().all())
        if isinstance(task, VectorTask):
            assert inputs.shape[2] <= limit
        if "lengths" in batch:
            assert batch["lengths"].shape == inputs.shape[:2]
            assert 1 <= int(batch["lengths"].min()) <= int(batch["lengths"].max()) <= inputs.shape[2]


def outputs_for(task: Task, batch: Batch) -> Tensor:
    """Something of the shape that a model of the task's kind would say of one lane's batch."""
    inputs, generator = batch["inputs"], torch.Generator().manual_seed(0)
    if isinstance(task, TokenTask):
        shape: tuple[int, ...] = (*inputs.shape, task.tokens)
    elif isinstance(task, VectorTask):
        shape = (*inputs.shape[:2], task.outputs)
    else:
        assert isinstance(task, SetTask)
        shape = (inputs.shape[0], task.classes)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_the_loss_is_one_finite_number_with_a_gradient_and_metrics_are_one_a_sequence(task: Task) -> None:
    for condition, stacked in sets(task, SEEDS, STEPS).items():
        batch = {name: tensor[1] for name, tensor in stacked.items()}
        outputs = outputs_for(task, batch).requires_grad_()
        if condition == "training":
            loss = task.loss(outputs, batch)
            [gradient] = torch.autograd.grad(loss, [outputs])
            assert loss.shape == ()
            assert bool(loss.isfinite())
            assert bool(gradient.isfinite().all())
            assert bool(gradient.any())
        else:
            metrics = task.metrics(outputs, batch)
            assert all(values.shape == (len(batch["inputs"]),) for values in metrics.values())
            assert_numbers(task.summary({name: float(values.detach().mean()) for name, values in metrics.items()}))


def assert_numbers(summary: Mapping[str, float]) -> None:
    assert summary
    assert all(isinstance(value, float) for value in summary.values())


def test_it_is_told_what_a_guess_would_reach(task: Task) -> None:
    facts = task.facts()
    assert "chance" in facts, f"{plugins.name_of(task)} tells {sorted(facts)}"
    assert isinstance(facts["chance"], float)
    assert 0 < facts["chance"] < float("inf")


def test_a_metric_of_outputs_that_are_not_finite_is_not_finite(task: Task) -> None:
    """Or training that broke down would be taken for an answer."""
    batch = {name: tensor[0] for name, tensor in sets(task, SEEDS, STEPS)[""].items()}
    broken = torch.full_like(outputs_for(task, batch), float("nan"))
    metrics: Callable[[str], bool] = {
        name: bool(values.isfinite().all()) for name, values in task.metrics(broken, batch).items()
    }.__getitem__
    judged = [name for name in task.metrics(broken, batch) if not name.startswith(REFERENCES)]
    assert judged
    assert any(not metrics(name) for name in judged), "one is enough for the trial to count as diverged"


REFERENCES = ("bayes_", "least_squares_", "zero_", "closed_form_", "true", "false")
"""Metrics of the data alone: what others would say of it, and counts."""
