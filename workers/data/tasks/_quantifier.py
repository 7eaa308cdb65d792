"""Is every number, or some number, positive? Legend: L lanes, N sequences, n numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.tasks import Batch
from workers.data.tasks._in_context import InContext, predictions, sequences
from workers.numerics.randomness import Streams
from workers.numerics.tensors import nan_if_not_finite


@dataclass(frozen=True, kw_only=True)
class Quantifier(InContext):
    """At each number: is it true (1) or false (-1) of all so far? Earlier answers are given.

    Trained on numbers of N(0, `input_scale`^2) by the cross entropy of the sign. Conditions, by
    default those of Figures 4 and 5 of paper 000: `length=50 sigma=3`, lengths 10, 20, ... of N(0,
    sigma^2), sigma 1, 2, ...; and `deviant=100`, training lengths of N(0, 1) with one extreme
    number at random (the paper does not say which), where answers from there on count. Sets have
    the same signs at all sigma and extremes, and shorter ones begin as the longest do.

    Nearly all answers are the same: a constant has the accuracy `chance`, and a balanced one of
    1/2.
    """

    EXAMPLES: ClassVar[Examples] = (
        {"points": 8, "curriculum_start": 4, "test_length": 16, "test_length_step": 8, "test_sigma": 3},
    )

    test_length: int = size(200)
    test_length_step: int = size(10)
    test_sigma: int = size(30)
    test_sigma_step: int = size(1)

    @abstractmethod
    def truth(self, positive: Tensor) -> Tensor:
        """Return the answers [..., n] at each number, from `positive` [..., n], both bool."""

    @final
    @property
    def longest(self) -> int:
        return 2 * max(self.points, *self._lengths) - 1

    @final
    def examples(self, streams: Streams, batch: int) -> tuple[Tensor, Tensor]:
        x = self.scaled(streams.normal(batch, self.points))
        return x, self._answers(x)

    @final
    def validation(self, streams: Streams, batch: int) -> Batch:
        x, y = self.examples(streams, batch)
        return sequences(x, y, torch.ones_like(y, dtype=torch.bool))

    @final
    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        longest = max(self.points, *self._lengths)
        x, position = streams.normal(batch, longest + 1).split([longest, 1], -1)
        sets: dict[str, Batch] = {}
        for length in self._lengths:
            first = x[..., :length]
            plain = sequences(first, self._answers(first), torch.ones_like(first, dtype=torch.bool))
            for sigma in range(1, self.test_sigma + 1, self.test_sigma_step):
                wider = sequences(sigma * first, plain["targets"], plain["wanted"])
                sets[f"length={length} sigma={sigma}"] = plain | {"inputs": wider["inputs"]}
        position = (torch.special.ndtr(position) * self.points).floor()
        first, index = x[..., : self.points], torch.arange(self.points, device=x.device)
        for extreme in self.extremes:  # the number at the place is changed to +-extreme
            deviant = torch.where(index == position, first.sign() * extreme, first)
            sets[f"deviant={extreme}"] = sequences(deviant, self._answers(first), index >= position)
        return sets

    @property
    def position_loss(self) -> str | None:
        return "margin"

    @final
    def losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return log(1 + e^-m) of the margin m; torch's softplus rounds other last entries."""
        margin = predictions * targets
        positive = margin >= 0
        small = torch.where(positive, -margin, margin).exp()
        return torch.where(positive, 0, -margin) + small.log1p()

    @final
    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return counts of answers and of right ones by the truth, for `summary`, and two means.

        `cross_entropy` in nats; `last_accuracy`: 1 if the answer on the whole sequence is right.
        """
        answers = predictions(outputs)
        true, wanted = batch["targets"] > 0, batch["wanted"]
        right, broken = (answers > 0) == true, nan_if_not_finite(answers)
        losses = self.losses(answers, batch["targets"].to(answers.dtype)) * wanted
        return {
            "true": _count(true & wanted, broken),
            "right_true": _count(right & true & wanted, broken),
            "false": _count(~true & wanted, broken),
            "right_false": _count(right & ~true & wanted, broken),
            "cross_entropy": losses.sum(-1) / _count(wanted, broken),
            "last_accuracy": right[:, -1].to(broken.dtype) + broken,
        }

    @final
    def summary(self, means: Mapping[str, float]) -> Mapping[str, float]:
        """Return `accuracy`, `balanced_accuracy`, its mean over true and false, and the rest."""
        true, false = means["true"], means["false"]
        right_true, right_false = means["right_true"], means["right_false"]
        pairs = ((right_true, true), (right_false, false))
        rates = [right / count for right, count in pairs if count]
        return {
            "accuracy": (right_true + right_false) / (true + false),
            "balanced_accuracy": sum(rates) / len(rates),
            "cross_entropy": means["cross_entropy"],
            "last_accuracy": means["last_accuracy"],
        }

    @final
    def facts(self) -> Params:
        return {"chance": 1 - sum(2.0**-i for i in range(1, self.points + 1)) / self.points}

    @property
    def _lengths(self) -> range:
        first = min(self.test_length_step, self.test_length)
        return range(first, self.test_length + 1, self.test_length_step)

    def _answers(self, x: Tensor) -> Tensor:
        return 2 * self.truth(x > 0).to(x.dtype) - 1


def _count(these: Tensor, broken: Tensor) -> Tensor:
    """Count true entries [N, n] of each sequence, [N]; NaN where `broken` is."""
    return these.sum(-1).to(broken.dtype) + broken
