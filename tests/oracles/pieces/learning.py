"""What of a model is trained, and on which data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor

from tests.oracles.pieces.optimizers import Moments, Optimizer
from tests.oracles.pieces.parameters import Batch, Parameter, Values, start_parameters, under, within
from tests.oracles.pieces.parts import build
from tests.oracles.pieces.streams import TRAINING_DATA, hash_rows, open_stream

Shapes = Mapping[str, Parameter]
Loss = Callable[[Values, Batch], Tensor]
Evaluate = Callable[[Values], Mapping[str, Tensor]]


def differentiate(values: Values, learned: Shapes, loss_of: Callable[[Values], Tensor]) -> tuple[Values, Tensor]:
    """Return the gradients of a loss by all tensors that learn, and the loss."""
    leaves = {
        name: values[name].detach().requires_grad_() for name, parameter in learned.items() if not parameter.frozen
    }
    loss = loss_of({**values, **leaves})
    gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, gradients, strict=True)), loss.detach()


@dataclass(kw_only=True)
class WeightsLearning:
    """One model descends its loss."""

    def shapes(self, model: Shapes) -> Shapes:
        """Return what is learned, of a model with these parameters."""
        return model

    def batch(self, task: Any, seed: int, count: int, step: int) -> Batch:
        """Return the data of a step."""
        return task.training(open_stream(seed, TRAINING_DATA, step), count, step)

    def gradients(self, shapes: Shapes, values: Values, batch: Batch, loss: Loss) -> tuple[Values, Tensor]:
        """By all that learns, and the training loss."""
        return differentiate(values, shapes, lambda tensors: loss(tensors, batch))

    def start(self, optimizer: Optimizer, shapes: Shapes, values: Values) -> Moments:
        """Return the optimizer's moments before the first step."""
        return optimizer.start(values)

    def descend(
        self,
        optimizer: Optimizer,
        shapes: Shapes,
        state: tuple[Values, Moments],
        gradients: Values,
        n: int,
        steps: float,
    ) -> tuple[Values, Moments]:
        """Values and moments after update n."""
        return optimizer.descend(shapes, state[0], gradients, state[1], n, steps)

    def reset(
        self, optimizer: Optimizer, shapes: Shapes, state: tuple[Values, Moments], seed: int, n: int
    ) -> tuple[Values, Moments]:
        """Return what is due before update n: nothing."""
        return state

    def evaluate(self, values: Values, evaluate_model: Evaluate) -> Mapping[str, Tensor]:
        """[N] of each metric."""
        return evaluate_model(values)


def take_share(task: Any, batch: Batch, wanted: int, one_in: int, *, held_out: bool) -> Batch:
    """Return the first sequences that are held out, or that are not, when one in so many is by a hash; over again if
    short.
    """
    chosen = (hash_rows(task.identity(batch)) % one_in == 0) == held_out
    places = torch.from_numpy(chosen).nonzero()[:, 0]
    index = places[torch.arange(wanted) % len(places)]
    return {name: tensor[index] for name, tensor in batch.items()}


@dataclass(kw_only=True)
class ArchitectureLearning:
    """Several models share a non-linearity that learns on other data than their weights (paper 002, Algorithm 1)."""

    models: int
    held_out_one_in: int
    life: int
    optimizer: Any

    def __post_init__(self) -> None:
        self.optimizer = build("optimizer", self.optimizer)

    def shapes(self, model: Shapes) -> Shapes:
        """Return the weights of each model, then what all share."""
        form = {name: parameter for name, parameter in model.items() if parameter.form and not parameter.frozen}
        weights = {name: parameter for name, parameter in model.items() if name not in form}
        every = [under(f"models.{number}", weights) for number in range(self.models)]
        return {name: parameter for part in (*every, form) for name, parameter in part.items()}

    def batch(self, task: Any, seed: int, count: int, step: int) -> Batch:
        """Return the batches of all models behind one another, and that of the form."""
        stream, other = (open_stream(seed, TRAINING_DATA, step, site) for site in (0, 1))
        wanted, one_in = self.models * count, self.held_out_one_in
        if one_in and hasattr(task, "training_part"):
            trained = task.training_part(stream, wanted, one_in, held_out=False)
            form = task.training_part(other, count, one_in, held_out=True)
        elif one_in:
            drawn = task.training(stream, ceil(1.25 * wanted * one_in / (one_in - 1)) + 16, step)
            trained = take_share(task, drawn, wanted, one_in, held_out=False)
            drawn = task.held_out(other, ceil((1.25 * count + 16) * one_in), step)
            form = take_share(task, drawn, count, one_in, held_out=True)
        else:
            trained, form = task.training(stream, wanted, step), task.held_out(other, count, step)
        return {**trained, **under("form", form)}

    def gradients(self, shapes: Shapes, values: Values, batch: Batch, loss: Loss) -> tuple[Values, Tensor]:
        """Of each model's weights by its own loss, of the form by the sum of all models' losses on its batch."""
        form, form_batch = self._form(values), within("form", batch)
        rows = {name: tensor for name, tensor in batch.items() if not name.startswith("form.")}
        parts = {name: tensor.chunk(self.models) for name, tensor in rows.items()}
        weight_gradients, losses = dict[str, Tensor](), list[Tensor]()
        for number in range(self.models):
            weights, ours = within(f"models.{number}", values), {name: part[number] for name, part in parts.items()}
            learned = within(f"models.{number}", shapes)
            gradients, trained = differentiate(
                weights, learned, lambda tensors, ours=ours: loss({**tensors, **form}, ours)
            )
            weight_gradients |= under(f"models.{number}", gradients)
            losses.append(trained)

        def sum_losses(form: Values) -> Tensor:
            every = [within(f"models.{number}", values) for number in range(self.models)]
            return torch.stack([loss({**weights, **form}, form_batch) for weights in every]).sum()

        gradients, _ = differentiate(form, self._form(shapes), sum_losses)
        return {**weight_gradients, **gradients}, torch.stack(losses).mean()

    def start(self, optimizer: Optimizer, shapes: Shapes, values: Values) -> Moments:
        """Moments of all models and of the form."""
        moments: dict[str, dict[str, Tensor]] = {}
        weights = {name: value for name, value in values.items() if name.startswith("models.")}
        for part in (optimizer.start(weights), self.optimizer.start(self._form(values))):
            for kind, named in part.items():
                moments.setdefault(kind, {}).update(named)
        return moments

    def descend(
        self,
        optimizer: Optimizer,
        shapes: Shapes,
        state: tuple[Values, Moments],
        gradients: Values,
        n: int,
        steps: float,
    ) -> tuple[Values, Moments]:
        """Return each model and the form by itself, with the norm of its own gradient clipped."""
        values, moments = dict(state[0]), {kind: dict(named) for kind, named in state[1].items()}
        parts = [(f"models.{number}.", optimizer, self._age(number, n)) for number in range(self.models)]
        for prefix, rule, age in (*parts, ("", self.optimizer, n)):
            length = self.life if prefix and self.life else steps
            names = [name for name in gradients if name.startswith(prefix) and (prefix or name in self._form(shapes))]
            owned = {kind: {name: named[name] for name in names if name in named} for kind, named in moments.items()}
            after, changed = rule.descend(
                shapes,
                {name: values[name] for name in names},
                {name: gradients[name] for name in names},
                {kind: named for kind, named in owned.items() if named},
                age,
                length,
            )
            values |= after
            for kind, named in changed.items():
                moments[kind] |= named
        return values, moments

    def reset(
        self, optimizer: Optimizer, shapes: Shapes, state: tuple[Values, Moments], seed: int, n: int
    ) -> tuple[Values, Moments]:
        """Return the models start anew in turn, one every life / models steps."""
        turn = self.life // self.models
        if not turn or n == 0 or n % turn:
            return state
        prefix = f"models.{(n // turn - 1) % self.models}"
        values = state[0]
        dtype = next(iter(values.values())).dtype
        fresh = under(prefix, start_parameters(within(prefix, shapes), seed, n, dtype))
        moments = {kind: dict(named) for kind, named in state[1].items()}
        for kind, named in optimizer.start(fresh).items():
            moments[kind] |= named
        return {**values, **fresh}, moments

    def evaluate(self, values: Values, evaluate_model: Evaluate) -> Mapping[str, Tensor]:
        """Return the means over the models."""
        form = self._form(values)
        every = [evaluate_model({**within(f"models.{number}", values), **form}) for number in range(self.models)]
        return {name: torch.stack([metrics[name] for metrics in every]).mean(0) for name in every[0]}

    def _form(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """Return what all models share."""
        return {name: value for name, value in named.items() if not name.startswith("models.")}

    def _age(self, number: int, n: int) -> int:
        """Return steps of a model since its last reset."""
        turn = self.life // self.models
        first = (number + 1) * turn
        return (n - first) % (self.models * turn) if turn and n >= first else n
