"""The contract of scorers. Legend: 2 sequences, h heads, q queries and keys, c channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from graft.testing.common import Configuration, DoesNotApply, build, equal, random, start
from spaces import plugins
from workers.networks.scorers import LogitScorer, Scorer

HEADS, QUERIES, CHANNELS = 4, 5, 3
CAUSAL = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
FULL = torch.ones(QUERIES, QUERIES, dtype=torch.bool)


def learned_of(scorer: Scorer, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Return the scorer's learned parameters, near their start."""
    return {name: value.to(dtype) for name, value in start(scorer.parameters(HEADS)).items()}


def queries_and_keys(dtype: torch.dtype = torch.float64, scale: float = 1.5) -> tuple[Tensor, Tensor]:
    """Return queries and keys, [2, h, q, c] each."""
    drawn = random(2, 2, HEADS, QUERIES, CHANNELS, seed=1) * scale
    return drawn[0].to(dtype), drawn[1].to(dtype)


def check_mask(configuration: Configuration) -> None:
    """Assert that invisible keys weigh nothing, and weights sum to 1 if sums_to_one says so."""
    scorer: Scorer = build("scorer", configuration)
    for visible in (CAUSAL, FULL):
        weights = scorer.weights(*queries_and_keys(), visible, learned_of(scorer))
        assert weights.shape == (2, HEADS, QUERIES, QUERIES), f"weights have the shape {tuple(weights.shape)}"
        assert not weights.masked_fill(visible, 0).any(), "a key that a query does not see has a weight: mask last"
        rows = weights.sum(-1)
        ones = torch.ones_like(rows)
        if scorer.sums_to_one:
            # A scorer that cuts at zero may leave a query without any key.
            given = rows > 1e-6
            assert given.double().mean() > 0.5, "most queries give no weight to any key"
            equal(rows[given], ones[given], "the weights of a query do not sum to 1", 1e-9)
        else:
            is_one = torch.allclose(rows, ones)
            assert not is_one, "sums_to_one is False, but the weights sum to 1"


def check_gradients(configuration: Configuration) -> None:
    """Assert that its gradients are those of finite differences along random directions."""
    _compare_gradients(configuration, fast=True)


def check_each_derivative(configuration: Configuration) -> None:
    """Assert that each derivative by itself is that of finite differences."""
    _compare_gradients(configuration, fast=False)


def _compare_gradients(configuration: Configuration, *, fast: bool) -> None:
    scorer: Scorer = build("scorer", configuration)
    learned = learned_of(scorer)
    query, key = (part[:1].clone().requires_grad_() for part in queries_and_keys(scale=0.9))
    inputs = (query, key, *(value.requires_grad_() for value in learned.values()))
    for visible in (CAUSAL, FULL):

        def weights(query: Tensor, key: Tensor, *values: Tensor, visible: Tensor = visible) -> Tensor:
            return scorer.weights(query, key, visible, dict(zip(learned, values, strict=True)))

        if not weights(*inputs).requires_grad:
            raise DoesNotApply("its weights depend on nothing that is learned")
        right = torch.autograd.gradcheck(
            weights, inputs, eps=1e-7, atol=2e-5, rtol=1e-3, raise_exception=False, fast_mode=fast
        )
        assert right, "its gradients are not those of finite differences"


def check_order(configuration: Configuration) -> None:
    """Assert that reordering the keys reorders the weights, unless it knows_distance."""
    scorer, (query, key) = build("scorer", configuration), queries_and_keys()
    order = torch.tensor([3, 0, 4, 1, 2])
    learned = learned_of(scorer)
    before = scorer.weights(query, key, FULL, learned)
    after = scorer.weights(query, key[..., order, :], FULL, learned)
    if scorer.knows_distance:
        assert not torch.allclose(after, before[..., order]), "knows_distance is True, but it does not"
        return
    equal(after, before[..., order], "the weights depend on where keys stand: say so by knows_distance", 1e-9)


def check_causality(configuration: Configuration) -> None:
    """Assert that the weights of a query do not depend on keys that it does not see."""
    scorer, (query, key) = build("scorer", configuration), queries_and_keys()
    changed = key.clone()
    changed[..., -1, :] += 5
    weights, other = (scorer.weights(query, k, CAUSAL, learned_of(scorer)) for k in (key, changed))
    same = torch.equal(weights[..., :-1, :], other[..., :-1, :])
    assert same, "weights of earlier queries change with the last key, which they do not see"


def check_padding(configuration: Configuration) -> None:
    """Assert that invisible keys and later queries change no weights of the rest, or may_pad is False."""
    scorer = build("scorer", configuration)
    if not isinstance(scorer, LogitScorer) or not scorer.may_pad:
        raise DoesNotApply("its tensors are not padded")
    size = QUERIES + 3
    logits, learned = random(2, HEADS, size, size, seed=1), learned_of(scorer)
    causal, full = torch.ones(size, size, dtype=torch.bool).tril(), (torch.arange(size) < QUERIES).expand(size, size)
    for visible, whole in ((CAUSAL, causal), (FULL, full)):
        padded = scorer.of_logits(logits, whole, learned)[..., :QUERIES, :QUERIES]
        alone = scorer.of_logits(logits[..., :QUERIES, :QUERIES], visible, learned)
        equal(padded, alone, "invisible keys or later queries change the weights: may_pad must be False", 1e-9)


def check_no_nan(configuration: Configuration) -> None:
    """Assert that no logit makes a NaN: zeros, large ones, one visible key, in any precision."""
    scorer: Scorer = build("scorer", configuration)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        for scale in (0.0, 1.0, 100.0):
            query, key = (part.requires_grad_() for part in queries_and_keys(dtype, scale))
            drawn = learned_of(scorer, dtype).items()
            learned = {name: value.requires_grad_() for name, value in drawn}
            weights = scorer.weights(query, key, CAUSAL, learned)
            where = f"{dtype} logits of about {scale * scale:g}".replace("torch.", "")
            assert weights.dtype == dtype, f"{where}: the weights are {weights.dtype}"
            assert not weights.isnan().any(), f"{where}: a weight is NaN"
            if weights.requires_grad:
                inputs = (query, key, *learned.values())
                total = weights.float().clamp(-1e3, 1e3).sum()
                gradients: Any = torch.autograd.grad(total, inputs, allow_unused=True)
                bad = any(gradient is not None and gradient.isnan().any() for gradient in gradients)
                assert not bad, f"{where}: a gradient is NaN"


def check_lanes(configuration: Configuration) -> None:
    """Assert that lanes with their own knobs, stacked by vmap, give what each gives alone."""
    scorer, (query, key) = build("scorer", configuration), queries_and_keys()
    factors, knobs = torch.tensor([1.0, 0.9], dtype=torch.float64), dict[str, Tensor]()
    for path, value in plugins.knobs(scorer):
        values = factors * value
        knobs[path] = values.clamp(min=1.0) if path.endswith(("alpha", "n")) else values
    learned = learned_of(scorer)

    def weights(knobs: dict[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
        return plugins.bind(scorer, knobs).weights(query, key, CAUSAL, learned)

    together = vmap(weights)(knobs, query, key)
    for lane in range(2):
        setting = {path: values[lane] for path, values in knobs.items()}
        alone = weights(setting, query[lane], key[lane])
        equal(together[lane], alone, "stacked lanes differ from lanes alone")
