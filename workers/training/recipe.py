"""One trial: its configuration, and its optimizer step and evaluation as pure functions.

Only `evaluation_sets` computes for many lanes; `_accumulate` adds a lane axis of one. On the traced
step `workers.engine.step` stacks `advance` with vmap, or `gradient_of` where the update is a kernel
of its own; the generated step records `gradient_of`; other steps compute the same formulas. The
keys at the end say which trials share a recording of a function.

Legend: P parameters in one flat vector, N sequences of a batch, L lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from spaces import plugins
from spaces.errors import PluginError
from spaces.settings import Training
from workers.data.tasks import Batch, Task
from workers.networks.diagnostics import Diagnostic, diagnose
from workers.networks.models import Model
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameters
from workers.numerics.randomness import Purpose, Streams
from workers.training.averaging import Averaging, Shadow
from workers.training.learning import Learning, Loss
from workers.training.optimizers import Descent, Moments, Optimizer

Masks = Mapping[str, Tensor]
"""Dropout site that is on -> bool, False where it drops."""
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A trial's configuration as plug-ins; inside the engine its knobs are tensors."""

    task: Task
    model: Model
    optimizer: Optimizer
    averaging: Averaging
    learning: Learning
    training: Training

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Recipe:
        """Return the recipe of a resolved configuration; raises PluginError."""
        recipe = cls(
            task=plugins.build(Task, config["task"], "task"),
            model=plugins.build(Model, config["model"], "model"),
            optimizer=plugins.build(Optimizer, config["optimizer"], "optimizer"),
            averaging=plugins.build(Averaging, config["averaging"], "averaging"),
            learning=plugins.build(Learning, config.get("learning", _PLAIN), "learning"),
            training=Training(**config["training"]),
        )
        recipe.model.check(recipe.task)
        recipe.learning.check(recipe.model, recipe.task, padded=recipe.training.pad_shapes)
        recipe.optimizer.check(recipe.model.parameters(recipe.task).values())
        recipe._check_accumulation_and_autocast()
        if recipe.training.pad_shapes and recipe.training.diagnostics:
            raise PluginError(
                "training.pad_shapes: true, but diagnostics do not know padding; set one of the two to false"
            )
        for part in (recipe.model, recipe.optimizer):
            if recipe.training.pad_shapes and (obstacle := part.padding_obstacle):
                raise PluginError(
                    f"training.pad_shapes: true, but {plugins.name_of(part)} cannot be padded: {obstacle}; set it to "
                    "false"
                )
        return recipe

    def _check_accumulation_and_autocast(self) -> None:
        """Raise PluginError if `accumulate` or `autocast` does not fit the rest of the recipe."""
        training, parts = self.training, self.training.accumulate
        if parts > 1 and training.batch % parts:
            raise PluginError(f"training.accumulate: {parts} must divide training.batch {training.batch}")
        if parts > 1 and (self.task.position_loss is None or training.pad_shapes):
            reason = "its tensors are padded" if training.pad_shapes else "its task declares no position_loss"
            raise PluginError(f"training.accumulate: {parts} must be 1: {reason}")
        if not self.learning.is_plain and not self.is_plain_step:
            raise PluginError(
                f"learning: {plugins.name_of(self.learning)} needs training.accumulate 1 and training.autocast none; "
                "with others only `weights` trains"
            )
        if training.autocast != "none" and training.dtype != "float32":
            raise PluginError(f"training.autocast: {training.autocast} needs training.dtype float32")

    @property
    def is_plain_step(self) -> bool:
        """True if a step takes the whole batch at once, in the trial's own precision."""
        return self.training.accumulate == 1 and self.training.autocast == "none"

    def knobs(self) -> dict[str, float]:
        """Return dotted path -> value of every knob; if tensors are padded, of the trial's own sizes, too."""
        values: dict[str, float] = {}
        for section in SECTIONS:
            values.update(plugins.knobs(getattr(self, section), section))
            if self.training.pad_shapes:
                values.update(plugins.paddable_sizes(getattr(self, section), section))
        return values

    def pad(self) -> Recipe:
        """Return the recipe that trials of this structure share, with padded sizes if they pad."""
        if not self.training.pad_shapes:
            return self
        return Recipe(**{name: plugins.pad_sizes(getattr(self, name)) for name in SECTIONS})

    def bind(self, knobs: Mapping[str, Any]) -> Recipe:
        """Return the same recipe with its knobs replaced, for example by scalars under vmap."""
        return Recipe(**{name: plugins.bind(getattr(self, name), knobs, name) for name in SECTIONS})

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.training.dtype]


@final
class BoundRecipe:
    """A recipe with the knobs of a pack's first lanes, bound anew only for other tensors.

    A trial that takes a lane writes into the knobs' tensors: what is bound has its values at once.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = self._bound = recipe
        self._of: tuple[Mapping[str, Tensor], int | None] = {}, None

    def of(self, knobs: Mapping[str, Tensor], lanes: int | None = None) -> Recipe:
        """Return the recipe with the first so many of these knobs [L]; None: with all."""
        if self._of[0] is not knobs or self._of[1] != lanes:
            self._of = knobs, lanes
            self._bound = self._recipe.bind({path: values[:lanes] for path, values in knobs.items()})
        return self._bound


SECTIONS = ("task", "model", "optimizer", "averaging", "learning", "training")
_PLAIN = {"name": "weights"}
"""The learning of trials that were stored before there was a choice."""


class State(NamedTuple):
    """All that changes while a trial trains. A NamedTuple, so that torch sees its tensors."""

    parameters: Tensor  # [P]
    moments: Moments
    shadow: Shadow
    step: Tensor  # scalar int64: updates made
    loss_sum: Tensor  # scalar float64: training losses since the last report
    diverged_at: Tensor  # scalar int64: the first step whose loss was not finite, 0 if none


def layout_of(recipe: Recipe, device: torch.device | str = "cpu") -> Layout:
    """Return the layout of the parameters that are trained."""
    trained = recipe.learning.parameters(recipe.model.parameters(recipe.task))
    return Layout.of(trained, recipe.dtype, device)


def initial_state(recipe: Recipe, layout: Layout, parameters: Tensor) -> State:
    """Return the state before the first step, from the initial parameters [P]."""
    zero = torch.zeros((), dtype=torch.int64, device=parameters.device)
    moments = recipe.learning.start(recipe.optimizer, layout, parameters)
    shadow = recipe.averaging.start(parameters)
    return State(parameters, moments, shadow, step=zero, loss_sum=zero.double(), diverged_at=zero)


def advance(recipe: Recipe, layout: Layout, state: State, batch: Batch, masks: Masks) -> State:
    """Return the state after one step: gradient, clipping, optimizer, average."""
    gradient, loss = gradient_of(recipe, layout, state.parameters, batch, masks)
    return apply_gradient(recipe, layout, state, gradient, loss)


def gradient_of(recipe: Recipe, layout: Layout, flat: Tensor, batch: Batch, masks: Masks) -> tuple[Tensor, Tensor]:
    """Return the gradient [P], not clipped, and the training loss, a scalar, at parameters [P]."""
    if recipe.training.accumulate == 1:
        return recipe.learning.gradient(layout, flat, batch, _loss(recipe, masks))
    return _accumulate(recipe, layout, flat, batch, masks)


def _accumulate(recipe: Recipe, layout: Layout, flat: Tensor, batch: Batch, masks: Masks) -> tuple[Tensor, Tensor]:
    """Return gradient and loss of a batch [N, ...] from its parts, one in memory at a time.

    The loss of a part is the weighted mean over its own positions, so it counts by its share of the
    batch's weights, which add to 1.
    """
    count = recipe.training.accumulate
    _, weights = recipe.task.position_targets({name: tensor[None] for name, tensor in batch.items()}, recipe.dtype)
    shares = weights[0].unflatten(0, (count, -1)).flatten(1).sum(-1)
    length = batch["inputs"].shape[1]
    whole, small = (
        {name: site.shape for name, site in recipe.model.dropout_sites(recipe.task, size, length).items()}
        for size in (recipe.training.batch, recipe.training.batch // count)
    )
    gradient, loss = torch.zeros_like(flat), torch.zeros_like(shares[0])
    for number in range(count):
        part = {name: tensor.chunk(count)[number] for name, tensor in batch.items()}
        # A mask that is drawn for tokens and not for sequences is the same for all parts.
        keep = {name: mask if whole[name] == small[name] else mask.chunk(count)[number] for name, mask in masks.items()}
        of_part, part_loss = recipe.learning.gradient(layout, flat, part, _loss(recipe, keep))
        # The loss of a part without weights may be 0 / 0; times its share of 0 that would stay NaN.
        is_empty = shares[number] == 0
        gradient = gradient + torch.where(is_empty, 0, shares[number] * of_part)
        loss = loss + torch.where(is_empty, 0, shares[number] * part_loss)
    return gradient, loss


def _loss(recipe: Recipe, masks: Masks) -> Loss:
    """Return the training loss, with these dropout masks."""

    def loss_of(parameters: Parameters, batch: Batch) -> Tensor:
        device = batch["inputs"].device
        # torch has no autocast on the meta device, where the cost of a step is estimated.
        if recipe.training.autocast == "none" or device.type == "meta":
            return recipe.task.loss(recipe.model.outputs(parameters, batch, masks), batch)
        # Without torch's cache of cast weights: a recording would keep those of one step.
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            outputs = recipe.model.outputs(parameters, batch, masks)
        return recipe.task.loss(outputs.to(recipe.dtype), batch)

    return loss_of


def apply_gradient(recipe: Recipe, layout: Layout, state: State, gradient: Tensor, loss: Tensor) -> State:
    """Return the state after a step by a loss and gradient [P]: clipping, optimizer, average.

    The gradient of a parameter that is frozen counts as 0.
    """
    steps = torch.as_tensor(recipe.training.steps)
    gradient = gradient if layout.learns is None else gradient * layout.learns
    descent = Descent(state.parameters, gradient, state.moments, state.step, steps)
    parameters, moments = recipe.learning.update(recipe.optimizer, layout, descent)
    counted = count_step(state.step, loss, state.loss_sum, state.diverged_at)
    shadow = recipe.averaging.update(state.shadow, parameters, state.step)
    return State(parameters, moments, shadow, *counted)


def count_step(step: Tensor, loss: Tensor, loss_sum: Tensor, diverged_at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `step`, `loss_sum` and `diverged_at` of the state after a step with this loss."""
    after = step + 1
    first_bad = (diverged_at == 0) & ~loss.isfinite()
    return after, loss_sum + loss.double(), torch.where(first_bad, after, diverged_at)


def average(recipe: Recipe, state: State, index: Tensor) -> Tensor:
    """Return the averaging's variant with this index, an int64 scalar: parameters [P]."""
    return recipe.averaging.average(state.shadow, state.parameters, state.step, index)


def evaluate(recipe: Recipe, layout: Layout, model: Model, flat: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Return metric -> a value [N] per sequence, by `model`, one of `Model.evaluations`."""

    def evaluate_model(parameters: Parameters) -> dict[str, Tensor]:
        outputs = model.outputs(parameters, batch, {})
        metrics = recipe.task.metrics(outputs, batch)
        return metrics | diagnose(model, parameters, batch, outputs) if recipe.training.diagnostics else metrics

    return recipe.learning.evaluate(layout, flat, evaluate_model)


def summarise(recipe: Recipe, means: Mapping[str, float]) -> Mapping[str, float]:
    """Return what is reported of a set, from the means of the values of `evaluate`.

    That is the task's summary of its own metrics, and diagnostics as they are.
    """
    if not recipe.training.diagnostics:
        return recipe.task.summary(means)
    kinds = plugins.names(Diagnostic)
    diagnostics = {name: mean for name, mean in means.items() if name.partition(" ")[0] in kinds}
    own = {name: mean for name, mean in means.items() if name not in diagnostics}
    return {**recipe.task.summary(own), **diagnostics}


def evaluation_sets(
    task: Task, seeds: Tensor, count: int, purpose: Purpose = Purpose.VALIDATION_DATA
) -> dict[str, Batch]:
    """Return condition -> evaluation set of trials with `seeds` [L].

    The validation set has the condition ''. The purpose TEST_DATA gives other draws of the same
    kinds: the test sets.
    """
    plain, shifted = (Streams.of(seeds, purpose, 0, site) for site in range(2))
    return {"": task.validation(plain, count), **task.shifted_sets(shifted, count)}


def update_key(recipe: Recipe) -> str:
    """Return a key of all that shapes `apply_gradient`, without knobs' values.

    Trials of equal keys share its recording.
    """
    parameters = layout_of(recipe).parameters.items()
    layout = [(name, p.shape, p.decay, p.matrices, p.frozen, p.nonlinearity) for name, p in parameters]
    parts = [plugins.structure_of(part) for part in (recipe.optimizer, recipe.averaging, recipe.learning)]
    return plugins.canonical_json([*parts, layout, recipe.training.dtype, [*recipe.knobs()]])


def scalars_paths(recipe: Recipe) -> list[str]:
    """Return the paths of the knobs from which an update's scalars follow."""
    return [path for path in recipe.knobs() if path.startswith(("optimizer.", "averaging.", "training."))]


def scalars_key(recipe: Recipe) -> str:
    """Return a key of all that shapes these scalars, which are alike for models of every size."""
    parts = [plugins.structure_of(part) for part in (recipe.optimizer, recipe.averaging)]
    return plugins.canonical_json([*parts, scalars_paths(recipe)])


def metrics_key(recipe: Recipe) -> str:
    """Return a key of all that shapes the task's metrics, as `update_key` does of the update."""
    knobs = [path for path in recipe.knobs() if path.startswith("task.")]
    return plugins.canonical_json([plugins.structure_of(recipe.task), recipe.training.dtype, knobs])


def evaluation_keys(recipe: Recipe) -> dict[str, str]:
    """Return label -> a key of all that shapes that evaluation, as `update_key` does of the update."""
    reported = plugins.names(Diagnostic) if recipe.training.diagnostics else ()
    diagnostics = {name: plugins.code_of_class(plugins.load(Diagnostic, name)) for name in reported}
    rest = [recipe.training.dtype, recipe.training.diagnostics, diagnostics, [*recipe.knobs()]]
    parts = [plugins.structure_of(part) for part in (recipe.task, recipe.learning)]
    return {
        label: plugins.canonical_json([*parts, plugins.structure_of(model), *rest])
        for label, model in recipe.model.evaluations().items()
    }
