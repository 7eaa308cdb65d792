"""The contract of models, on a small task that they read.

Legend: 2 sequences of four positions, or sets of four items.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from graft.testing.common import Configuration, DoesNotApply, build, equal
from spaces import plugins
from spaces.errors import PluginError
from workers.data.tasks import Batch, SetTask, Task, TokenTask, VectorTask
from workers.networks.models import Model
from workers.networks.modules import ModuleError
from workers.numerics.randomness import Streams

INPUTS = torch.tensor([[0, 3, 5, 1], [6, 2, 1, 0]])


class _WithoutData(Task):
    """A task of which only the shapes are asked."""

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        raise NotImplementedError

    def validation(self, streams: Streams, batch: int) -> Batch:
        raise NotImplementedError

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError


class Tokens(_WithoutData, TokenTask):
    """Sequences of four of seven tokens."""

    context, tokens = 4, 7  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]


class BothSides(Tokens):
    """Sequences of tokens where what is asked for is not in the input."""

    causal = False  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]


class Numbers(_WithoutData, VectorTask):
    """Sequences of vectors."""

    context, features, outputs = 4, 3, 2  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]


class Questions(_WithoutData, SetTask):
    """Sets with a question."""

    context, features = 4, 3  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    query_features, classes = 2, 5  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]


def tasks() -> list[Any]:
    """Return one task of each kind that a model may read."""
    return [Tokens(), BothSides(), Numbers(), Questions()]


def task_of(model: Model) -> Task:
    """Return a task of the kind that the model reads; raises DoesNotApply if it refuses all."""
    reasons: list[str] = []
    for task in tasks():
        try:
            model.check(task)
        except ModuleError:
            raise
        except PluginError as error:
            reasons.append(str(error))
        except (AttributeError, IndexError):
            reasons.append("it wants a task of its own")
        else:
            return task
    # That it reads tasks of another kind says least.
    reason = next((refusal for refusal in reasons if " reads " not in refusal), reasons[-1])
    raise DoesNotApply(f"it reads no task over 4 of 7 tokens, 4 vectors or 4 items: {reason}")


def batch_of(task: Task) -> Batch:
    """Return a batch of the task."""
    if isinstance(task, TokenTask):
        return {"inputs": INPUTS}
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    if isinstance(task, VectorTask):
        return {"inputs": inputs}
    query = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    return {"inputs": inputs, "query": query, "lengths": torch.tensor([4, 3])}


def draw_parameters(model: Model, seed: int = 0) -> dict[str, Tensor]:
    """Return random parameters."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: parameter.shape for name, parameter in model.parameters(task_of(model)).items()}
    return {name: 0.6 * torch.randn(*s, generator=generator, dtype=torch.float64) for name, s in shapes.items()}


def _model(configuration: Configuration) -> tuple[Model, Batch]:
    model: Model = build("model", configuration)
    return model, batch_of(task_of(model))


def check_gradients(configuration: Configuration) -> None:
    """Assert that its gradients are those of finite differences, for all its parameters."""
    model, batch = _model(configuration)
    parameters = draw_parameters(model)
    sample = {name: tensor[:1] for name, tensor in batch.items()}

    def outputs(*tensors: Tensor) -> Tensor:
        return model.outputs(dict(zip(parameters, tensors, strict=True)), sample, {})

    inputs = tuple(tensor.requires_grad_() for tensor in parameters.values())
    right = torch.autograd.gradcheck(outputs, inputs, fast_mode=True, raise_exception=False)
    assert right, "its gradients are not those of finite differences"


def check_shape(configuration: Configuration) -> None:
    """Assert that outputs have the shape that the task asks for."""
    model, batch = _model(configuration)
    task, outputs = task_of(model), model.outputs(draw_parameters(model), batch, {})
    if isinstance(task, SetTask):
        expected: tuple[int, ...] = (2, task.classes)
    else:
        expected = (2, 4, task.tokens if isinstance(task, TokenTask) else 2)
    assert outputs.shape == expected, f"outputs {tuple(outputs.shape)}, the task wants {expected}"


def check_causality(configuration: Configuration) -> None:
    """Assert that outputs depend on later tokens only if the model says that it is not causal."""
    model, batch = _model(configuration)
    if isinstance(task_of(model), SetTask):
        raise DoesNotApply("sets have no order")
    parameters, inputs = draw_parameters(model), batch["inputs"]
    outputs = model.outputs(parameters, batch, {})
    for length in range(1, 4):
        changed = inputs.clone()
        changed[:, length:] = (changed[:, length:] + 1) % 7
        other = model.outputs(parameters, {"inputs": changed}, {})
        assert not torch.allclose(outputs[:, length], other[:, length]), f"output {length} ignores input {length}"
        shorter = model.outputs(parameters, {"inputs": inputs[:, :length]}, {})
        for what, prefix in (("what comes later", other[:, :length]), ("how long a sequence is", shorter)):
            blind = torch.allclose(outputs[:, :length], prefix, rtol=0, atol=1e-12)
            word = "ignore" if blind else "see"
            assert blind == model.causal, f"causal is {model.causal}, but outputs {word} {what}"


def check_lengths(configuration: Configuration) -> None:
    """Assert that outputs do not depend on tokens beyond a sequence's length."""
    model, batch = _model(configuration)
    parameters, whole = draw_parameters(model), {**batch, "lengths": torch.tensor([3, 2])}
    changed = {**whole, "inputs": batch["inputs"].clone()}
    changed["inputs"][0, 3:], changed["inputs"][1, 2:] = 1, 4
    try:
        outputs, other = model.outputs(parameters, whole, {}), model.outputs(parameters, changed, {})
    except PluginError as error:
        raise DoesNotApply(str(error)) from error
    if isinstance(task_of(model), SetTask):
        outputs, other = outputs[:, None], other[:, None]
    equal(outputs[0, :3], other[0, :3], "what lies beyond `lengths` changes outputs")
    equal(outputs[1, :2], other[1, :2], "what lies beyond `lengths` changes outputs")


def check_sets(configuration: Configuration) -> None:
    """Assert that a model over sets gives the same outputs whatever the items' order."""
    model, batch = _model(configuration)
    if not isinstance(task_of(model), SetTask):
        raise DoesNotApply("it reads sequences")
    parameters, inputs = draw_parameters(model), batch["inputs"]
    turned = {**batch, "inputs": torch.cat([inputs[:, :3].flip(1), inputs[:, 3:]], 1)}
    before, after = (model.outputs(parameters, items, {}) for items in (batch, turned))
    equal(after, before, "outputs depend on items' order")


def check_sequences(configuration: Configuration) -> None:
    """Assert that sequences of a batch do not see each other."""
    model, batch = _model(configuration)
    parameters = draw_parameters(model)
    together = model.outputs(parameters, batch, {})
    for row in range(2):
        sequence = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        alone = model.outputs(parameters, sequence, {})
        equal(together[row], alone[0], "outputs of a sequence depend on the others of its batch")


def check_parameters(configuration: Configuration) -> None:
    """Assert that every parameter has a gradient."""
    model, batch = _model(configuration)
    parameters = {name: tensor.requires_grad_() for name, tensor in draw_parameters(model).items()}
    outputs = model.outputs(parameters, batch, {}).square().sum()
    gradients: Any = torch.autograd.grad(outputs, list(parameters.values()), allow_unused=True)
    pairs = zip(parameters, gradients, strict=True)
    unread = [name for name, gradient in pairs if gradient is None or not bool(gradient.any())]
    assert not unread, f"nothing depends on {', '.join(unread)}"


def check_lanes(configuration: Configuration) -> None:
    """Assert that lanes, stacked by vmap, give what each gives alone."""
    model, batch = _model(configuration)
    lanes = [draw_parameters(model, seed) for seed in range(3)]
    stacked = {name: torch.stack([lane[name] for lane in lanes]) for name in lanes[0]}
    pairs = plugins.knobs(model)
    knobs = {path: torch.full((3,), value, dtype=torch.float64) for path, value in pairs}

    def outputs(knobs: dict[str, Tensor], parameters: dict[str, Tensor]) -> Tensor:
        return plugins.bind(model, knobs).outputs(parameters, batch, {})

    together = vmap(outputs)(knobs, stacked)
    for lane in range(3):
        alone = model.outputs(lanes[lane], batch, {})
        equal(together[lane], alone, "stacked lanes differ from lanes alone")


def check_refusals(configuration: Configuration) -> None:
    """Assert that the model refuses tasks of another kind with a message of one line."""
    model, _ = _model(configuration)
    kind = type(task_of(model))
    for task in tasks():
        if type(task) is kind:
            continue
        refusal: str | None = None
        try:
            model.check(task)
        except PluginError as error:
            refusal = str(error)
        assert refusal is not None, f"it takes a task like {type(task).__doc__} call require_task in `check`"
        assert "\n" not in refusal, "the refusal has several lines"
