"""Learning in context: from numbers x_1 y_1 x_2 ... each y is predicted at its x.

Source: Garg et al. 2022, "What can transformers learn in-context?", section 2, and paper 000,
section 3. Legend: L lanes, N sequences, n points, s = 2 n - 1 positions.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spaces.plugins.fields import knob, size, step_count
from workers.data.tasks import Batch, VectorTask
from workers.numerics.randomness import Streams


@dataclass(frozen=True, kw_only=True)
class InContext(VectorTask):
    """Trained on growing prompts: the loss is of 11 points, two more every 2,000 steps, up to all.

    These are the steps of the public code, which goes on to 41 points. Paper 000 has 40, and starts
    at 1 (section 3, Figure 7) or 3 (Appendix A.1). A start of `points` is no curriculum. The
    prediction of y_i sees x_1 y_1 ... x_i. An `input_scale` of 10 or 100 trains on wider numbers
    (paper 000, section 5.3).
    """

    points: int = size(40, low=3)
    """Number n of points of the longest training prompt, and of the validation set's."""
    curriculum_start: int = knob(11, low=1, integer=True)
    curriculum_growth: int = knob(2, low=0, integer=True)
    curriculum_every: int = step_count(2000, low=1)
    input_scale: int = size(1)
    """Standard deviation of x in training and validation; shifted sets have their own."""
    deviants: int = size(2, low=0, high=18)
    """Sets with a number of the order of 10, 100, ...; with `deviant_step` 10, of 10, 20, ..."""
    deviant_step: int = size(0, low=0, high=10**9)

    @final
    @property
    def features(self) -> int:
        return 1

    @final
    @property
    def outputs(self) -> int:
        return 1

    @final
    @property
    def context(self) -> int:
        return 2 * self.points - 1

    @final
    @property
    def extremes(self) -> list[int]:
        places = range(1, self.deviants + 1)
        return [self.deviant_step * number if self.deviant_step else 10**number for number in places]

    @abstractmethod
    def examples(self, streams: Streams, batch: int) -> tuple[Tensor, Tensor]:
        """Draw x and y [L, N, n] of training, n = `points`."""

    @final
    def scaled(self, x: Tensor) -> Tensor:
        """Return x [L, N, n] of N(0, 1) at training's standard deviation; 1 costs no kernel."""
        return x if self.input_scale == 1 else x * self.input_scale

    @abstractmethod
    def losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the training loss [N, n] of each prediction."""

    @final
    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        x, y = self.examples(streams, batch)
        grown = self.curriculum_start + self.curriculum_growth * (step // self.curriculum_every)  # [L]
        return sequences(x, y, torch.arange(self.points, device=x.device) < grown[:, None, None])

    @final
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of the points that are trained on."""
        wanted = batch["wanted"].to(outputs.dtype)
        losses = self.losses(predictions(outputs), batch["targets"].to(outputs.dtype))
        return ((losses * wanted).sum(-1) / wanted.sum(-1)).mean()

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return targets and weights; those of y, where nothing is predicted, are zero."""
        wanted = batch["wanted"].to(dtype)
        weights = wanted / (wanted.sum(-1, keepdim=True) * wanted.shape[1])
        return at_inputs(batch["targets"].to(dtype), weights)


def sequences(x: Tensor, y: Tensor, wanted: Tensor) -> Batch:
    """Return `inputs` [L, N, s, 1], `targets` and `wanted` [L, N, n], True at points that count."""
    inputs = torch.stack([x, y], -1).flatten(-2)[..., :-1, None]
    return {"inputs": inputs.float().contiguous(), "targets": y.float(), "wanted": wanted.expand(y.shape)}


def predictions(outputs: Tensor) -> Tensor:
    """Return the outputs [N, s, 1] at the positions of x, [N, n]."""
    return outputs[:, ::2, 0]


def at_inputs(targets: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return targets and weights [L, N, n] at positions of x, 0 at those of y, [L, N, s]."""
    both = torch.stack([targets, weights])
    targets, weights = torch.stack([both, torch.zeros_like(both)], -1).flatten(-2)[..., :-1]
    return targets, weights
