"""The contract of optimizers, on a lopsided quadratic. Legend: P parameters in one flat vector."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from graft.testing.common import Configuration, build, equal
from spaces import plugins
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter
from workers.training.optimizers import Optimizer

SIZE = 12


def gradients(parameters: Tensor, step: int) -> Tensor:
    """Return the gradient of the quadratic, moved about from step to step."""
    moved = torch.sin(torch.arange(SIZE) * (step + 1)).double()
    return torch.linspace(0.1, 3, SIZE).double() * parameters + moved


def start() -> Tensor:
    """Return parameters [P] before the first step."""
    return torch.linspace(-2, 2, SIZE).double()


def layout() -> Layout:
    """Return a layout with weight decay on the first half."""
    half = (SIZE // 2,)
    halves = {"first": Parameter(shape=half), "second": Parameter(shape=half, decay=False)}
    return Layout.of(halves, torch.float64)


def check_lanes(configuration: Configuration) -> None:
    """Assert that lanes with their own knobs and steps, stacked by vmap, move as each alone."""
    optimizer: Optimizer = build("optimizer", configuration)
    halved = torch.tensor([1.0, 0.5]).double()
    knobs = {path: halved * value for path, value in plugins.knobs(optimizer)}
    parameters, steps = torch.stack([start(), start() + 1]), torch.tensor([0, 7])
    rates = torch.tensor([0.1, 0.2]).double()
    begun = optimizer.start(start(), layout())
    moments = {name: torch.stack([moment + 0.1, moment + 0.2]) for name, moment in begun.items()}

    def one(knobs: Any, parameters: Tensor, moments: Any, step: Tensor, rate: Tensor) -> Any:
        bound = plugins.bind(optimizer, knobs)
        return bound.update(parameters, gradients(parameters, 3), moments, rate, step, layout())

    together = vmap(one)(knobs, parameters, moments, steps, rates)
    for lane in range(2):
        setting = {path: values[lane] for path, values in knobs.items()}
        mine = {name: moment[lane] for name, moment in moments.items()}
        alone = one(setting, parameters[lane], mine, steps[lane], rates[lane])
        equal(together[0][lane], alone[0], "stacked lanes differ from lanes alone")


def check_descent(configuration: Configuration) -> None:
    """Assert that steps go down a quadratic, and a rate of zero moves only by weight decay."""
    optimizer: Optimizer = build("optimizer", configuration)
    slopes = torch.linspace(0.1, 3, SIZE).double()
    parameters, moments = start(), optimizer.start(start(), layout())
    rate = torch.tensor(0.01, dtype=torch.float64)
    for step in range(200):
        slope, at = slopes * parameters, torch.tensor(step)
        parameters, moments = optimizer.update(parameters, slope, moments, rate, at, layout())
    before, after = (float((slopes * x.square()).sum()) for x in (start(), parameters))
    assert after < before, f"the loss goes from {before:g} to {after:g}"
    begun, none = optimizer.start(start(), layout()), torch.tensor(0.0).double()
    still, _ = optimizer.update(start(), slopes * start(), begun, none, torch.tensor(0), layout())
    equal(still, start(), "a rate of 0 moves parameters")


def check_state(configuration: Configuration) -> None:
    """Assert that its state keeps names, shapes and types from step to step, as a pack holds it."""
    optimizer: Optimizer = build("optimizer", configuration)
    begun = optimizer.start(start(), layout())
    rate = torch.tensor(0.01, dtype=torch.float64)
    slope = gradients(start(), 0)
    after, moments = optimizer.update(start(), slope, begun, rate, torch.tensor(0), layout())
    assert (after.dtype, after.shape) == (torch.float64, (SIZE,)), "the parameters change their shape or type"
    described = [{name: (m.shape, m.dtype) for name, m in state.items()} for state in (begun, moments)]
    assert described[0] == described[1], f"the state was {described[0]} before a step and is {described[1]} after it"
