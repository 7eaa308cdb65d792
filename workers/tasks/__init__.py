"""Tasks: what a trial learns, on which data, and how it is judged.

Data is drawn for all lanes of a pack at once, [L, N, ...], from each lane's own stream; losses and metrics are written
for ONE trial, and the engine stacks them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

from torch import Tensor

from spaces.records import Scalar
from workers.randomness import Streams
from workers.tensors import IMPOSSIBLE, cross_entropy, cut, mean_of

Batch = dict[str, Tensor]
"""Named tensors; `inputs` is what the model reads, the rest is the task's own."""


class Task(ABC):
    """A task's configuration, a frozen dataclass; its sizes are structural."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Number of distinct token ids the model reads and writes."""

    @property
    @abstractmethod
    def context(self) -> int:
        """Length of the longest training input, in tokens."""

    @property
    def actual_tokens(self) -> int | Tensor:
        """`tokens` without padding (`spaces.plugins.actual`)."""
        return self.tokens

    @property
    def actual_context(self) -> int | Tensor:
        """`context` without padding: what follows in `inputs` and `targets` belongs to no sequence."""
        return self.context

    @property
    def longest(self) -> int:
        """Length of the longest input that the task is trained or judged on, in tokens."""
        return self.context

    @abstractmethod
    def training(self, streams: Streams, batch: int) -> Batch:
        """A training minibatch per lane: `inputs` [L, N, s] int64 and whatever `loss` reads."""

    @abstractmethod
    def validation(self, streams: Streams, batch: int) -> Batch:
        """The validation set of each lane, one per trial: tensors [L, N, ...], N = `batch` unless the set is fixed."""

    def shifted(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        """Further evaluations: condition (`test`, `length=16`) -> a set like the validation set, from other streams."""
        return {}

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Training loss of one trial, a scalar; `logits` [N, s, v], `batch` without its lane axis."""

    @abstractmethod
    def metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Validation metrics of one trial, one value [N] per sequence; their mean is reported."""

    def facts(self) -> Mapping[str, Scalar]:
        """What follows from the sizes and is worth a column: recorded with the trial's params."""
        return {}


class NextToken(Task):
    """A task whose loss is the mean negative log likelihood of `targets` [N, s] over all positions."""

    @final
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross entropy, averaged over positions and sequences."""
        losses = cross_entropy(cut(logits, self.actual_tokens, IMPOSSIBLE), batch["targets"])
        context = self.actual_context
        return losses.mean() if isinstance(context, int) else mean_of(losses, context).mean()
