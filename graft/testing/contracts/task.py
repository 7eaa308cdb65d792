"""The contract of tasks. Legend: L lanes, N sequences."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from graft.testing.common import Configuration, DoesNotApply, build, equal
from workers.data.tasks import Batch, SetTask, Task, TokenTask, VectorTask
from workers.numerics.randomness import Purpose, Streams

SEQUENCES = 24
STEPS = torch.tensor([0, 7, 10_000])
SEEDS = torch.tensor([11, 5, 77])
REFERENCES = ("bayes_", "least_squares_", "zero_", "closed_form_", "true", "false")
"""Prefixes of metrics that are of the data alone: what others would say of it, and counts."""


def sets(task: Task, seeds: Tensor, steps: Tensor) -> dict[str, Batch]:
    """Return every set of a task by its condition: `training`, "" for validation, the shifted."""
    validation, shifted = (Streams.of(seeds, Purpose.VALIDATION_DATA, 0, site) for site in range(2))
    streams = Streams.of(seeds, Purpose.TRAINING_DATA, steps)
    return {
        "training": task.training(streams, SEQUENCES, steps),
        "": task.validation(validation, SEQUENCES),
        **task.shifted_sets(shifted, SEQUENCES),
    }


def outputs_for(task: Task, batch: Batch) -> Tensor:
    """Return random outputs of the shape that a model has for one lane's batch."""
    inputs, generator = batch["inputs"], torch.Generator().manual_seed(0)
    if isinstance(task, TokenTask):
        shape: tuple[int, ...] = (*inputs.shape, task.tokens)
    elif isinstance(task, VectorTask):
        shape = (*inputs.shape[:2], task.outputs)
    else:
        assert isinstance(task, SetTask), "a task derives from TokenTask, VectorTask or SetTask"
        shape = (inputs.shape[0], task.classes)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def check_lanes_draw_their_own(configuration: Configuration) -> None:
    """Assert that a lane draws the same data in any pack, from its own stream and step alone."""
    task: Task = build("task", configuration)
    together = sets(task, SEEDS, STEPS)
    for lane in range(3):
        alone = sets(task, SEEDS[lane : lane + 1], STEPS[lane : lane + 1])
        assert alone.keys() == together.keys(), "the conditions differ between packs"
        for condition, batch in alone.items():
            other = together[condition]
            assert batch.keys() == other.keys(), f"the tensors of {condition!r} differ between packs"
            for name, tensor in batch.items():
                same = torch.equal(tensor[0], other[name][lane])
                assert same, f"{name} of {condition or 'the validation set'} depends on the other lanes of a pack"


def check_randomness(configuration: Configuration) -> None:
    """Assert that the same seed and step draw the same data, and others draw other data."""
    task: Task = build("task", configuration)

    def draw(seed: int, step: int) -> Tensor:
        at = torch.tensor([step])
        stream = Streams.of(torch.tensor([seed]), Purpose.TRAINING_DATA, at)
        return task.training(stream, SEQUENCES, torch.zeros_like(at))["inputs"]

    assert torch.equal(draw(3, 4), draw(3, 4)), "drawn twice, the data differ: use no randomness but `streams`"
    for what, other in (("step", draw(3, 5)), ("seed", draw(4, 4))):
        inputs = draw(3, 4)
        differs = inputs.shape != other.shape or not torch.equal(inputs, other)
        assert differs, f"another {what} draws the same training data"


def check_splits(configuration: Configuration) -> None:
    """Assert that validation data do not depend on the step, and are no first training batch."""
    task: Task = build("task", configuration)
    data = sets(task, SEEDS, STEPS)
    again = sets(task, SEEDS, STEPS + 1)
    for name, tensor in data[""].items():
        assert torch.equal(tensor, again[""][name]), f"{name} of the validation set changes from step to step"
    training, validation = data["training"]["inputs"], data[""]["inputs"]
    same = training.shape == validation.shape and torch.equal(training, validation)
    assert not same, "the validation set is the training batch"


def check_shapes(configuration: Configuration) -> None:
    """Assert that inputs have the shape, the type and the tokens that the task declares."""
    task: Task = build("task", configuration)
    for condition, batch in sets(task, SEEDS, STEPS).items():
        where = condition or "validation"
        inputs, limit = batch["inputs"], task.context if condition == "training" else task.longest
        assert inputs.shape[0] == 3, f"{where}: inputs {tuple(inputs.shape)} have no axis of 3 lanes first"
        if condition == "training":
            assert inputs.shape[1] == SEQUENCES, f"{SEQUENCES} training sequences were asked for: {inputs.shape[1]}"
        if isinstance(task, TokenTask):
            assert (inputs.dtype, inputs.dim()) == (torch.int64, 3), f"{where}: inputs must be int64 [L, N, s]"
            low, high = int(inputs.min()), int(inputs.max())
            assert 0 <= low <= high < task.tokens, f"{where}: tokens {low} to {high}, but `tokens` is {task.tokens}"
        else:
            assert isinstance(task, VectorTask | SetTask), "a task derives from TokenTask, VectorTask or SetTask"
            assert inputs.is_floating_point(), f"{where}: inputs must be floating point"
            assert inputs.shape[3] == task.features, f"{where}: {inputs.shape[3]} features, declared {task.features}"
            assert bool(inputs.isfinite().all()), f"{where}: an input is not finite"
        if not isinstance(task, SetTask):
            length = inputs.shape[2]
            assert length <= limit, f"{where}: {length} positions, but at most {limit} are declared"
        if "lengths" in batch:
            lengths = batch["lengths"]
            assert lengths.shape == inputs.shape[:2], f"{where}: lengths must be [L, N]"
            assert 1 <= int(lengths.min()) <= int(lengths.max()) <= inputs.shape[2], f"{where}: lengths out of range"


def check_loss_and_metrics(configuration: Configuration) -> None:
    """Assert that the loss is a finite number with a gradient, and metrics are one per sequence."""
    task: Task = build("task", configuration)
    for condition, stacked in sets(task, SEEDS, STEPS).items():
        batch = {name: tensor[1] for name, tensor in stacked.items()}
        outputs = outputs_for(task, batch).requires_grad_()
        if condition == "training":
            loss = task.loss(outputs, batch)
            assert loss.shape == (), f"the loss has the shape {tuple(loss.shape)}, not that of a number"
            assert bool(loss.isfinite()), f"the loss of random outputs is {float(loss)}"
            [gradient] = torch.autograd.grad(loss, [outputs])
            assert bool(gradient.isfinite().all()), "a gradient of the loss is not finite"
            assert bool(gradient.any()), "the loss does not depend on the outputs"
        else:
            metrics, count = task.metrics(outputs, batch), len(batch["inputs"])
            for name, values in metrics.items():
                shape = tuple(values.shape)
                assert shape == (count,), f"{name}: {shape}, one value for each of {count} sequences"
            means = {name: float(values.detach().mean()) for name, values in metrics.items()}
            summary = task.summary(means)
            assert summary, f"no metric of {condition or 'the validation set'}"
            assert all(isinstance(value, float) for value in summary.values()), "a summary must be numbers"


def check_position_loss(configuration: Configuration) -> None:
    """Assert that position_loss and position_targets give compiled steps the task's own loss."""
    task: Task = build("task", configuration)
    if task.position_loss is None:
        raise DoesNotApply("it says none, and trains by recorded operations")
    stacked = sets(task, SEEDS, STEPS)["training"]
    batch = {name: tensor[1] for name, tensor in stacked.items()}
    outputs = outputs_for(task, batch)
    targets, weights = (tensor[1] for tensor in task.position_targets(stacked, outputs.dtype))
    if task.position_loss == "cross_entropy":
        errors = -outputs.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    else:
        error = outputs[..., 0]
        errors = (error - targets).square() if task.position_loss == "squared" else softplus(-error * targets)
    message = "position_loss and position_targets say another loss"
    equal((errors * weights).sum(), task.loss(outputs, batch), message, 1e-9)
    one = torch.ones((), dtype=weights.dtype)
    equal(weights.sum(), one, "the weights of position_targets do not add to 1", 1e-6)


def check_chance(configuration: Configuration) -> None:
    """Assert that its facts tell what a guess would reach, as `chance`."""
    facts = build("task", configuration).facts()
    assert "chance" in facts, f"facts() tells {sorted(facts) or 'nothing'}, not `chance`"
    chance = facts["chance"]
    good = isinstance(chance, float) and 0 < chance < float("inf")
    assert good, f"chance is {chance!r}, not a number above 0"


def check_no_nan_is_taken_for_an_answer(configuration: Configuration) -> None:
    """Assert that outputs that are NaN make a metric NaN, so that broken training is seen."""
    task: Task = build("task", configuration)
    batch = {name: tensor[0] for name, tensor in sets(task, SEEDS, STEPS)[""].items()}
    metrics = task.metrics(torch.full_like(outputs_for(task, batch), float("nan")), batch)
    evaluated = {name: values for name, values in metrics.items() if not name.startswith(REFERENCES)}
    assert evaluated, "no metric is of the model's answers"
    broken = [name for name, values in evaluated.items() if not values.isfinite().all()]
    assert broken, f"{', '.join(evaluated)}: all finite for outputs that are NaN; add the loss as a metric"


def share_seen(configuration: Configuration) -> float:
    """Return the share of validation sequences that also come in a lane's first 4 training batches.

    Raises DoesNotApply for a task whose sequences are windows of one text.
    """
    task: Task = build("task", configuration)
    if not task.has_identities:
        raise DoesNotApply("its sequences are not apart from one another")
    seeds = SEEDS[:1]
    seen: set[bytes] = set()
    for step in range(4):
        at = torch.tensor([step])
        batch = task.training(Streams.of(seeds, Purpose.TRAINING_DATA, at), SEQUENCES, at)
        seen |= {row.numpy().tobytes() for row in task.identity(batch)[0]}
    streams = Streams.of(seeds, Purpose.VALIDATION_DATA, 0, 0)
    validation = task.identity(task.validation(streams, SEQUENCES))[0]
    return sum(row.numpy().tobytes() in seen for row in validation) / len(validation)
