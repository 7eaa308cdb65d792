"""The contract of optimizers, on a lopsided quadratic.

Legend: P parameters in one flat vector.
"""

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
    """Of the quadratic, moved about from step to step."""
    return torch.linspace(0.1, 3, SIZE).double() * parameters + torch.sin(torch.arange(SIZE) * (step + 1)).double()


def start() -> Tensor:
    """Parameters [P] before the first step."""
    return torch.linspace(-2, 2, SIZE).double()


def layout() -> Layout:
    """Weight decay on the first half."""
    halves = {"first": Parameter(shape=(SIZE // 2,)), "second": Parameter(shape=(SIZE // 2,), decay=False)}
    return Layout.of(halves, torch.float64)


def _optimizer(configuration: Configuration) -> Optimizer:
    return build("optimizer", configuration)


def check_lanes(configuration: Configuration) -> None:
    """Lanes with their own knobs and at their own steps, stacked by vmap, move as each moves alone."""
    optimizer = _optimizer(configuration)
    knobs = {path: torch.tensor([1.0, 0.5]).double() * value for path, value in plugins.knobs(optimizer)}
    parameters, steps = torch.stack([start(), start() + 1]), torch.tensor([0, 7])
    rates = torch.tensor([0.1, 0.2]).double()
    begun = optimizer.start(start(), layout())
    moments = {name: torch.stack([moment + 0.1, moment + 0.2]) for name, moment in begun.items()}

    def one(knobs: Any, parameters: Tensor, moments: Any, step: Tensor, rate: Tensor) -> Any:
        bound = plugins.bind(optimizer, knobs)
        return bound.update(parameters, gradients(parameters, 3), moments, rate, step, layout())

    together = vmap(one)(knobs, parameters, moments, steps, rates)
    for lane in range(2):
        own = {path: values[lane] for path, values in knobs.items()}
        mine = {name: moment[lane] for name, moment in moments.items()}
        alone = one(own, parameters[lane], mine, steps[lane], rates[lane])
        equal(together[0][lane], alone[0], "stacked lanes differ from lanes alone")


def check_descent(configuration: Configuration) -> None:
    """Two hundred steps of a small rate go down a quadratic, and a rate of zero moves nothing but by weight decay."""
    optimizer = _optimizer(configuration)
    slopes = torch.linspace(0.1, 3, SIZE).double()
    parameters, moments = start(), optimizer.start(start(), layout())
    for step in range(200):
        rate = torch.tensor(0.01, dtype=torch.float64)
        parameters, moments = optimizer.update(
            parameters, slopes * parameters, moments, rate, torch.tensor(step), layout()
        )
    before, after = (float((slopes * x.square()).sum()) for x in (start(), parameters))
    assert after < before, f"the loss goes from {before:g} to {after:g}"
    still, _ = optimizer.update(
        start(),
        slopes * start(),
        optimizer.start(start(), layout()),
        torch.tensor(0.0).double(),
        torch.tensor(0),
        layout(),
    )
    equal(still, start(), "a rate of 0 moves parameters")


def check_state(configuration: Configuration) -> None:
    """Its state keeps names, shapes and types from step to step, as a pack and a checkpoint hold it."""
    optimizer = _optimizer(configuration)
    begun = optimizer.start(start(), layout())
    rate = torch.tensor(0.01, dtype=torch.float64)
    after, moments = optimizer.update(start(), gradients(start(), 0), begun, rate, torch.tensor(0), layout())
    assert (after.dtype, after.shape) == (torch.float64, (SIZE,)), "the parameters change their shape or type"
    described = [{name: (m.shape, m.dtype) for name, m in one.items()} for one in (begun, moments)]
    assert described[0] == described[1], f"the state was {described[0]} before a step and is {described[1]} after it"
