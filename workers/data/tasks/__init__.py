"""Tasks: a trial's data, loss and metrics.

Data is drawn for all lanes of a pack at once, [L, N, ...], from each lane's own stream; losses and
metrics are written for ONE trial, and the engine stacks them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from spaces.records import Params, Scalar
from workers.numerics.randomness import Streams
from workers.numerics.tensors import IMPOSSIBLE, cross_entropy, cut, mean_unpadded

Batch = dict[str, Tensor]
"""Named tensors. A model reads `inputs`, and if they are there `lengths` (positions, or items,
before the padding) and `query` (of a set). The others are the task's own.
"""


def is_given(batch: Batch) -> Tensor:
    """Return True at the given positions of `inputs` [N, s, ...], at least the first, [N, s]."""
    inputs, lengths = batch["inputs"], batch.get("lengths")
    index = torch.arange(inputs.shape[1], device=inputs.device)
    if lengths is None:
        return (index >= 0).expand(len(inputs), -1)
    return index < lengths[:, None].clamp(min=1)


class Task(ABC):
    """A task's configuration, a frozen dataclass; its sizes are structural.

    A model reads one kind of task: over tokens, over vectors, or over sets.
    """

    @property
    @abstractmethod
    def context(self) -> int:
        """Length of the longest training input, in positions."""

    @property
    def longest(self) -> int:
        """Length of the longest input that the task is trained or evaluated on, in positions."""
        return self.context

    @property
    def actual_context(self) -> int | Tensor:
        """`context` without padding (`spaces.plugins.actual`), which belongs to no sequence."""
        return self.context

    def sketch(self) -> Task:
        """Return a task of the same metrics and conditions that reads no corpus, for checks."""
        return self

    @abstractmethod
    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        """Return a minibatch per lane, `inputs` [L, N, s, ...], for lanes at `step` [L] int64."""

    def held_out(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        """Return a minibatch that an architecture is learned on: like `training`, or wider inputs.

        The weights never see its share of `training`'s data (`workers.training.learning`).
        """
        return self.training(streams, batch, step)

    @property
    def has_identities(self) -> bool:
        """True if sequences are apart from one another, as windows of one text are not."""
        return True

    @property
    def has_documents(self) -> bool:
        """True if the training data is a row of documents that can be parted (`training_part`)."""
        return False

    def training_part(self, streams: Streams, batch: int, one_in: int, *, held_out: bool) -> Batch:
        """Return a minibatch of the last documents, one in `one_in` by size, or else of the others.

        Raises PluginError if a part has no room for a sequence.
        """
        raise NotImplementedError

    def identity(self, batch: Batch) -> Tensor:
        """Return int64 [L, N, n] that tells sequences apart; zeros at its end are padding."""
        inputs = batch["inputs"]
        if inputs.is_floating_point():
            inputs = inputs.contiguous().view(torch.int64 if inputs.dtype == torch.float64 else torch.int32)
        return inputs.flatten(2).long()

    @abstractmethod
    def validation(self, streams: Streams, batch: int) -> Batch:
        """Return each lane's validation set: tensors [L, N, ...], N = `batch` unless fixed."""

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        """Return further sets by condition (`test`, `length=16`), from other streams."""
        return {}

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return one trial's training loss of `outputs` [N, ...]; `batch` has no lane axis."""

    @property
    def position_loss(self) -> str | None:
        """The loss of a position, if `loss` is a weighted mean over positions, else None.

        `cross_entropy` of a token, `squared` error of a number, `margin`: log(1 + e^-(number *
        target)).
        """
        return None

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the targets and weights [L, N, s] of that mean, of sets [L, N].

        A lane's weights add to 1, which `training.accumulate` needs; many may be 0.
        """
        raise NotImplementedError

    @abstractmethod
    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the validation metrics [N] of one trial's sequences; a set has their means."""

    def evaluated_positions(self, batch: Batch) -> Tensor | None:
        """Return True where `metrics` reads outputs, [L, N, s] or [L, N]; None: everywhere."""
        return None

    def summary(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return what is reported of a set, from the means of its `metrics`: by default these."""
        return means

    @property
    def evaluated_together(self) -> int:
        """Sequences of a set that belong together, as in pairs; sets hold whole groups."""
        return 1

    def kin(self) -> Mapping[str, Scalar] | None:
        """Return a key that tasks without knobs share if only their data differ, else None.

        Their trials share a pack: shapes, conditions, loss and metrics are the same.
        """
        return None

    def facts(self) -> Params:
        """Return facts about the data that are recorded with the trial's params."""
        return {}


def weights_of(wanted: Tensor, dtype: torch.dtype) -> Tensor:
    """Return weights [L, N, s] of the mean over a lane's wanted positions [L, N, s]."""
    counts = wanted.to(dtype)
    return counts / counts.sum((-2, -1), keepdim=True)


class TokenTask(Task):
    """A task over tokens: `inputs` [L, N, s] int64, and a model's outputs are logits [N, s, v]."""

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Number v of distinct token ids the model reads and writes."""

    @property
    def causal(self) -> bool:
        """True if a model may see only the tokens up to the one it answers for."""
        return True

    @property
    def actual_tokens(self) -> int | Tensor:
        """`tokens` without padding."""
        return self.tokens


class NextToken(TokenTask):
    """A task whose loss is the mean negative log likelihood of `targets` [N, s] everywhere."""

    @final
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the cross entropy, averaged over positions and sequences."""
        losses = cross_entropy(cut(outputs, self.actual_tokens, IMPOSSIBLE), batch["targets"])
        context = self.actual_context
        return losses.mean() if isinstance(context, int) else mean_unpadded(losses, context).mean()

    @property
    def position_loss(self) -> str | None:
        return "cross_entropy" if isinstance(self.actual_context, int) else None

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        targets = batch["targets"]
        share = 1 / math.prod(targets.shape[1:])
        return targets, torch.full(targets.shape, share, dtype=dtype, device=targets.device)


class SomeTokens(TokenTask):
    """A task whose loss is the mean negative log likelihood of some of the `targets` [N, s]."""

    def trained_positions(self, batch: Batch) -> Tensor:
        """Return True at the positions that the loss reads, [N, s], or with lanes."""
        return batch["wanted"]

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the cross entropy, averaged over these positions of all sequences."""
        wanted = self.trained_positions(batch).to(outputs.dtype)
        return (cross_entropy(outputs, batch["targets"]) * wanted).sum() / wanted.sum()

    @property
    def position_loss(self) -> str | None:
        return "cross_entropy"

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return batch["targets"], weights_of(self.trained_positions(batch), dtype)


class VectorTask(Task):
    """A task over sequences of vectors: `inputs` [L, N, s, f] and outputs [N, s, o] are floats."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Number f of features of a position."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number o of numbers that the model writes at a position."""


class SetTask(Task):
    """A set task: `inputs` [L, N, n, f], `lengths` [L, N], `query` [L, N, q]; logits [N, c]."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Number f of features of an item."""

    @property
    @abstractmethod
    def query_features(self) -> int:
        """Number q of features of the question."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number c of answers to choose from."""
