"""Tasks: what a trial learns, on which data, and how it is evaluated.

Data is drawn for all lanes of a pack at once, [L, N, ...], from each lane's own stream; losses and metrics are written
for ONE trial, and the engine stacks them.
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
"""Named tensors. The model reads `inputs`, and where they are there `lengths` (how many of a sequence's positions, or
of a set's items, are given; the rest is padding) and `query` (of a set); the others are the task's own."""


def is_given(batch: Batch) -> Tensor:
    """[N, s] bool: which positions of `inputs` [N, s, ...] are given, at least the first one."""
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
        """`context` without padding (`spaces.plugins.actual`): what follows in a batch belongs to no sequence."""
        return self.context

    def sketch(self) -> Task:
        """Return a task with the same metrics and conditions whose data is at hand at once: itself, unless it reads a
        corpus.

        What is checked before training is checked of this one.
        """
        return self

    @abstractmethod
    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        """Return a training minibatch per lane: `inputs` [L, N, s, ...] and whatever `loss` reads.

        `step` [L] int64: how many steps each lane has made, for a curriculum.
        """

    def held_out(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        """Like `training`, what an architecture is learned on (`workers.training.learning`): the same data, of which it
        gets a share that the weights never see, or wider inputs, where it should learn to generalise to them.
        """
        return self.training(streams, batch, step)

    @property
    def has_identities(self) -> bool:
        """Whether sequences are apart from one another; windows of one text are not, nor any share of them."""
        return True

    @property
    def has_documents(self) -> bool:
        """Whether its training data is a row of documents that can be parted (`training_part`)."""
        return False

    def training_part(self, streams: Streams, batch: int, one_in: int, *, held_out: bool) -> Batch:
        """Like `training`, from the last documents, one in `one_in` by size, if `held_out`, else from the others.

        Raises PluginError if a part has no room for a sequence.
        """
        raise NotImplementedError

    def identity(self, batch: Batch) -> Tensor:
        """[L, N, n] int64: what tells sequences apart, however far they are padded; zeros at its end tell nothing."""
        inputs = batch["inputs"]
        if inputs.is_floating_point():
            inputs = inputs.contiguous().view(torch.int64 if inputs.dtype == torch.float64 else torch.int32)
        return inputs.flatten(2).long()

    @abstractmethod
    def validation(self, streams: Streams, batch: int) -> Batch:
        """Return each lane's validation set: tensors [L, N, ...], N = `batch` unless fixed."""

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        """Further evaluations: condition (`test`, `length=16`) -> a set like the validation set, from other streams."""
        return {}

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Training loss of one trial, a scalar; `outputs` [N, ...] of the model, `batch` without its lane axis."""

    @property
    def position_loss(self) -> str | None:
        """What the loss sums over positions, each with a weight of its own: the `cross_entropy` of a token, the
        `squared` error of a number, or the `margin`'s log(1 + e^-m), m number times target. None: it is no such sum.
        """
        return None

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Targets and weights [L, N, s] of that sum, of sets [L, N], for a batch with its lane axis; many may be 0."""
        raise NotImplementedError

    @abstractmethod
    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the validation metrics of one trial, a value [N] per sequence, whose mean over the set is taken."""

    def evaluated_positions(self, batch: Batch) -> Tensor | None:
        """[L, N, s] bool: the positions of sets [L, N] at which `metrics` reads outputs [N, s, ...]; None: all.

        At others outputs need not be computed: they may be any finite number.
        """
        return None

    def summary(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return what is reported of a set, from the means of `metrics` over it; by default the means themselves."""
        return means

    @property
    def evaluated_together(self) -> int:
        """Sequences of a set that belong together, as the two of a pair: sets hold whole groups of so many."""
        return 1

    def kin(self) -> Mapping[str, Scalar] | None:
        """Equal for tasks without knobs that differ in nothing but their data: shapes, conditions, loss and metrics are
        the same, so that their trials train in one pack. None: there are none.
        """
        return None

    def facts(self) -> Params:
        """Return facts that follow from the sizes and are worth a column: recorded with the trial's params."""
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
        """Whether a model may see only the tokens up to the one that it answers for: others stand in its input."""
        return True

    @property
    def actual_tokens(self) -> int | Tensor:
        """`tokens` without padding."""
        return self.tokens


class NextToken(TokenTask):
    """A task whose loss is the mean negative log likelihood of `targets` [N, s] over all positions."""

    @final
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Cross entropy, averaged over positions and sequences."""
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
        """Return bool [N, s], or with a lane axis: the positions that the loss reads."""
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
    """A task over sequences of vectors: `inputs` [L, N, s, f] floating point; outputs are numbers [N, s, o]."""

    @property
    @abstractmethod
    def features(self) -> int:
        """Number f of features of a position."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number o of numbers that the model writes at a position."""


class SetTask(Task):
    """A task over sets with a question: `inputs` [L, N, n, f], `lengths` [L, N], `query` [L, N, q]; logits [N, c]."""

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
