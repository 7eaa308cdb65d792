"""Every optimizer against torch.optim, and stacked against alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from workers.optimizers import Optimizer

STEPS, SIZE = 30, 12
ORACLES: list[tuple[dict[str, Any], Callable[[list[Any]], torch.optim.Optimizer]]] = [
    (
        {"name": "adamw", "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3, "epsilon": 1e-6},
        lambda groups: torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.95), eps=1e-6),
    ),
    (
        {"name": "adam", "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3, "epsilon": 1e-6},
        lambda groups: torch.optim.Adam(groups, lr=0.05, betas=(0.8, 0.95), eps=1e-6),
    ),
    (
        {"name": "sgd", "momentum": 0.7, "weight_decay": 0.3},
        lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.7),
    ),
    (
        {"name": "sgd", "momentum": 0.7, "weight_decay": 0.3, "nesterov": True},
        lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.7, nesterov=True),
    ),
    (
        {"name": "sgd", "momentum": 0.0, "weight_decay": 0.3},
        lambda groups: torch.optim.SGD(groups, lr=0.05),
    ),
]
every_oracle = pytest.mark.parametrize(("configuration", "oracle"), ORACLES, ids=str)


def gradients(parameters: Tensor, step: int) -> Tensor:
    """Of a lopsided quadratic, moved about from step to step; the same function for ours and for torch's."""
    return torch.linspace(0.1, 3, SIZE).double() * parameters + torch.sin(torch.arange(SIZE) * (step + 1)).double()


def start() -> Tensor:
    return torch.linspace(-2, 2, SIZE).double()


def decays() -> Tensor:
    """Weight decay on the first half."""
    return (torch.arange(SIZE) < SIZE // 2).double()


def trained(optimizer: Optimizer) -> Tensor:
    parameters, rate = start(), torch.tensor(0.05, dtype=torch.float64)
    moments = optimizer.start(parameters)
    for step in range(STEPS):
        gradient = gradients(parameters, step)
        parameters, moments = optimizer.update(parameters, gradient, moments, rate, torch.tensor(step), decays())
    return parameters


@every_oracle
def test_it_is_torchs_optimizer(configuration: dict[str, Any], oracle: Any) -> None:
    halves = [half.clone().requires_grad_() for half in start().chunk(2)]
    groups = [{"params": [halves[0]], "weight_decay": 0.3}, {"params": [halves[1]], "weight_decay": 0.0}]
    torchs = oracle(groups)
    for step in range(STEPS):
        whole = gradients(torch.cat([half.detach() for half in halves]), step)
        for half, gradient in zip(halves, whole.chunk(2), strict=True):
            half.grad = gradient.clone()
        torchs.step()
    expected = torch.cat([half.detach() for half in halves])
    found = trained(plugins.build(Optimizer, configuration))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert (found - start()).abs().min() > 1e-3


def test_every_optimizer_has_an_oracle() -> None:
    assert {configuration["name"] for configuration, _ in ORACLES} == set(plugins.names(Optimizer))


@pytest.mark.parametrize("configuration", [configuration for configuration, _ in ORACLES], ids=str)
def test_lanes_together_are_lanes_alone(configuration: dict[str, Any]) -> None:
    """Lanes with their own knobs and at their own steps."""
    optimizer = plugins.build(Optimizer, configuration)
    knobs = {path: torch.tensor([1.0, 0.5]).double() * value for path, value in plugins.knobs(optimizer)}
    parameters, steps, rates = (
        torch.stack([start(), start() + 1]),
        torch.tensor([0, 7]),
        torch.tensor([0.1, 0.2]).double(),
    )
    moments = {name: torch.stack([m + 0.1, m + 0.2]) for name, m in optimizer.start(start()).items()}

    def one(knobs: Any, parameters: Tensor, moments: Any, step: Tensor, rate: Tensor) -> Any:
        bound = plugins.bind(optimizer, knobs)
        return bound.update(parameters, gradients(parameters, 3), moments, rate, step, decays())

    together = vmap(one)(knobs, parameters, moments, steps, rates)
    for lane in range(2):
        own = ({path: v[lane] for path, v in knobs.items()}, {name: m[lane] for name, m in moments.items()})
        alone = one(own[0], parameters[lane], own[1], steps[lane], rates[lane])
        torch.testing.assert_close(together[0][lane], alone[0], rtol=1e-12, atol=1e-14)
