"""A task: which data a trial learns from, what it minimizes, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.tasks import Batch, TokenTask, weights_of
from workers.numerics.randomness import Streams
from workers.numerics.tensors import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Example(TokenTask):
    """At each position in the second half of a random sequence, say the largest token so far.

    A task whose loss is the mean over all positions derives from NextToken instead, and needs no
    `wanted`, `loss`, `position_loss` and `position_targets`.
    """

    EXAMPLES: ClassVar[Examples] = ({"length": 6, "symbols": 8},)  # for `search plugin check`

    length: int = size(16, low=2)
    symbols: int = size(32, low=2)

    @property
    def tokens(self) -> int:
        return self.symbols

    @property
    def context(self) -> int:
        return self.length

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        # Drawn for all lanes at once, from each lane's own stream alone: [lanes, batch, length].
        inputs = (streams.uniform(batch, self.length) * self.symbols).long()
        is_late = torch.arange(self.length, device=inputs.device) >= self.length // 2
        wanted = is_late.expand_as(inputs)
        return {"inputs": inputs, "targets": inputs.cummax(-1).values, "wanted": wanted}

    def validation(self, streams: Streams, batch: int) -> Batch:
        return self.training(streams, batch, torch.zeros_like(streams.state))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        # For one trial: logits [sequences, length, tokens].
        wanted = batch["wanted"].to(outputs.dtype)
        return (cross_entropy(outputs, batch["targets"]) * wanted).sum() / wanted.sum()

    # The same loss for the compiled steps, which train several times faster than others: a sum of
    # cross entropies over positions, and each position's target and weight, [lanes, batch, length].

    @property
    def position_loss(self) -> str | None:
        return "cross_entropy"

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return batch["targets"], weights_of(batch["wanted"], dtype)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        # For one trial; one value for each sequence.
        wanted = batch["wanted"].to(outputs.dtype)
        right = (outputs.argmax(-1) == batch["targets"]).to(outputs.dtype)
        loss = cross_entropy(outputs, batch["targets"])
        count = wanted.sum(-1)
        return {"accuracy": (right * wanted).sum(-1) / count, "cross_entropy": (loss * wanted).sum(-1) / count}

    def facts(self) -> Params:
        return {"chance": 1 / self.symbols}
