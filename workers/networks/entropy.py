"""Entropy of softmax attention over very many keys, with memory linear in their number."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workers.networks.scorers import widen

BLOCK = 4096
"""Keys that are processed together."""


def attention_entropy(query: Tensor, key: Tensor, *, causal: bool, block: int = BLOCK) -> Tensor:
    """Return the entropy [..., q] in nats of softmax(query . key / sqrt(c)).

    `query` is [..., q, c], `key` [..., k, c]. One pass over blocks of keys keeps per query the
    largest logit m so far, s = sum of e^(z - m) and u = sum of (z - m) e^(z - m); a new m rescales
    both, and the entropy is log s - u / s. With `causal` the last query sees all keys, and each one
    before it a key less. Half precision is computed in float32. Source: paper 001, Appendix G.
    """
    query, key = widen(query), widen(key)
    queries, keys = query.shape[-2], key.shape[-2]
    last_seen = torch.arange(keys - queries, keys, device=query.device) if causal else None
    top, least = query.new_full(query.shape[:-1], -math.inf), torch.finfo(query.dtype).min
    total, moment = torch.zeros_like(top), torch.zeros_like(top)
    for start in range(0, keys, block):
        logits = query @ key[..., start : start + block, :].mT / math.sqrt(query.shape[-1])
        if last_seen is not None:
            index = torch.arange(start, start + logits.shape[-1], device=query.device)
            logits = logits.masked_fill(index > last_seen[:, None], -math.inf)
        higher = torch.maximum(top, logits.amax(-1))
        safe = higher.clamp(min=least)  # no key seen yet: -inf - -inf is NaN
        lowered = (top - safe).clamp(min=least)
        shrink = lowered.exp()
        centred = logits - safe[..., None]
        powers = centred.exp()
        products = torch.where(powers > 0, centred * powers, 0)  # 0 log 0 = 0
        moment = (moment + lowered * total) * shrink + products.sum(-1)
        top, total = higher, total * shrink + powers.sum(-1)
    return total.log() - moment / total
