"""The contract of positions."""

from __future__ import annotations

import torch
from torch import Tensor

from graft.testing.common import Configuration, build, equal, random
from workers.networks.positions import Position


def logits(position: Position, query: Tensor, key: Tensor) -> Tensor:
    """Return logits [h, s, s] of queries and keys [h, s, c], with the position's part in them."""
    heads, length, channels = query.shape
    logits = position.rotate(query) @ position.rotate(key).mT / channels**0.5
    bias = position.bias(heads, random(1, length, heads * channels))
    return logits if bias is None else logits + bias


def _position(configuration: Configuration, longest: int) -> tuple[Position, dict[str, Tensor]]:
    position: Position = build("position", configuration)
    learned = position.parameters(8, longest).items()
    return position, {name: random(*parameter.shape) for name, parameter in learned}


def check_prefix(configuration: Configuration) -> None:
    """Assert that shorter inputs get the positions and biases that longer ones begin with."""
    position, learned = _position(configuration, 12)
    stream, query = random(2, 12, 8), random(3, 12, 4)
    short, whole = position.add_to(stream[:, :7], learned), position.add_to(stream, learned)[:, :7]
    equal(short, whole, "what is added depends on what follows", 1e-9)
    short = logits(position, query[:, :7], query[:, :7])
    whole = logits(position, query, query)[:, :7, :7]
    equal(short, whole, "rotations or biases depend on what follows", 1e-9)


def check_precision(configuration: Configuration) -> None:
    """Assert that positions keep the precision of what they are added to."""
    position, drawn = _position(configuration, 6)
    learned = {name: tensor.float() for name, tensor in drawn.items()}
    stream = random(1, 6, 8).float()
    for what, output in (
        ("add_to", position.add_to(stream, learned)),
        ("rotate", position.rotate(stream)),
        ("bias", position.bias(2, stream)),
    ):
        assert output is None or output.dtype == torch.float32, f"{what} turns float32 into {output.dtype}"


def check_effect(configuration: Configuration) -> None:
    """Assert that equal tokens are told apart by where they stand."""
    position, learned = _position(configuration, 6)
    placed = position.add_to(torch.ones(1, 6, 8, dtype=torch.float64), learned)
    same = torch.ones(2, 6, 4, dtype=torch.float64)
    spread = float(logits(position, same, same).std())
    differs = not torch.equal(placed[:, 1], placed[:, 2]) or spread > 0
    assert differs, "tokens that are equal stay equal wherever they stand"
