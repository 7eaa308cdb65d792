"""The gradient of an architecture that is learned, by the native gradient of one of its models.

Legend: L lanes, M models, W weights of one of them, F numbers of the form; P = M W + F.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor

from spaces import plugins
from workers.data.tasks import Batch, Task
from workers.networks.gradients.native_models import NativeModel
from workers.networks.gradients.plans import starts_of
from workers.networks.models import Model
from workers.numerics.parameters import within
from workers.numerics.randomness import Streams
from workers.training.learning.architecture import HELD_OUT, MODELS, Architecture
from workers.training.recipe import Recipe, layout_of

Part = TypeVar("Part", Model, Task)


@final
class ArchitectureGradient:
    """Loss and gradient of `Architecture.gradient`: every model of every lane is a lane of its own.

    A model's weights have the gradient on its own batch, and the form has the sum of the models'
    gradients on the form's batch. The native code gives both gradients on both batches; torch's
    own code computes as much.
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
        self, model: Any, task: Any, parameters: Tensor, batch: Batch, streams: Sequence[Streams], /
    ) -> tuple[Tensor, Tensor]:
        """Compute the gradient [L, P] and the mean loss of the models [L], as `NativeModel` does."""
        lanes = len(parameters)
        model, task = self._of_each(self._recipe.model, model), self._of_each(self._recipe.task, task)
        own = parameters[:, self._places].flatten(0, 1)
        trained = {name: one for name, one in batch.items() if not name.startswith(HELD_OUT)}
        trained = {name: one.unflatten(1, (self._models, -1)).flatten(0, 1) for name, one in trained.items()}
        shared = {name: one.repeat_interleave(self._models, 0) for name, one in within(HELD_OUT, batch).items()}
        of_weights, loss = self._one.gradient(model, task, own, trained, ())  # there is no dropout
        of_form, _ = self._one.gradient(model, task, own, shared, ())
        gradient = parameters.new_empty(lanes, self._total)
        at = self._places[:, self._weights].flatten()
        gradient[:, at] = of_weights[:, self._weights].view(lanes, -1)
        gradient[:, self._places[0, self._form]] = of_form[:, self._form].view(lanes, self._models, -1).sum(1)
        return gradient, loss.view(lanes, -1).mean(1)

    def _of_each(self, plugin: Part, bound: Part) -> Part:
        """Return a plug-in whose knobs are those that are bound to lanes [L], for each model of a lane [L M]."""
        knobs = {path: value for path, value in plugins.knobs(bound) if isinstance(value, Tensor)}
        return plugins.bind(plugin, {path: value.repeat_interleave(self._models) for path, value in knobs.items()})
