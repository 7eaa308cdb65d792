"""Entropy of attention by one pass against the whole matrix."""

from __future__ import annotations

import math

import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from workers.networks.entropy import attention_entropy


def drawn(queries: int, keys: int, scale: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(keys)
    shapes = (2, queries, 8), (2, keys, 8)
    query, key = (torch.randn(shape, generator=generator, dtype=torch.float64) * scale for shape in shapes)
    return query.to(dtype), key.to(dtype)


def dense(query: Tensor, key: Tensor, causal: bool) -> Tensor:
    logits = (query.double() @ key.double().mT / math.sqrt(query.shape[-1])).numpy()
    rows = torch.empty(logits.shape[:-1], dtype=torch.float64)
    queries, keys = logits.shape[-2:]
    for batch in range(logits.shape[0]):
        for row in range(queries):
            seen = keys - queries + row + 1 if causal else keys
            rows[batch, row] = scipy.stats.entropy(scipy.special.softmax(logits[batch, row, :seen]))
    return rows


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "block"), [(1, 1, 4), (5, 5, 2), (7, 30, 4), (30, 30, 64)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 6.0])
def test_one_pass_gives_the_entropy_of_the_whole_matrix(
    causal: bool, queries: int, keys: int, block: int, scale: float
) -> None:
    query, key = drawn(queries, keys, scale)
    entropy = attention_entropy(query, key, causal=causal, block=block)
    torch.testing.assert_close(entropy, dense(query, key, causal), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_131072_keys_need_no_square_matrix_and_keep_their_digits(dtype: torch.dtype) -> None:
    query, key = drawn(4, 131_072, 1.0, dtype)
    entropy = attention_entropy(query, key, causal=True)
    assert entropy.dtype == torch.float32
    torch.testing.assert_close(entropy.double(), dense(query, key, causal=True), rtol=2e-5, atol=1e-4)


def test_memory_does_not_grow_with_the_number_of_keys_squared() -> None:
    """Every tensor that the pass makes is counted: none is larger than queries times a block."""
    largest = 0

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and not out._is_view():
                largest = max(largest, out.numel())
            return out

    query, key = drawn(64, 20_000, 1.0, torch.float32)
    with Counting():
        attention_entropy(query, key, causal=False, block=256)
    assert 0 < largest <= 2 * 64 * 256
