"""Every optimizer against torch.optim, and stacked against alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from graft.testing.contracts.optimizer import gradients, layout, start
from spaces import plugins
from spaces.errors import PluginError
from tests.support.plug_ins import shipped
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter
from workers.training.optimizers import Optimizer
from workers.training.optimizers.muon import Muon, orthogonalise

STEPS = 30
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
    (
        {"name": "muon", "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3, "epsilon": 1e-6, "other_rate": 1.0},
        lambda groups: torch.optim.AdamW(groups, lr=0.05, betas=(0.8, 0.95), eps=1e-6),
    ),
]
every_oracle = pytest.mark.parametrize(("configuration", "oracle"), ORACLES, ids=[str(fields) for fields, _ in ORACLES])


def trained(optimizer: Optimizer) -> Tensor:
    parameters, rate = start(), torch.tensor(0.05, dtype=torch.float64)
    moments = optimizer.start(parameters, layout())
    for step in range(STEPS):
        gradient = gradients(parameters, step)
        parameters, moments = optimizer.update(parameters, gradient, moments, rate, torch.tensor(step), layout())
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
    actual = trained(plugins.build(Optimizer, configuration))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    assert (actual - start()).abs().min() > 1e-3


def test_every_optimizer_has_an_oracle() -> None:
    assert {configuration["name"] for configuration, _ in ORACLES} == shipped(Optimizer)


@pytest.mark.parametrize(
    "configuration", [*(configuration for configuration, _ in ORACLES), *plugins.examples(Optimizer)], ids=str
)
def test_lanes_together_are_lanes_alone(configuration: dict[str, Any]) -> None:
    """Lanes with their own knobs and at their own steps."""
    optimizer = plugins.build(Optimizer, configuration)
    knobs = {path: torch.tensor([1.0, 0.5]).double() * value for path, value in plugins.knobs(optimizer)}
    parameters, steps, rates = (
        torch.stack([start(), start() + 1]),
        torch.tensor([0, 7]),
        torch.tensor([0.1, 0.2]).double(),
    )
    moments = {name: torch.stack([m + 0.1, m + 0.2]) for name, m in optimizer.start(start(), layout()).items()}

    def one(knobs: Any, parameters: Tensor, moments: Any, step: Tensor, rate: Tensor) -> Any:
        bound = plugins.bind(optimizer, knobs)
        return bound.update(parameters, gradients(parameters, 3), moments, rate, step, layout())

    together = vmap(one)(knobs, parameters, moments, steps, rates)
    for lane in range(2):
        slices = ({path: v[lane] for path, v in knobs.items()}, {name: m[lane] for name, m in moments.items()})
        alone = one(slices[0], parameters[lane], slices[1], steps[lane], rates[lane])
        torch.testing.assert_close(together[0][lane], alone[0], rtol=1e-12, atol=1e-14)


SHAPES = {"tall": (8, 3), "wide": (3, 8), "also_wide": (3, 8), "side_by_side": (4, 15), "vector": (5,)}
MATRICES = {"side_by_side": 3, "vector": 0}


@pytest.mark.parametrize("adjustment", ["original", "match_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_is_torchs_on_every_matrix_and_adamw_elsewhere(adjustment: str, nesterov: bool) -> None:
    """Torch iterates in bfloat16; its matrices are [outputs, inputs], the transposes of ours."""
    kinds = {name: Parameter(shape=shape, matrices=MATRICES.get(name, 1)) for name, shape in SHAPES.items()}
    matrix_layout = Layout.of(kinds, torch.float64)
    generator = torch.Generator().manual_seed(1)
    muon = Muon(momentum=0.9, nesterov=nesterov, adjustment=adjustment, weight_decay=0.2, other_rate=0.5)
    begun = torch.randn(matrix_layout.total, generator=generator, dtype=torch.float64)
    moments, parameters = muon.start(begun, matrix_layout), begun
    parts = {name: _parts(name, tensor) for name, tensor in matrix_layout.split(begun).items()}
    rule = {"original": "original", "match_adamw": "match_rms_adamw"}[adjustment]
    matrices = [part for name, pieces in parts.items() if name != "vector" for part in pieces]
    torchs = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.2, momentum=0.9, nesterov=nesterov, adjust_lr_fn=rule),
        torch.optim.AdamW(parts["vector"], lr=0.01, weight_decay=0.2),
    ]
    for step in range(4):
        gradient = torch.randn(matrix_layout.total, generator=generator, dtype=torch.float64)
        for name, tensor in matrix_layout.split(gradient).items():
            for part, slope in zip(parts[name], _parts(name, tensor), strict=True):
                part.grad = slope.detach().clone()
        for optimizer in torchs:
            optimizer.step()
        rate = torch.tensor(0.02, dtype=torch.float64)
        parameters, moments = muon.update(parameters, gradient, moments, rate, torch.tensor(step), matrix_layout)
    for name, tensor in matrix_layout.split(parameters).items():
        tolerance = 1e-10 if name == "vector" else 2e-3
        for mine, other in zip(_parts(name, tensor), parts[name], strict=True):
            torch.testing.assert_close(mine.detach(), other.detach(), rtol=0, atol=tolerance)


def _parts(name: str, tensor: Tensor) -> list[Tensor]:
    """Return the matrices of a parameter as torch has them."""
    count = MATRICES.get(name, 1)
    pieces = [piece.mT for piece in tensor.chunk(count, dim=-1)] if count else [tensor]
    return [piece.detach().clone().requires_grad_() for piece in pieces]


def test_newton_schulz_keeps_singular_vectors_and_brings_singular_values_near_one() -> None:
    matrices = torch.randn(5, 4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrices, full_matrices=False)
    for given in (matrices, matrices.mT):
        inner = u.mT @ (orthogonalise(given, 5) if given is matrices else orthogonalise(given, 5).mT) @ v.mT
        diagonal = inner.diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(inner, torch.diag_embed(diagonal), rtol=0, atol=1e-10)
        assert 0.6 < float(diagonal.min()) < float(diagonal.max()) < 1.3


def test_muon_stacked_is_muon_alone() -> None:
    kinds = {name: Parameter(shape=shape, matrices=MATRICES.get(name, 1)) for name, shape in SHAPES.items()}
    matrix_layout = Layout.of(kinds, torch.float64)
    muon, generator = Muon(), torch.Generator().manual_seed(2)
    parameters, gradient = torch.randn(2, 3, matrix_layout.total, generator=generator, dtype=torch.float64)
    rates, steps = torch.tensor([0.1, 0.2, 0.0]).double(), torch.tensor([0, 4, 9])

    def one(parameters: Tensor, gradient: Tensor, rate: Tensor, step: Tensor) -> Tensor:
        return muon.update(parameters, gradient, muon.start(parameters, matrix_layout), rate, step, matrix_layout)[0]

    together = vmap(one)(parameters, gradient, rates, steps)
    for lane in range(3):
        alone = one(parameters[lane], gradient[lane], rates[lane], steps[lane])
        torch.testing.assert_close(together[lane], alone, rtol=1e-12, atol=1e-12)


def test_muon_needs_a_matrix() -> None:
    with pytest.raises(PluginError, match=r"optimizer\.name: 'muon' needs matrices between hidden channels"):
        Muon().check([Parameter(shape=(3, 3))])
    Muon().check([Parameter(shape=(3,)), Parameter(shape=(3, 3), matrices=1)])
