"""The encoder: both sides are seen, padding is not, whatever the scorer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from spaces import plugins
from tests.support.models import BOTH_SIDES as TASK
from tests.support.plug_ins import example
from workers.networks.models import Model
from workers.networks.scorers import Scorer

INPUTS = torch.tensor([[0, 3, 5, 1, 2], [6, 2, 1, 0, 4]])
LENGTHS = torch.tensor([5, 3])


def encoder(**settings: Any) -> tuple[Model, dict[str, Tensor]]:
    """Return an encoder and parameters that make its parts matter."""
    model = plugins.build(Model, {"name": "encoder", "width": 8, "mlp_multiple": 2, **settings})
    model.check(TASK)
    generator = torch.Generator().manual_seed(1)
    shapes = {name: parameter.shape for name, parameter in model.parameters(TASK).items()}
    return model, {n: 0.6 * torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


@pytest.mark.parametrize("scorer", plugins.names(Scorer))
def test_what_fills_up_a_sequence_changes_nothing_under_any_scorer(scorer: str) -> None:
    model, parameters = encoder(scorer=example(Scorer, scorer))
    outputs = model.outputs(parameters, {"inputs": INPUTS, "lengths": LENGTHS}, {})
    other = INPUTS.clone()
    other[1, 3:] = 5
    again = model.outputs(parameters, {"inputs": other, "lengths": LENGTHS}, {})
    torch.testing.assert_close(outputs[1, :3], again[1, :3], rtol=0, atol=1e-12)
    if not plugins.build(Scorer, example(Scorer, scorer)).knows_distance:  # cosFormer measures in whole rows
        alone = model.outputs(parameters, {"inputs": INPUTS[1:, :3]}, {})
        torch.testing.assert_close(outputs[1:, :3], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scorer", plugins.names(Scorer))
def test_a_position_sees_what_follows_it(scorer: str) -> None:
    model, parameters = encoder(scorer=example(Scorer, scorer))
    changed = INPUTS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 7
    first, other = (model.outputs(parameters, {"inputs": inputs}, {})[:, 0] for inputs in (INPUTS, changed))
    assert not torch.allclose(first, other, rtol=1e-6)


def test_without_positions_the_order_of_tokens_does_not_matter() -> None:
    model, parameters = encoder(position={"name": "none"})
    forward = model.outputs(parameters, {"inputs": INPUTS}, {})
    backward = model.outputs(parameters, {"inputs": INPUTS.flip(1)}, {})
    torch.testing.assert_close(forward, backward.flip(1), rtol=0, atol=1e-12)
