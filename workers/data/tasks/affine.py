"""Affine functions in context."""

from __future__ import annotations

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


@final
@dataclass(frozen=True, kw_only=True)
class Affine(InContext):
    """Prompts of y = a x + b; a, b are of N(0, 1), x of N(0, `input_scale`^2), errors squared.

    Source: paper 000, section 3. Each prompt has a function of its own (the paper: 64 prompts each
    of 100 functions), and evaluation sets share one draw. Conditions:

    `functions=3 inputs=2`: a, b of N(0, 3^2), x of N(0, 2^2), all pairs of 1, 2, ... (Figures 3,
    11, Tables 1, 6).
    `deviant=100`: x_1 of N(0, 100^2), all else of N(0, 1) (Table 5).
    `slope=10 reach=3`: y = 10 x with x evenly spaced on -3 .. 3, shuffled, and `slope=1 reach=30`:
    the extreme outputs tell boundary values, which a model does not pass (Figures 1 and 9).
    `slope=10 asked=-2.5`, with `questions`: y = 10 x with x of N(0, 1), but for the last x, -2.5:
    `answer` is the curve of these figures. As many such x are spaced evenly on -`reach` .. `reach`,
    and on `slope` times as much for y = x.
    """

    EXAMPLES: ClassVar[Examples] = (
        {
            "points": 8, "curriculum_start": 4, "test_functions": 3, "test_functions_step": 2, "test_inputs": 2,
            "questions": 2,
        },
    )  # fmt: skip

    test_functions: int = size(10)
    """Largest standard deviation of a and b."""
    test_functions_step: int = size(1)
    test_inputs: int = size(10)
    """Largest standard deviation of x."""
    test_inputs_step: int = size(1)
    slope: int = size(10)
    reach: int = size(3)
    questions: int = size(0, low=0)

    def examples(self, streams: Streams, batch: int) -> tuple[Tensor, Tensor]:
        x, a, b = self._draw(streams, batch)
        x = self.scaled(x)
        return x, a * x + b

    def validation(self, streams: Streams, batch: int) -> Batch:
        return evaluation_set(*self.examples(streams, batch))

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        x, a, b = self._draw(streams, batch)
        sets = {
            f"functions={functions} inputs={inputs}": evaluation_set(inputs * x, functions * (a * inputs * x + b))
            for functions in range(1, self.test_functions + 1, self.test_functions_step)
            for inputs in range(1, self.test_inputs + 1, self.test_inputs_step)
        }
        for deviation in self.extremes:
            wider = torch.cat([deviation * x[..., :1], x[..., 1:]], -1)
            sets[f"deviant={deviation}"] = evaluation_set(wider, a * wider + b)
        grid = 2 * streams.permutations(batch, self.points, self.points).double() / (self.points - 1) - 1
        for slope, reach in ((self.slope, self.reach), (1, self.slope * self.reach)):
            sets[f"slope={slope} reach={reach}"] = evaluation_set(reach * grid, slope * reach * grid)
            for question in range(self.questions):
                asked = round(reach * (2 * question / max(self.questions - 1, 1) - 1), 3) + 0.0  # -0.0 becomes 0.0
                there = torch.cat([x[..., :-1], torch.full_like(x[..., :1], asked)], -1)
                sets[f"slope={slope} asked={asked:g}"] = evaluation_set(there, slope * there)
        return sets

    @property
    def position_loss(self) -> str | None:
        return "squared"

    def losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return (predictions - targets).square()

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `mse` by equation 2: squared errors from the third point on, over all n points.

        On the same prompts `zero_mse` of the answer 0 and `least_squares_mse` of the line through
        the points before (rounding alone); `highest_output` and `lowest_output` from the third
        point on. With `questions` also `answer`, the prediction at the last point.
        """
        counted = predictions(outputs)[:, 2:]
        targets = batch["targets"][:, 2:].to(outputs.dtype)
        metrics = {
            "mse": (counted - targets).square().sum(-1) / self.points,
            "zero_mse": targets.square().sum(-1) / self.points,
            "least_squares_mse": batch["least_squares_mse"].to(outputs.dtype),
            "highest_output": counted.amax(-1),
            "lowest_output": counted.amin(-1),
        }
        return metrics | {"answer": counted[:, -1]} if self.questions else metrics

    def facts(self) -> Params:
        """Return `chance`, the expected `zero_mse`, of E[y^2] = `input_scale`^2 + 1."""
        return {"chance": (self.input_scale**2 + 1) * (self.points - 2) / self.points}

    def _draw(self, streams: Streams, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return standard normal x [L, N, n], a and b [L, N, 1]."""
        x, a, b = streams.normal(batch, self.points + 2).split([self.points, 1, 1], -1)
        return x, a, b


def evaluation_set(x: Tensor, y: Tensor) -> Batch:
    """Return prompts x, y [L, N, n] as the model sees them, with the error of least squares."""
    batch = sequences(x, y, torch.ones_like(y, dtype=torch.bool))
    x, y = x.float().double(), batch["targets"].double()
    errors = (least_squares(x, y) - y)[..., 2:].square().sum(-1) / y.shape[-1]
    return batch | {"least_squares_mse": errors}


def least_squares(x: Tensor, y: Tensor) -> Tensor:
    """Return at x, from the third on, the line that best fits the points before it, [..., n].

    Level if they share one x. Sums start at the first point, so that they lose few digits.
    """
    u, v = x - x[..., :1], y - y[..., :1]
    count = torch.arange(x.shape[-1], dtype=x.dtype, device=x.device).clamp(min=1)
    mean_u, mean_v, mean_uu, mean_uv = ((term.cumsum(-1) - term) / count for term in (u, v, u * u, u * v))
    spread = mean_uu - mean_u.square()
    slope = torch.where(spread > 0, (mean_uv - mean_u * mean_v) / spread, 0)
    return y[..., :1] + mean_v + slope * (u - mean_u)
