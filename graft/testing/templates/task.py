"""A task: which data a trial learns from, what it minimizes, and what is reported of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.tasks import Batch, NextToken
from workers.numerics.randomness import Streams
from workers.numerics.tensors import cross_entropy


@dataclass(frozen=True, kw_only=True)
class Example(NextToken):
    """At each position of a random sequence, say the largest token so far. Half the sequence is enough to see most."""

    EXAMPLES: ClassVar[Examples] = ({"length": 6, "symbols": 8},)  # what `search plugin check` builds

    length: int = size(16)
    symbols: int = size(32, low=2)

    @property
    def tokens(self) -> int:
        return self.symbols

    @property
    def context(self) -> int:
        return self.length

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        # Data is drawn for all lanes at once, from each lane's own stream and nothing else: [lanes, batch, length].
        inputs = (streams.uniform(batch, self.length) * self.symbols).long()
        return {"inputs": inputs, "targets": inputs.cummax(-1).values}

    def validation(self, streams: Streams, batch: int) -> Batch:
        return self.training(streams, batch, torch.zeros_like(streams.state))

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        # For one trial: logits [sequences, length, tokens]; one value for each sequence.
        right = outputs.argmax(-1) == batch["targets"]
        loss = cross_entropy(outputs, batch["targets"]).mean(-1)
        return {"accuracy": right.to(outputs.dtype).mean(-1), "cross_entropy": loss}

    def facts(self) -> Params:
        return {"chance": 1 / self.symbols}
