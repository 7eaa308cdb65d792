"""One trial: what its configuration says, and one training step of it as a pure function.

Nothing here knows of lanes. `workers.pack` stacks these functions with vmap.
Legend: P parameters in one flat vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad_and_value

from spaces import plugins
from spaces.errors import PluginError
from spaces.settings import Training
from workers.averaging import Averaging, Shadow
from workers.models import Model
from workers.optimizers import Moments, Optimizer, clipped
from workers.parameters import Parameter, Parameters
from workers.randomness import Purpose, Streams
from workers.tasks import Batch, Task

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A trial's configuration as plug-ins; inside the engine its knobs are tensors."""

    task: Task
    model: Model
    optimizer: Optimizer
    averaging: Averaging
    training: Training

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Recipe:
        """From a trial's resolved configuration; raises PluginError that names path, value and rule."""
        recipe = cls(
            task=plugins.build(Task, config["task"], "task"),
            model=plugins.build(Model, config["model"], "model"),
            optimizer=plugins.build(Optimizer, config["optimizer"], "optimizer"),
            averaging=plugins.build(Averaging, config["averaging"], "averaging"),
            training=Training(**config["training"]),
        )
        recipe.model.check(recipe.task)
        if recipe.training.pad_shapes and not recipe.model.may_pad:
            raise PluginError(
                f"training.pad_shapes: true, but the model {plugins.name_of(recipe.model)} cannot be padded as it is: "
                "minimal can, with a scorer that depends on the scaled logits alone; set it to false"
            )
        return recipe

    def knobs(self) -> dict[str, float]:
        """Dotted path -> value of every knob; where trials of other sizes train beside it, of every padded size too."""
        found: dict[str, float] = {}
        for section in SECTIONS:
            found.update(plugins.knobs(getattr(self, section), section))
            if self.training.pad_shapes:
                found.update(plugins.paddable_sizes(getattr(self, section), section))
        return found

    def padded(self) -> Recipe:
        """The recipe that trials of this structure share: with padded sizes, if the trial's are."""
        if not self.training.pad_shapes:
            return self
        return Recipe(**{section: plugins.padded(getattr(self, section)) for section in SECTIONS})

    def bind(self, knobs: Mapping[str, Any]) -> Recipe:
        """The same recipe with its knobs replaced, for example by scalars under vmap."""
        return Recipe(**{section: plugins.bind(getattr(self, section), knobs, section) for section in SECTIONS})

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.training.dtype]


SECTIONS = ("task", "model", "optimizer", "averaging", "training")


class State(NamedTuple):
    """Everything that changes while a trial trains. A NamedTuple, so that torch sees its tensors."""

    parameters: Tensor  # [P]
    moments: Moments
    shadow: Shadow
    step: Tensor  # scalar int64: updates made
    loss_sum: Tensor  # scalar float64: training losses since the last report
    diverged_at: Tensor  # scalar int64: the first step whose loss was not finite, 0 if none


@dataclass(frozen=True)
class Layout:
    """How named parameters lie in the flat vector [P]."""

    parameters: Mapping[str, Parameter]

    @classmethod
    def of(cls, recipe: Recipe) -> Layout:
        """Of the recipe's model on its task."""
        return cls(recipe.model.parameters(recipe.task))

    @property
    def total(self) -> int:
        return sum(math.prod(p.shape) for p in self.parameters.values())

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of the flat vector, by name."""
        sizes = [math.prod(p.shape) for p in self.parameters.values()]
        pieces = flat.split(sizes, dim=-1)
        return {name: piece.view(p.shape) for (name, p), piece in zip(self.parameters.items(), pieces, strict=True)}

    def join(self, named: Parameters) -> Tensor:
        """The flat vector of named tensors."""
        return torch.cat([named[name].reshape(-1) for name in self.parameters])

    def padded(self, own: Layout, flat: Tensor) -> Tensor:
        """[P] of this layout from those of `own`, whose tensors are nowhere larger; what is added is zero."""
        shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        named = {name: flat.new_zeros(shape) for name, shape in shapes.items()}
        for name, tensor in own.split(flat).items():
            named[name][_corner(tensor.shape)] = tensor
        return self.join(named)

    def cropped(self, own: Layout, flat: Tensor) -> dict[str, Tensor]:
        """By name the part of [P] that `own`, whose tensors are nowhere larger, has."""
        named = self.split(flat)
        return {name: named[name][_corner(parameter.shape)] for name, parameter in own.parameters.items()}

    def decays(self, dtype: torch.dtype) -> Tensor:
        """[P] 1 where weight decay applies."""
        pieces = [torch.full((math.prod(p.shape),), float(p.decay), dtype=dtype) for p in self.parameters.values()]
        return torch.cat(pieces)

    def initial(self, seeds: Tensor) -> Tensor:
        """[L, P] float64 initial parameters of trials with `seeds` [L]: each entry from its own counter."""
        uniform = Streams.of(seeds, Purpose.INITIAL, 0).uniform(self.total)
        sizes = [math.prod(p.shape) for p in self.parameters.values()]
        pieces = zip(self.parameters.values(), uniform.split(sizes, dim=-1), strict=True)
        return torch.cat([parameter.start.values(piece) for parameter, piece in pieces], dim=-1)


def _corner(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(extent) for extent in shape)


def begin(recipe: Recipe, parameters: Tensor) -> State:
    """The state before the first step, from the initial parameters [P]."""
    zero = torch.zeros((), dtype=torch.int64, device=parameters.device)
    return State(
        parameters=parameters,
        moments=recipe.optimizer.start(parameters),
        shadow=recipe.averaging.start(parameters),
        step=zero,
        loss_sum=zero.double(),
        diverged_at=zero,
    )


def advance(recipe: Recipe, layout: Layout, decays: Tensor, state: State, batch: Batch, keep: Parameters) -> State:
    """One training step: gradient, clipping, optimizer, average."""

    def loss_of(parameters: Parameters) -> Tensor:
        return recipe.task.loss(recipe.model.logits(parameters, batch["inputs"], keep), batch)

    named, loss = grad_and_value(loss_of)(layout.split(state.parameters))
    return updated(recipe, decays, state, layout.join(named), loss)


def updated(recipe: Recipe, decays: Tensor, state: State, gradient: Tensor, loss: Tensor) -> State:
    """The state after a step whose loss had this value and this gradient [P]: clipping, optimizer, average."""
    optimizer, training = recipe.optimizer, recipe.training
    gradient = clipped(gradient, torch.as_tensor(optimizer.clip_norm))
    rate = optimizer.learning_rate * optimizer.schedule.factor(state.step, torch.as_tensor(training.steps))
    parameters, moments = optimizer.update(state.parameters, gradient, state.moments, rate, state.step, decays)
    after = state.step + 1
    first_bad = (state.diverged_at == 0) & ~loss.isfinite()
    return State(
        parameters=parameters,
        moments=moments,
        shadow=recipe.averaging.update(state.shadow, parameters, state.step),
        step=after,
        loss_sum=state.loss_sum + loss.double(),
        diverged_at=torch.where(first_bad, after, state.diverged_at),
    )


def update_key(recipe: Recipe) -> str:
    """What `updated` does but for numbers: recipes of equal keys share its recordings."""
    layout = [(parameter.shape, parameter.decay) for parameter in Layout.of(recipe).parameters.values()]
    parts = [plugins.structure_of(part) for part in (recipe.optimizer, recipe.averaging)]
    return plugins.canonical_json([*parts, layout, recipe.training.dtype, [*recipe.knobs()]])


def judging_key(recipe: Recipe) -> str:
    """What `judged` does but for numbers: recipes of equal keys share its recordings."""
    parts = [plugins.structure_of(part) for part in (recipe.task, recipe.model.for_validation(), recipe.averaging)]
    return plugins.canonical_json([*parts, recipe.training.dtype, [*recipe.knobs()]])


def judged(recipe: Recipe, layout: Layout, state: State, batch: Batch) -> dict[str, dict[str, Tensor]]:
    """Variant -> metric -> one value [N] per validation sequence."""
    averages = recipe.averaging.evaluated(state.shadow, state.parameters, state.step)
    variants, model = {"raw": state.parameters, **averages}, recipe.model.for_validation()
    metrics: dict[str, dict[str, Tensor]] = {}
    for variant, flat in variants.items():
        logits = model.logits(layout.split(flat), batch["inputs"], {})
        metrics[variant] = recipe.task.metrics(logits, batch)
    return metrics
