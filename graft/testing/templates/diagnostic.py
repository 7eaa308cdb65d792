"""A diagnostic: a measure of attention at a validation, with `training.diagnostics: true`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.diagnostics import Diagnostic
from workers.networks.models import Attention


@dataclass(frozen=True, kw_only=True)
class Example(Diagnostic):
    """The largest weight that a query gives to a key, mean over queries and heads, by layer."""

    def values(self, layers: Sequence[Attention], batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
        # Weights [sequences, heads, queries, keys]; one value for each sequence.
        return {
            f"layer={number}": layer.weights.amax(-1).mean((-1, -2)).expand(len(outputs))
            for number, layer in enumerate(layers)
        }
