"""Stage one of paper 002: several models train while they share a non-linearity that learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor
from torch.func import grad, vmap

from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins import Examples
from spaces.plugins.fields import part, size, step_count
from workers.data.tasks import Batch, Task
from workers.networks import learned_splines
from workers.networks.models import Model, in_use
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter, under, within
from workers.numerics.randomness import Purpose, Streams
from workers.training.learning import EvaluateModel, Learning, Loss
from workers.training.learning._shares import draw_held_out, draw_kept
from workers.training.optimizers import Descent, Moments, Optimizer

MODELS, HELD_OUT = "models", "held_out"
"""Prefixes of the names of the models' weights (`models.0.`), and of the batch that teaches the form."""


class _Layouts(NamedTuple):
    weights: Layout
    """The layout of one model's weights."""
    form: Layout
    """The layout of the shared parameters."""


@final
@dataclass(frozen=True, kw_only=True)
class Architecture(Learning):
    """`models` models of their own weights and data share non-linearities (paper 002, Algorithm 1).

    Each model's weights descend the loss on its own batch; the form of the non-linearities (knots
    of a spline in the MLP, in attention, or in both) descends the sum of the models' losses on a
    batch of other data, and neither sees the other's gradient. Metrics are means over the models.
    The result is kept for trials of stage two: `activation: {spline: {start: given, frozen: true,
    values: ...}}`. Legend: M models, W weights of one of them, F numbers of the form; P = M W + F.
    """

    EXAMPLES: ClassVar[Examples] = ({"models": 2, "life": 4},)

    models: int = size(8)
    held_out_one_in: int = size(5, low=0)
    """One sequence in so many, by a hash, teaches the form alone, the others the weights alone. Of
    a text these are the last documents, as windows of one share content. 0: both learn from all, as
    for a map that is memorised. 5 is the paper's 20 %.
    """
    life: int = step_count(0)
    """Steps after which a model is reset to new weights, and its schedule's length; 0, as in the
    paper: never. One model is reset every life / M steps (rounded down), so that the form serves
    weights of every age.
    """
    optimizer: Optimizer = part(Optimizer, "adam")
    """The optimizer of the form; the trial's optimizer updates the weights."""

    def __post_init__(self) -> None:
        if self.held_out_one_in == 1:
            raise PluginError("learning.held_out_one_in: 1 leaves nothing to the weights; it must be 0 or at least 2")
        if 0 < self.life < self.models:
            raise PluginError(f"learning.life: {self.life} must be 0 or at least learning.models, {self.models}")

    @property
    def passes(self) -> int:
        return 2 * self.models

    def check(self, model: Model, task: Task, *, padded: bool) -> None:
        form = {name for name, parameter in model.parameters(task).items() if _is_form(parameter)}
        if not form:
            raise PluginError(
                "learning.name: 'architecture' learns the form of non-linearities, and the model has none that learns; "
                "set model.activation or model.scorer to one that does: spline, spline_kernel"
            )
        if unkept := sorted(form - learned_splines.kept_parameters(model)):
            raise PluginError(
                f"learning.name: 'architecture' keeps splines that all layers share, not {unkept[0]}; set "
                "model.activation or model.scorer.phi to spline itself, and model.activation_per_layer to false"
            )
        if self.held_out_one_in and not (task.has_identities or task.has_documents):
            raise PluginError(
                f"learning.held_out_one_in: {self.held_out_one_in}, but sequences of {plugins.name_of(task)!r} share "
                "content, so that no share of them is apart from the rest; set it to 0"
            )
        if any(in_use(site.rate) for site in model.dropout_sites(task, 1, task.context).values()):
            raise PluginError("learning.name: 'architecture' knows no dropout; set the model's rates to 0")
        if padded:
            raise PluginError(
                "training.pad_shapes: true, but an architecture is not learned with padding; set it to false"
            )

    def parameters(self, model: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
        weights = {name: parameter for name, parameter in model.items() if not _is_form(parameter)}
        copies = [under(f"{MODELS}.{number}", weights) for number in range(self.models)]
        form = {name: parameter for name, parameter in model.items() if _is_form(parameter)}
        return {name: parameter for part in (*copies, form) for name, parameter in part.items()}

    def training(self, task: Task, seeds: Tensor, batch: int, step: Tensor) -> Batch:
        """Return the models' batches, `inputs` [L, M N, ...], and the form's, `held_out.inputs`."""
        streams, form_streams = (Streams.of(seeds, Purpose.TRAINING_DATA, step, site) for site in range(2))
        wanted = self.models * batch
        if not self.held_out_one_in:
            return task.training(streams, wanted, step) | under(HELD_OUT, task.held_out(form_streams, batch, step))
        if task.has_documents:
            trained = task.training_part(streams, wanted, self.held_out_one_in, held_out=False)
            form_batch = task.training_part(form_streams, batch, self.held_out_one_in, held_out=True)
            return trained | under(HELD_OUT, form_batch)
        one_in = self.held_out_one_in
        trained = draw_kept(task, lambda count: task.training(streams, count, step), wanted, one_in)
        held_out = draw_held_out(task, lambda count: task.held_out(form_streams, count, step), batch, one_in)
        return trained | under(HELD_OUT, held_out)

    def gradient(self, layout: Layout, flat: Tensor, batch: Batch, loss: Loss) -> tuple[Tensor, Tensor]:
        """Return both gradients of one pass: weights' for fixed forms, forms' for fixed weights."""
        layouts, form_batch = _layouts(layout), within(HELD_OUT, batch)
        trained = {name: tensor for name, tensor in batch.items() if not name.startswith(HELD_OUT)}
        batches = {name: tensor.unflatten(0, (self.models, -1)) for name, tensor in trained.items()}

        def total(weights: Tensor, form: Tensor) -> tuple[Tensor, Tensor]:
            learned, fixed = layouts.form.split(form), layouts.form.split(form.detach())

            def of_model(weights: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
                trained = loss(layouts.weights.split(weights) | fixed, batch)
                form_loss = loss(layouts.weights.split(weights.detach()) | learned, form_batch)
                return trained + form_loss, trained

            both, trained = vmap(of_model)(weights, batches)
            return both.sum(), trained.mean()

        (of_weights, of_form), value = grad(total, argnums=(0, 1), has_aux=True)(*self._split(layouts, flat))
        return torch.cat([of_weights.flatten(), of_form]), value

    def start(self, optimizer: Optimizer, layout: Layout, flat: Tensor) -> Moments:
        layouts = _layouts(layout)
        weights, form = self._split(layouts, flat)
        moments = vmap(lambda model: optimizer.start(model, layouts.weights))(weights)
        return under(MODELS, moments) | under("form", self.optimizer.start(form, layouts.form))

    def update(self, optimizer: Optimizer, layout: Layout, descent: Descent) -> tuple[Tensor, Moments]:
        """Return each model and the form after steps of optimizers of their own, each clipped."""
        _, _, moments, step, steps = descent
        layouts = _layouts(layout)
        weights, form = self._split(layouts, descent.parameters)
        of_weights, of_form = self._split(layouts, descent.gradient)
        life = torch.as_tensor(self.life, device=steps.device).long()
        lived = torch.where(life > 0, life, steps)
        # Steps since the last reset; model m is reset at the turns m + 1, m + 1 + M, and so on.
        turn = (life // self.models).clamp(min=1)
        first = torch.arange(1, self.models + 1, device=step.device) * turn
        since = torch.where(step < first, step, (step - first) % (self.models * turn))
        ages = torch.where(life > 0, since, step)  # [M]

        def descend(weights: Tensor, gradient: Tensor, moments: Moments, age: Tensor) -> tuple[Tensor, Moments]:
            return optimizer.descend(Descent(weights, gradient, moments, age, lived), layouts.weights)

        weights, model_moments = vmap(descend)(weights, of_weights, within(MODELS, moments), ages)
        shared = Descent(form, of_form, within("form", moments), step, steps)
        form, form_moments = self.optimizer.descend(shared, layouts.form)
        return torch.cat([weights.flatten(), form]), under(MODELS, model_moments) | under("form", form_moments)

    def resets_at(self, step: int) -> bool:
        return self.life > 0 and step > 0 and step % (self.life // self.models) == 0

    def reset(
        self, optimizer: Optimizer, layout: Layout, flat: Tensor, moments: Moments, seed: int, step: int
    ) -> tuple[Tensor, Moments]:
        model, layouts = (step // (self.life // self.models) - 1) % self.models, _layouts(layout)
        fresh = layouts.weights.initial(torch.tensor([seed]), step)[0].to(flat)
        weights, form = (part.clone() for part in self._split(layouts, flat))
        weights[model] = fresh
        started = optimizer.start(fresh, layouts.weights)
        model_moments, at = within(MODELS, moments), (torch.tensor(model),)
        model_moments = {name: tensor.index_put(at, started[name]) for name, tensor in model_moments.items()}
        return torch.cat([weights.flatten(), form]), {**moments, **under(MODELS, model_moments)}

    def evaluate(self, layout: Layout, flat: Tensor, evaluate_model: EvaluateModel) -> dict[str, Tensor]:
        layouts = _layouts(layout)
        weights, form = self._split(layouts, flat)
        shared = layouts.form.split(form)
        metrics = vmap(lambda model: evaluate_model(layouts.weights.split(model) | shared))(weights)
        return {name: values.mean(0) for name, values in metrics.items()}

    def _split(self, layouts: _Layouts, flat: Tensor) -> tuple[Tensor, Tensor]:
        """Split parameters [P] into the models' weights [M, W] and the form [F]."""
        weights, form = flat.split([self.models * layouts.weights.total, layouts.form.total])
        return weights.view(self.models, -1), form


def _is_form(parameter: Parameter) -> bool:
    return parameter.nonlinearity and not parameter.frozen


def _layouts(layout: Layout) -> _Layouts:
    dtype, device = layout.decays.dtype, layout.decays.device
    form = {name: parameter for name, parameter in layout.parameters.items() if _is_form(parameter)}
    weights = within(f"{MODELS}.0", layout.parameters)
    return _Layouts(Layout.of(weights, dtype, device), Layout.of(form, dtype, device))
