"""What all tasks have in common, and the tasks that need no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.oracles.pieces.parameters import Batch
from tests.oracles.pieces.streams import (
    Integers,
    Words,
    below,
    draw_permutations,
    draw_words,
)


class Task:
    """Data, a loss and metrics."""

    @property
    def evaluated_together(self) -> int:
        """Sequences that stay together where a set is evaluated in parts."""
        return 1

    @property
    def longest(self) -> int:
        """Positions of the longest input."""
        raise NotImplementedError

    def training(self, stream: Words, count: int, step: int) -> Batch:
        """Return the batch of a step."""
        raise NotImplementedError

    def held_out(self, stream: Words, count: int, step: int) -> Batch:
        """Return what the form of a non-linearity learns on."""
        return self.training(stream, count, step)

    def validation(self, stream: Words, count: int) -> Batch:
        """Return the validation set."""
        raise NotImplementedError

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        """Condition -> a further set."""
        return {}

    def identity(self, batch: Batch) -> Integers:
        """[N, n] what tells sequences apart."""
        inputs = batch["inputs"].numpy()
        whole = inputs.view(np.int32) if inputs.dtype == np.float32 else inputs
        return whole.reshape(len(inputs), -1).astype(np.int64)

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the training loss."""
        raise NotImplementedError

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """[N] of each metric, whose mean over a set is taken."""
        raise NotImplementedError

    def summarize(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return what is reported of these means."""
        return means


def not_finite(outputs: Tensor) -> Tensor:
    """[...] of [..., v]: 0, and NaN where a number is not finite, which an argmax would not tell."""
    return (outputs * 0).sum(-1)


def divide_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Negative log likelihood of each target [...] under logits [..., v]."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(targets.shape)


def average_distances(outputs: Tensor, legal: Tensor, counted: Tensor) -> Mapping[str, Tensor]:
    """TVD, ITP and ITR (paper 003, equations 16-18) to the uniform distribution over `legal` [N, s, v].

    The mean over the positions that are `counted` [N, s].
    """
    legal, counted = legal.to(outputs.dtype), counted.to(outputs.dtype)
    guessed, truth = outputs.softmax(-1), legal / legal.sum(-1, keepdim=True).clamp(min=1)
    best = functional.one_hot(outputs.argmax(-1), outputs.shape[-1])
    values = {
        "tvd": (guessed - truth).abs().sum(-1) / 2,
        "itp": (guessed * (1 - legal)).sum(-1),
        "itr": (best * (1 - legal)).sum(-1),
    }
    return {name: (value * counted).sum(-1) / counted.sum(-1) for name, value in values.items()}


@dataclass(kw_only=True)
class SetComplementTask(Task):
    """Which tokens have not come yet (paper 003): permutations, trained on short prefixes, evaluated on all."""

    length: int
    vocabulary: int

    def __post_init__(self) -> None:
        self.tokens = self.vocabulary

    @property
    def longest(self) -> int:
        return self.vocabulary - 1

    def training(self, stream: Words, count: int, step: int) -> Batch:
        tokens = torch.from_numpy(draw_permutations(stream, count, self.vocabulary, self.length + 1))
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

    def validation(self, stream: Words, count: int) -> Batch:
        return {"inputs": torch.from_numpy(draw_permutations(stream, count, self.vocabulary, self.vocabulary - 1))}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return divide_losses(outputs, batch["targets"]).mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        seen = functional.one_hot(batch["inputs"], self.vocabulary).cumsum(1)
        return average_distances(outputs, 1 - seen, torch.ones_like(batch["inputs"]))


@dataclass(kw_only=True)
class MaxRetrievalTask(Task):
    """The class of a set's item of highest priority (paper 001)."""

    smallest: int
    items: int
    largest: int
    item_classes: int

    def __post_init__(self) -> None:
        self.features, self.query_features, self.classes = 1 + self.item_classes, 1, self.item_classes
        self.sizes = [self.items * 2**power for power in range(1, (self.largest // self.items).bit_length())]

    @property
    def longest(self) -> int:
        return self.largest

    def training(self, stream: Words, count: int, step: int) -> Batch:
        words = draw_words(stream, 1 + count + count * self.items)
        length = self.smallest + int(below(lower_half(words[:1]), self.items - self.smallest + 1)[0])
        return self._sets(words[1 : 1 + count], words[1 + count :], self.items, length)

    def validation(self, stream: Words, count: int) -> Batch:
        return self._evaluation_sets(stream, count, [self.items])[self.items]

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        return {f"items={size}": batch for size, batch in self._evaluation_sets(stream, count, self.sizes).items()}

    def _evaluation_sets(self, stream: Words, count: int, sizes: list[int]) -> dict[int, Batch]:
        """Return the same items for each size; never more than 2^21."""
        counts = {size: max(1, min(count, 2**21 // size)) for size in sizes}
        words = draw_words(stream, count + max((size * sets for size, sets in counts.items()), default=0))
        return {
            size: self._sets(words[:sets], words[count : count + sets * size], size, size)
            for size, sets in counts.items()
        }

    def _sets(self, query: Words, items: Words, size: int, length: int) -> Batch:
        """Priorities are the upper 24 bits of a word, classes come from the lower 32; the last of equals wins."""
        items = items.reshape(len(query), size)
        priority = (items >> np.uint64(40)).astype(np.int64)
        kind = below(lower_half(items), self.item_classes)
        winner = length - 1 - priority[:, :length][:, ::-1].argmax(1)
        unit = (priority * 2.0**-24)[..., None]
        features = np.concatenate([unit, np.eye(self.item_classes)[kind]], -1)
        return {
            "inputs": torch.from_numpy(features).float(),
            "lengths": torch.full((len(query),), length),
            "query": torch.from_numpy((query >> np.uint64(40)) * 2.0**-24).float()[:, None],
            "target": torch.from_numpy(kind[np.arange(len(query)), winner]),
            "relevant": torch.from_numpy(winner)[:, None] == torch.arange(size),
        }

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(outputs, batch["target"])

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        right = (outputs.argmax(-1) == batch["target"]).to(outputs.dtype)
        return {
            "accuracy": right + not_finite(outputs),
            "cross_entropy": functional.cross_entropy(outputs, batch["target"], reduction="none"),
        }


def lower_half(words: Words) -> Integers:
    """Return the lower 32 bits of each word."""
    return (words & np.uint64(0xFFFFFFFF)).astype(np.int64)
