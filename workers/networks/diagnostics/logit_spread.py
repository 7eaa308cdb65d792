"""The spread of attention's logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.diagnostics import Diagnostic
from workers.networks.diagnostics._heads import by_head
from workers.networks.models import Attention
from workers.networks.scorers import scaled_logits


@dataclass(frozen=True, kw_only=True)
class LogitSpread(Diagnostic):
    """Largest minus smallest of a query's scaled logits, mean over queries; by head and over all.

    These are products with keys over sqrt(c), without positions. Softmax of n logits with spread
    delta gives no key more than e^delta / n. Source: paper 001, Lemma 2.1 and Figure 9.
    """

    def values(self, layers: Sequence[Attention], batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
        spreads: list[Tensor] = []  # [N, h, q] each
        for layer in layers:
            logits = scaled_logits(layer.query, layer.key)
            highest = logits.masked_fill(~layer.visible, float("-inf")).amax(-1)
            spreads.append(highest - logits.masked_fill(~layer.visible, float("inf")).amin(-1))
        return by_head(spreads, batch) if spreads else {}
