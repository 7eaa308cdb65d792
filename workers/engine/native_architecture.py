"""An architecture that is learned, by the native gradient and outputs of one of its models.

Legend: L lanes, M models, N sequences, W weights of a model, F numbers of the form; P = M W + F.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from spaces import plugins
from workers.data.tasks import Batch, Task
from workers.engine.lane_programs import was_trained_by
from workers.networks.gradients.native_models import NativeModel
from workers.networks.gradients.plans import starts_of
from workers.networks.models import Model
from workers.numerics.parameters import within
from workers.numerics.randomness import SiteStreams
from workers.training.learning import Learning
from workers.training.learning.architecture import HELD_OUT, MODELS, Architecture
from workers.training.learning.weights import Weights
from workers.training.recipe import Recipe, layout_of

Part = TypeVar("Part", Model, Task)


def find_obstacle(recipe: Recipe) -> str | None:
    """Return why what a trial learns has no native gradient and outputs; None if it has."""
    if not isinstance(recipe.learning, Weights | Architecture):
        return "the native steps learn weights and architectures alone"
    if isinstance(recipe.learning, Architecture):
        is_other = was_trained_by("generated", "traced")
    else:
        # A GPU's bits are no CPU's; and with autocast only the step was traced, the evaluation native.
        on_gpu = was_trained_by("traced cuda")
        is_other = was_trained_by("traced") and not on_gpu and recipe.training.autocast == "none"
    return "the trial was trained by another step" if is_other else None


def models_of(learning: Learning) -> int:
    """Return how many models of a trial train side by side."""
    return learning.models if isinstance(learning, Architecture) else 1


def learned_by(recipe: Recipe, computed: NativeModel) -> NativeModel:
    """Return the gradient and the outputs of all that a trial learns, by those of its model."""
    return computed if recipe.learning.is_plain else NativeArchitecture(recipe, computed)


@final
class NativeArchitecture:
    """Every model of every lane is a lane of its own.

    A model's weights have the gradient on its own batch, and the form has the sum of the models'
    gradients on the form's batch, as in `Architecture.gradient`. The native code gives both
    gradients on both batches; torch's own code computes as much.
    """

    def __init__(self, recipe: Recipe, computed: NativeModel) -> None:
        assert isinstance(recipe.learning, Architecture), "nothing else is learned beside weights"
        self._recipe, self._one, self._models = recipe, computed, recipe.learning.models
        model = recipe.model.parameters(recipe.task)
        starts, self._total = starts_of(layout_of(recipe).parameters)
        places, is_form = list[Tensor](), list[Tensor]()
        for name, parameter in model.items():
            first = [starts.get(f"{MODELS}.{number}.{name}", starts.get(name)) for number in range(self._models)]
            size = math.prod(parameter.shape)
            places.append(torch.tensor(first)[:, None] + torch.arange(size))
            is_form.append(torch.full((size,), name in starts))
        self._places = torch.cat(places, 1)  # [M, W + F]: where a model's parameters are among all
        whole = torch.cat(is_form)
        self._weights, self._form = (~whole).nonzero()[:, 0], whole.nonzero()[:, 0]

    def gradient(
        self, model: Any, task: Any, parameters: Tensor, batch: Batch, streams: SiteStreams, /
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient [L, P] and the mean loss of the models [L], as `NativeModel` does."""
        lanes = len(parameters)
        model, task, flat = self._of_each(model, task, parameters)
        trained = {name: tensor for name, tensor in batch.items() if not name.startswith(HELD_OUT)}
        trained = {name: tensor.unflatten(1, (self._models, -1)).flatten(0, 1) for name, tensor in trained.items()}
        shared = {name: tensor.repeat_interleave(self._models, 0) for name, tensor in within(HELD_OUT, batch).items()}
        of_weights, loss = self._one.gradient(model, task, flat, trained, streams)  # there is no dropout
        of_form, _ = self._one.gradient(model, task, flat, shared, streams)
        gradient = parameters.new_empty(lanes, self._total)
        at = self._places[:, self._weights].flatten()
        gradient[:, at] = of_weights[:, self._weights].view(lanes, -1)
        gradient[:, self._places[0, self._form]] = of_form[:, self._form].view(lanes, self._models, -1).sum(1)
        return gradient, loss.view(lanes, -1).mean(1)

    def outputs(self, model: Any, task: Any, parameters: Tensor, batch: Batch, /) -> Tensor:
        """Compute the models' outputs [L, M N, ...] on a set [L, N, ...], one model after another."""
        model, task, flat = self._of_each(model, task, parameters)
        shared = {name: tensor.repeat_interleave(self._models, 0) for name, tensor in batch.items()}
        outputs = self._one.outputs(model, task, flat, shared)
        return outputs.unflatten(0, (len(parameters), self._models)).flatten(1, 2)

    def _of_each(self, model: Model, task: Task, parameters: Tensor) -> tuple[Model, Task, Tensor]:
        """Return each model's knobs [L M], the task's for each, and their parameters [L M, W + F]."""

        def repeat(plugin: Part, bound: Part) -> Part:
            knobs = {path: value for path, value in plugins.knobs(bound) if isinstance(value, Tensor)}
            return plugins.bind(plugin, {path: value.repeat_interleave(self._models) for path, value in knobs.items()})

        flat = parameters[:, self._places].flatten(0, 1)
        return repeat(self._recipe.model, model), repeat(self._recipe.task, task), flat
