"""Max retrieval: the class of a set's item of highest priority."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.splits import below
from workers.data.tasks import Batch, SetTask
from workers.numerics.randomness import Streams
from workers.numerics.tensors import cross_entropy, nan_if_not_finite, one_hot

_FRACTION = (1 << 32) - 1
_PRIORITY_BITS = 24
"""A priority is a multiple of 2^-24 on [0, 1): float32 holds it exactly."""
_HIGHEST = (1 << _PRIORITY_BITS) - 1
EVALUATED_ITEMS = 1 << 21
"""Most items in all sets of one size: of 16,384 items there are 128 sets."""


@dataclass(frozen=True, kw_only=True)
class MaxRetrieval(SetTask):
    """The class of the item of highest priority, of n items with uniform priorities and classes.

    An item's features are its priority on [0, 1) and its class, one-hot; the query, uniform on [0,
    1), says nothing. All sets of a training batch have the same n, uniform on `smallest` ..
    `items`. Evaluated on sets of `items` and, under the conditions `items=32`, `items=64` and so
    on, of twice as many, four times as many, up to `largest`: there softmax attention disperses.
    These sets are the same items, grouped otherwise, in the memory of one. Source: paper 001,
    Appendix A.2 and Table 1. Legend: L lanes, N sets, n items, f features.
    """

    EXAMPLES: ClassVar[Examples] = ({"largest": 64},)

    smallest: int = size(5)
    items: int = size(16)
    largest: int = size(16_384)
    item_classes: int = size(10, low=2)

    def __post_init__(self) -> None:
        if not self.smallest <= self.items <= self.largest:
            raise PluginError(
                f"task.items: {self.items} must be at least task.smallest {self.smallest} "
                f"and at most task.largest {self.largest}"
            )

    @property
    def context(self) -> int:
        return self.items

    @property
    def longest(self) -> int:
        return [self.items, *self._further_sizes()][-1]

    @property
    def features(self) -> int:
        return 1 + self.item_classes

    @property
    def query_features(self) -> int:
        return 1

    @property
    def classes(self) -> int:
        return self.item_classes

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        words = streams.words(1 + batch + batch * self.items)
        count, query, items = words.split([1, batch, batch * self.items], dim=-1)
        lengths = self.smallest + below(count & _FRACTION, self.items - self.smallest + 1)
        return self._sets(self._draw(items), query, lengths.expand(-1, batch), self.items)[0]

    def validation(self, streams: Streams, batch: int) -> Batch:
        return self._draw_evaluation_sets(streams, batch, [self.items])[self.items]

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        """Draw `batch` sets of each size, or fewer of more than `EVALUATED_ITEMS` items in all."""
        sets = self._draw_evaluation_sets(streams, batch, self._further_sizes())
        return {f"items={items}": examples for items, examples in sets.items()}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the cross entropy of the class, averaged over sets."""
        return cross_entropy(outputs, batch["target"]).mean()

    @property
    def position_loss(self) -> str | None:
        return "cross_entropy"

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        target = batch["target"]
        return target, torch.full(target.shape, 1 / target.shape[1], dtype=dtype, device=target.device)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `accuracy`, 1 if the most likely class is right, and `cross_entropy` in nats."""
        right = (outputs.argmax(-1) == batch["target"]).to(outputs.dtype)
        losses = cross_entropy(outputs, batch["target"])
        return {"accuracy": right + nan_if_not_finite(outputs), "cross_entropy": losses}

    def facts(self) -> Params:
        return {"chance": 1 / self.classes}

    def _further_sizes(self) -> list[int]:
        doublings = (self.largest // self.items).bit_length() - 1
        return [self.items << doubling for doubling in range(1, doublings + 1)]

    def _draw_evaluation_sets(self, streams: Streams, batch: int, sizes: Sequence[int]) -> dict[int, Batch]:
        """Return size -> full sets of it; `relevant` [L, N, n] is True at the item to find."""
        counts = {items: max(1, min(batch, EVALUATED_ITEMS // items)) for items in sizes}
        total = max((items * count for items, count in counts.items()), default=0)
        query, words = streams.words(batch + total).split([batch, total], dim=-1)
        drawn, sets = self._draw(words), dict[int, Batch]()
        for items, count in counts.items():
            lengths = query.new_full((streams.lanes, count), items)
            sets[items], winner = self._sets(drawn, query[:, :count], lengths, items)
            sets[items]["relevant"] = winner == torch.arange(items, device=winner.device)
        return sets

    def _draw(self, words: Tensor) -> _Items:
        """Return items, one out of each word [L, M]."""
        priority, kind = words >> (64 - _PRIORITY_BITS) & _HIGHEST, below(words & _FRACTION, self.item_classes)
        features = torch.cat([_unit(priority)[..., None], one_hot(kind, self.item_classes, torch.float32)], dim=-1)
        return _Items(features, priority, kind)

    @staticmethod
    def _sets(drawn: _Items, query: Tensor, lengths: Tensor, size: int) -> tuple[Batch, Tensor]:
        """Return the first items in sets of `size`, and winners [L, N, 1], the last of equals."""
        features, priority, kind = (of[:, : query.shape[1] * size].unflatten(1, (-1, size)) for of in drawn)
        index = torch.arange(size, device=query.device)
        ranks = (priority * size + index).masked_fill(index >= lengths[..., None], -1)  # no ties
        winner = ranks.amax(-1, keepdim=True) % size
        target = kind.gather(-1, winner)[..., 0]
        asked = _unit(query >> (64 - _PRIORITY_BITS) & _HIGHEST)[..., None]
        return {"inputs": features, "lengths": lengths, "query": asked, "target": target}, winner


class _Items(NamedTuple):
    """M items of each lane."""

    features: Tensor  # [L, M, f] float32
    priority: Tensor  # [L, M] int64, in units of 2^-24
    kind: Tensor  # [L, M] int64: the class


def _unit(fraction: Tensor) -> Tensor:
    """Return multiples of 2^-24 as float32."""
    return fraction.float() * 2.0**-_PRIORITY_BITS
