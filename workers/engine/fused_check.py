"""The fused step against the traced one on a GPU, in a process of its own.

`python -m workers.engine.fused_check check cuda:0` prints one line of JSON: null, or what differs.
`python -m workers.engine.fused_check check-tf32 cuda:0` asks the same of the step in tiles of TF32.
`python -m workers.engine.fused_check rates cuda:0 LANES CONFIGURATION` prints both speeds (JSON).
A faulty kernel's damage to memory, or to the GPU's context, ends with the process.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from spaces.records import Trial
from workers.engine.fused.device import make_step
from workers.engine.fused.step import FusedStep, Knobs
from workers.engine.machine.memory import Shortage, attempt
from workers.engine.machine.process import flush_subnormals, prepare, use_device
from workers.engine.pack.lanes import NARROWEST
from workers.engine.speed.timing import MakeStep, step_rate
from workers.engine.step import TracedStep
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe, State, initial_state, layout_of

WIDTHS = (7, 2, 33)
STEPS = 5
TOLERANCE = 1e-4
"""Relative to the largest number of a tensor: float32 sums come in another order."""
TF32_TOLERANCE = 4e-3
"""The same for factors of 11 significant bits: eight times the rounding of one of them."""


def configurations() -> Iterator[dict[str, Any]]:
    """Yield small trials with each kind of dropout, in shared memory and beyond it, and padded."""
    rates = list(itertools.product((0.0, 0.3), (0.0, 0.2)))
    for (embedding, rows), unit in itertools.product(rates, ("occurrence", "token")):
        dropout = {"embedding_dropout": embedding, "residual_dropout": rows, "dropout_unit": unit}
        yield _configuration(dropout, length=5, vocabulary=9, widths=(13, 6, 10), batch=21)
    yield _configuration({"embedding_dropout": 0.3, "residual_dropout": 0.2}, 8, 17, (32, 16, 24), 128)
    yield _configuration({"residual_dropout": 0.2}, 16, 31, (60, 30, 40), 16)
    yield _configuration({"embedding_dropout": 0.1}, 5, 9, (13, 6, 10), 16, pad=True)


def tile_configurations() -> Iterator[dict[str, Any]]:
    """Yield small trials for tiles, with sizes that fill them and that do not, and padded."""
    yield _configuration({}, length=5, vocabulary=9, widths=(13, 6, 10), batch=21)
    yield _configuration({}, length=8, vocabulary=17, widths=(32, 16, 24), batch=27)
    yield _configuration({}, length=5, vocabulary=9, widths=(13, 6, 10), batch=16, pad=True)


def _configuration(
    dropout: dict[str, Any], length: int, vocabulary: int, widths: tuple[int, int, int], batch: int, pad: bool = False
) -> dict[str, Any]:
    width, key_width, value_width = widths
    sizes = {"width": width, "key_width": key_width, "value_width": value_width}
    return {
        "task": {"name": "set_complement", "length": length, "vocabulary": vocabulary},
        "model": {"name": "minimal", **sizes, **dropout},
        "optimizer": {"name": "adamw", "epsilon": 1e-4},  # a gradient of rounding moves nothing
        "averaging": {"name": "bema"},
        "training": {"steps": 100, "batch": batch, "validate_every": 100, "validation_batch": 8, "pad_shapes": pad},
    }


@flush_subnormals()
def find_difference(recipe: Recipe, device: torch.device, fused: FusedStep, tolerance: float = TOLERANCE) -> str | None:
    """Return how fused steps differ from traced ones, or among widths; None if they do not."""
    widest = max(WIDTHS)
    knobs, seeds, state = _start(recipe, widest, device)
    expected = state
    traced = TracedStep(recipe.pad(), repr(recipe), device)
    bound = recipe.pad().bind(knobs)
    for _ in range(STEPS):
        streams = Streams.of(seeds, Purpose.TRAINING_DATA, expected.step)
        batch = bound.task.training(streams, recipe.training.batch, expected.step)
        expected = traced(knobs, seeds, expected, batch)
    actual, made = fused.advance(knobs, seeds, state, STEPS)
    if made != STEPS or actual.step.tolist() != expected.step.tolist():
        return f"it made {actual.step.tolist()} steps instead of {expected.step.tolist()}"
    for name, tensor, other in _tensors(actual, expected):
        error = float((tensor.double() - other.double()).abs().max() / other.double().abs().max().clamp(min=1e-30))
        if not error <= tolerance:
            return f"{name} differ by {error:.2g} of the largest from the traced step's"
    for width in WIDTHS:
        few: Knobs = {path: values[:width].clone() for path, values in knobs.items()}
        alone, _ = fused.advance(few, seeds[:width], tree_map(lambda leaf, n=width: leaf[:n].clone(), state), STEPS)
        for name, tensor, other in _tensors(alone, actual):
            if not torch.equal(tensor, other[:width]):
                return f"{name} of {width} lanes have other bits than of {widest}"
    return None


def _start(recipe: Recipe, lanes: int, device: torch.device) -> tuple[Knobs, Tensor, State]:
    """Return lanes of this recipe with different seeds and rates."""
    shared = recipe.pad()
    layout = layout_of(shared, device)
    seeds = torch.arange(lanes) * 7919 + 3
    unpadded = layout_of(recipe)
    parameters = torch.stack([layout_of(shared).pad(unpadded, flat) for flat in unpadded.initial(seeds)]) * 3
    knobs = {path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()}
    knobs["optimizer.learning_rate"] = torch.logspace(-5, -3, lanes, dtype=torch.float64)
    state = vmap(lambda flat: initial_state(shared, layout, flat))(parameters.to(device, recipe.dtype))
    return {path: values.to(device) for path, values in knobs.items()}, seeds.to(device), state


def _tensors(state: State, other: State) -> Iterator[tuple[str, Tensor, Tensor]]:
    yield "parameters", state.parameters, other.parameters
    yield "losses", state.loss_sum, other.loss_sum
    for name in state.moments:
        yield f"{name} moments", state.moments[name], other.moments[name]
    yield "averages", state.shadow["ema"], other.shadow["ema"]


def main(device: torch.device, *, tf32: bool = False) -> str | None:
    """Return the first difference of all configurations."""
    prepare()
    use_device(device)
    for configuration in tile_configurations() if tf32 else configurations():
        recipe = Recipe.of(configuration)
        step = make_step(recipe.pad(), device, tf32=tf32)
        if difference := find_difference(recipe, device, step, TF32_TOLERANCE if tf32 else TOLERANCE):
            return difference
    return None


def compare_rates(
    device: str, lanes: int, configuration: str, make: Callable[[Recipe, torch.device], FusedStep] = make_step
) -> dict[str, float]:
    """Return both steps' model-steps per second, at `lanes` or as many as memory allows."""
    config = json.loads(configuration)
    structure = plugins.canonical_json(config)
    trial = Trial(number=0, group=0, seed=1, draws={}, params={}, config=config, structure=structure)
    steps: dict[str, MakeStep] = {"fused": lambda recipe, _, where: make(recipe, where), "traced": TracedStep}
    prepare()
    while True:
        rates: dict[str, float] = {"lanes": lanes}
        # Twice each, as a GPU's clock rises when it warms up; the traced step keeps memory: last.
        for name, step in sorted(2 * [*steps.items()], key=lambda item: item[0]):
            rate = attempt(functools.partial(step_rate, trial, width=lanes, device=device, make=step), device)
            if isinstance(rate, Shortage):
                break
            rates[name] = max(rate, rates.get(name, 0.0))
        else:
            return rates
        if lanes == NARROWEST:
            raise RuntimeError(f"no memory for {NARROWEST} lanes")
        lanes //= 2


if __name__ == "__main__":
    question, at, *of = sys.argv[1:]
    if question == "rates":
        print(json.dumps(compare_rates(at, int(of[0]), of[1])))
    else:
        print(json.dumps(main(torch.device(at), tf32=question == "check-tf32")))
