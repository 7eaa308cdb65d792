"""The range of a model's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.diagnostics import Diagnostic
from workers.networks.models import Attention


@dataclass(frozen=True, kw_only=True)
class BoundaryValues(Diagnostic):
    """`highest` and `lowest`: the largest and smallest number that a model writes in a sequence.

    Models trained on a small range do not leave it where larger numbers are asked for. For tasks
    over vectors only: outputs of other tasks are logits. Source: paper 000, section 5 and Figure 1.
    """

    def values(self, layers: Sequence[Attention], batch: Batch, outputs: Tensor) -> dict[str, Tensor]:
        if not batch["inputs"].is_floating_point() or "query" in batch:
            return {}
        numbers = outputs.flatten(1)  # [N, s o]
        return {"highest": numbers.amax(-1), "lowest": numbers.amin(-1)}
