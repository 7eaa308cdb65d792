"""The contract of diagnostics, on two layers of causal softmax attention.

Legend: N sequences, h heads, s positions, d width, c channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import vmap

from graft.testing.common import Configuration, build, equal, random
from workers.data.tasks import Batch
from workers.networks.diagnostics import Diagnostic
from workers.networks.models import Affine, Attention

HEADS, QUERIES, CHANNELS, WIDTH = 3, 4, 2, 5


def layer(seed: int) -> Attention:
    """Return a causal layer of softmax attention without biases."""
    vectors = 2.0 * random(2, QUERIES, WIDTH, seed=seed)
    matrices = [2.0 * random(HEADS, WIDTH, CHANNELS, seed=seed + offset) for offset in (10, 20)]
    query, key = (torch.einsum("nsd,hdc->nhsc", vectors, matrix) for matrix in matrices)
    visible = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
    logits = query @ key.mT / CHANNELS**0.5
    none = torch.zeros(HEADS, CHANNELS, dtype=torch.float64)
    query_from, key_from = (Affine(vectors, matrix, none) for matrix in matrices)
    weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    return Attention(query, key, weights, visible, query_from, key_from)


def check_values(configuration: Configuration) -> None:
    """Assert that it gives one finite number for each sequence, for any number of layers."""
    diagnostic: Diagnostic = build("diagnostic", configuration)
    batch: Batch = {"inputs": torch.zeros(2, QUERIES, dtype=torch.int64)}
    outputs = random(2, QUERIES, 7)
    diagnostic.values([], batch, outputs)
    for name, values in diagnostic.values([layer(0), layer(1)], batch, outputs).items():
        assert values.shape == (2,), f"{name!r}: {tuple(values.shape)}, one value for each of 2 sequences"
        assert bool(values.isfinite().all()), f"{name!r} is {values.tolist()}"


def check_lanes(configuration: Configuration) -> None:
    """Assert that lanes, stacked by vmap, give what each gives alone."""
    diagnostic: Diagnostic = build("diagnostic", configuration)
    layers, outputs = [layer(0), layer(1)], random(2, QUERIES, 7)
    tokens = torch.zeros(2, QUERIES, dtype=torch.int64)

    def one(weights: Tensor) -> dict[str, Tensor]:
        changed = [each._replace(weights=tensor) for each, tensor in zip(layers, weights, strict=True)]
        return diagnostic.values(changed, {"inputs": tokens}, outputs)

    weights = torch.stack([each.weights for each in layers])
    both = torch.stack([weights, weights.flip(0)])
    if not one(weights):
        return
    together = vmap(one)(both)
    for lane in range(2):
        for name, values in one(both[lane]).items():
            equal(together[name][lane], values, f"{name!r} of stacked lanes differs from lanes alone", 1e-9)
