"""The share of attention on the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.diagnostics import Diagnostic
from workers.networks.diagnostics._heads import by_head, shares
from workers.networks.models import Attention


@dataclass(frozen=True, kw_only=True)
class TargetWeight(Diagnostic):
    """Share of attention on the keys that hold the answer, by head and over all.

    A mean over queries, for batches with `relevant` [N, k], true at such keys; `wanted` [N, q], if
    there, is true at the queries that count. Weights are divided by the sum of their absolute
    values. Source: paper 001, Figures 2 and 7.
    """

    def values(self, layers: Sequence[Attention], batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
        if not layers or "relevant" not in batch:
            return {}
        relevant = batch["relevant"][:, None, None]
        weights = [shares(layer.weights).masked_fill(~relevant, 0).sum(-1) for layer in layers]
        return by_head(weights, batch, batch.get("wanted"))
