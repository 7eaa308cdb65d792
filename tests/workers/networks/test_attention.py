"""The fused kernel of softmax attention against the formula, stacked over lanes and through gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from workers.networks.attention import fused_causal_attention
from workers.numerics.tracing import Traced

LANES = 5


def drawn(length: int, dtype: torch.dtype, packed: bool = False) -> list[Tensor]:
    """Return queries, keys and values [L, N, h, s, c]; `packed`: views into one tensor, as a model makes them."""
    generator = torch.Generator().manual_seed(length)
    if packed:
        whole = torch.randn(LANES, 2, length, 3 * 4, generator=generator, dtype=torch.float64).to(dtype)
        return [part.unflatten(-1, (2, 2)).transpose(-3, -2) for part in whole.chunk(3, dim=-1)]
    return [torch.randn(LANES, 2, 3, length, 4, generator=generator, dtype=torch.float64).to(dtype) for _ in range(3)]


def formula(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    length = query.shape[-2]
    logits = query @ key.mT / math.sqrt(query.shape[-1])
    future = torch.ones(length, length).triu(1).bool()
    return torch.softmax(logits.masked_fill(future, -math.inf), dim=-1) @ value


def gradients(attention: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
    def loss(*parts: Tensor) -> Tensor:
        return attention(*parts).pow(3).sum()

    return (attention(query, key, value), *grad(loss, argnums=(0, 1, 2))(query, key, value))


@pytest.mark.parametrize("length", [1, 3, 8, 65, 200])
@pytest.mark.parametrize("packed", [False, True])
def test_values_and_gradients_are_the_formulas(length: int, packed: bool) -> None:
    parts = drawn(length, torch.float64, packed)
    actual = vmap(lambda *lane: gradients(fused_causal_attention, *lane))(*parts)
    for tensor, other in zip(actual, gradients(formula, *parts), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-10, atol=1e-11)


def test_channels_that_do_not_lie_side_by_side_are_read_right() -> None:
    parts = [part.transpose(-2, -1).contiguous().transpose(-2, -1) for part in drawn(7, torch.float64)]
    actual = vmap(lambda *lane: gradients(fused_causal_attention, *lane))(*parts)
    for tensor, other in zip(actual, gradients(formula, *parts), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("length", [3, 33])
def test_a_lanes_bits_do_not_depend_on_the_width(length: int) -> None:
    parts = drawn(length, torch.float32)
    traced = Traced(("attention", length), vmap(lambda *lane: gradients(fused_causal_attention, *lane)))
    whole = traced(*parts)
    for lanes in (2, 3):
        for tensor, other in zip(traced(*(part[-lanes:] for part in parts)), whole, strict=True):
            assert torch.equal(tensor, other[-lanes:])
