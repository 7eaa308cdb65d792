"""Linear regression in context with inputs and labels in turn, trained on every prefix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from spaces import plugins
from spaces.plugins import Examples
from workers.data.tasks import Batch
from workers.data.tasks._in_context import at_inputs
from workers.data.tasks.linear_regression import LinearRegression
from workers.numerics.randomness import Streams


@final
@dataclass(frozen=True, kw_only=True)
class InterleavedRegression(LinearRegression):
    """Prompts, shifts and metrics of `linear_regression`, but as x_1, y_1, x_2, ..., x_q.

    An input and its label are two positions of `dimension` features, that of a label (y, 0, ...,
    0). The output at an input predicts its label from the pairs before it. The loss is the mean
    over all inputs (Garg et al. 2022, section 2, without their curriculum; the GPT-2 of paper 004,
    Appendix K); the last label alone is evaluated.
    """

    EXAMPLES: ClassVar[Examples] = ({"dimension": 3, "pairs": 6, "shifts": "input_scale=3; noise=2 pairs=4"},)

    @property
    def context(self) -> int:
        return 2 * self.pairs + 1

    @property
    def features(self) -> int:
        return self.dimension

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        return _interleave(self._paired.training(streams, batch, step))

    def validation(self, streams: Streams, batch: int) -> Batch:
        return _interleave(self._paired.validation(streams, batch))

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        return {name: _interleave(prompts) for name, prompts in self._paired.shifted_sets(streams, batch).items()}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared error of the labels of all inputs."""
        return (outputs[:, ::2, 0] - batch["targets"].to(outputs.dtype)).square().mean()

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return targets and weights, which are zero at labels, where nothing is predicted."""
        targets = batch["targets"].to(dtype)
        return at_inputs(targets, torch.full_like(targets, 1 / targets[0].numel()))

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        return super().metrics(outputs, batch | {"targets": batch["targets"][:, -1]})

    @property
    def _paired(self) -> LinearRegression:
        """The same task with a pair at each position."""
        return LinearRegression(**{name: getattr(self, name) for name in plugins.rules(LinearRegression)})


def _interleave(batch: Batch) -> Batch:
    """Return `inputs` [L, N, 2 l + 1, d] and `targets` [L, N, l + 1] of l + 1 rows and a label."""
    pairs, asked = batch["inputs"], batch["targets"]
    labels = torch.nn.functional.pad(pairs[..., -1:], (0, pairs.shape[-1] - 2))
    inputs = torch.stack([pairs[..., :-1], labels], -2).flatten(-3, -2)[..., :-1, :]
    known = pairs[..., :-1, -1].to(asked.dtype)
    return {**batch, "inputs": inputs.contiguous(), "targets": torch.cat([known, asked[..., None]], -1)}
