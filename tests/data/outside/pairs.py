"""A task that reads its examples from a file: the value that belongs to a key, of a table in a text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import file
from spaces.plugins.files import FilePath
from workers.data.tasks import Batch, NextToken
from workers.numerics.randomness import Streams

KEYS = 8


@cache
def _table(path: FilePath) -> Tensor:
    """[KEYS] the value of each key, of a text or of an array `table` as numpy.savez writes it."""
    if path.written.endswith(".npz"):
        return torch.from_numpy(np.load(path)["table"])
    return torch.tensor([int(word) for word in Path(path).read_text().split()])


@dataclass(frozen=True, kw_only=True)
class Pairs(NextToken):
    """A key is followed by its value, which the file says."""

    EXAMPLES: ClassVar[Examples] = ()

    table: FilePath = file()

    @property
    def tokens(self) -> int:
        return KEYS

    @property
    def context(self) -> int:
        return 2

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        keys = streams.words(batch * 2).view(streams.lanes, batch, 2) % KEYS
        return {"inputs": keys, "targets": _table(self.table)[keys]}

    def validation(self, streams: Streams, batch: int) -> Batch:
        return self.training(streams, batch, streams.state)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": (outputs.argmax(-1) == batch["targets"]).to(outputs.dtype).mean(-1)}
