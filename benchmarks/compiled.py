"""Steps of a pack as compilers make them: torch.func.vmap and torch.compile, or JAX. Needs torch, numpy and PyYAML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from workers.data.tasks import Batch
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe, layout_of


def start_of(recipe: Recipe, lanes: int) -> tuple[Tensor, Batch]:
    """Return parameters [L, P] and a batch of lanes."""
    seeds, steps = torch.arange(lanes), torch.zeros(lanes, dtype=torch.int64)
    streams = Streams.of(seeds, Purpose.TRAINING_DATA, steps)
    flat = layout_of(recipe).initial(seeds).to(recipe.dtype)
    return flat, recipe.task.training(streams, recipe.training.batch, steps)


def loss_of(recipe: Recipe) -> Callable[[Tensor, Batch], Tensor]:
    """Return the loss of one lane's parameters and batch, by Graft's own torch code."""
    layout = layout_of(recipe)
    return lambda flat, batch: recipe.task.loss(recipe.model.outputs(layout.split(flat), batch, {}), batch)


def compiled_step(recipe: Recipe, flat: Tensor, batch: Batch) -> Callable[[], object]:
    """Return a step of all lanes under torch.compile."""
    rate, beta1, beta2, epsilon, decay = 1e-4, 0.9, 0.999, 1e-8, 0.01
    gradient_of = vmap(grad_and_value(loss_of(recipe)))

    def step(parameters: Tensor, first: Tensor, second: Tensor, count: Tensor, batch: Batch) -> tuple[Tensor, ...]:
        gradient, loss = gradient_of(parameters, batch)
        gradient = gradient * (1 / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp(max=1)
        count = count + 1
        first, second = first.lerp(gradient, 1 - beta1), second.lerp(gradient.square(), 1 - beta2)
        moved = first / (1 - beta1**count) / ((second / (1 - beta2**count)).sqrt() + epsilon)
        return parameters * (1 - rate * decay) - rate * moved, first, second, count, loss

    run = torch.compile(step)
    state = [flat, torch.zeros_like(flat), torch.zeros_like(flat), torch.zeros(())]

    def train() -> None:
        *state[:], _ = run(*state, batch)

    return train


def jax_seconds(recipe: Recipe, flat: Tensor, batch: Batch, scorer: str, **options: Any) -> float:
    """Return the seconds of a step in JAX, whose loss must be Graft's; `options`: of `jax_models.seconds_of_step`."""
    from benchmarks import jax_models

    task: Any = recipe.task
    targets, weights = task.position_targets(batch, torch.float32)
    loss = jax_models.make_loss(recipe.model, scorer, task.position_loss, not bool(weights[..., :-1].any()))
    given = {"inputs": batch["inputs"], "targets": targets, "weights": weights}
    parameters = {name: tensor.numpy() for name, tensor in vmap(layout_of(recipe).split)(flat).items()}
    arrays = {name: tensor.contiguous().numpy() for name, tensor in given.items()}
    for lane in (0, len(flat) - 1):
        value = loss(*({name: array[lane] for name, array in both.items()} for both in (parameters, arrays)))
        expected = loss_of(recipe)(flat[lane], {name: tensor[lane] for name, tensor in batch.items()})
        torch.testing.assert_close(torch.tensor(float(value)), expected, rtol=1e-4, atol=1e-5)
    return jax_models.seconds_of_step(loss, parameters, arrays, **options)
