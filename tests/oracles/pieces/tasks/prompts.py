"""Learning in context: x_1 y_1 x_2 y_2 ... x_n, and at each x the y that follows is predicted (paper 000)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.oracles.pieces.parameters import Batch
from tests.oracles.pieces.streams import Floats, Words, draw_normal, draw_permutations
from tests.oracles.pieces.tasks.task import Task, not_finite


@dataclass(kw_only=True)
class InContext(Task):
    """Prompts that grow while a model trains; loss at the points that are reached."""

    points: int
    curriculum_start: int
    curriculum_growth: int
    curriculum_every: int
    input_scale: int
    deviants: int
    deviant_step: int

    def __post_init__(self) -> None:
        self.features = self.outputs = 1

    @property
    def extremes(self) -> list[int]:
        """The sizes of a number that deviates."""
        return [self.deviant_step * rank or 10**rank for rank in range(1, self.deviants + 1)]

    def examples(self, stream: Words, count: int) -> tuple[Floats, Floats]:
        """Numbers and answers [N, n]."""
        raise NotImplementedError

    def losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each prediction."""
        raise NotImplementedError

    def training(self, stream: Words, count: int, step: int) -> Batch:
        reached = self.curriculum_start + self.curriculum_growth * (step // self.curriculum_every)
        x, y = self.examples(stream, count)
        return join_points(x, y, np.broadcast_to(np.arange(self.points) < reached, x.shape))

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        wanted = batch["wanted"].to(outputs.dtype)
        losses = self.losses(outputs[:, ::2, 0], batch["targets"].to(outputs.dtype))
        return ((losses * wanted).sum(1) / wanted.sum(1)).mean()


def join_points(x: Floats, y: Floats, wanted: np.ndarray) -> Batch:
    """Return the prompts in float32, without the last y; `wanted` [N, n]: where a prediction counts."""
    inputs = torch.from_numpy(np.stack([x, y], -1).reshape(len(x), -1)[:, :-1, None]).float()
    return {"inputs": inputs, "targets": torch.from_numpy(y).float(), "wanted": torch.from_numpy(wanted.copy())}


@dataclass(kw_only=True)
class Quantifier(InContext):
    """A label at each number, 1 or -1, by whether the quantifier is true of the numbers up to it."""

    test_length: int
    test_length_step: int
    test_sigma: int
    test_sigma_step: int

    def __post_init__(self) -> None:
        super().__post_init__()
        first = min(self.test_length_step, self.test_length)
        self.lengths = range(first, self.test_length + 1, self.test_length_step)

    @property
    def longest(self) -> int:
        return 2 * max(self.points, *self.lengths) - 1

    def truth(self, positive: np.ndarray) -> np.ndarray:
        """Of the numbers up to each one."""
        raise NotImplementedError

    def answer(self, x: Floats) -> Floats:
        """1 or -1 at each number."""
        return np.where(self.truth(x > 0), 1.0, -1.0)

    def examples(self, stream: Words, count: int) -> tuple[Floats, Floats]:
        x = self.input_scale * draw_normal(stream, count, self.points)
        return x, self.answer(x)

    def validation(self, stream: Words, count: int) -> Batch:
        x, y = self.examples(stream, count)
        return join_points(x, y, np.ones(x.shape, bool))

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        drawn = draw_normal(stream, count, max(self.points, *self.lengths) + 1)
        sets: dict[str, Batch] = {}
        for length in self.lengths:
            x = drawn[:, :length]
            for sigma in range(1, self.test_sigma + 1, self.test_sigma_step):
                batch = join_points(sigma * x, self.answer(x), np.ones(x.shape, bool))
                sets[f"length={length} sigma={sigma}"] = batch
        x, positions = drawn[:, : self.points], np.arange(self.points)
        deviant = np.floor(torch.special.ndtr(torch.from_numpy(drawn[:, -1:])).numpy() * self.points)
        for size in self.extremes:
            changed = np.where(positions == deviant, np.sign(x) * size, x)
            sets[f"deviant={size}"] = join_points(changed, self.answer(x), positions >= deviant)
        return sets

    def losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return functional.softplus(-predictions * targets)

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        answers = outputs[:, ::2, 0]
        true, wanted = batch["targets"] > 0, batch["wanted"]
        right, broken = (answers > 0) == true, not_finite(answers)
        counts = {
            "true": true & wanted,
            "right_true": right & true & wanted,
            "false": ~true & wanted,
            "right_false": right & ~true & wanted,
        }
        losses = self.losses(answers, batch["targets"].to(answers.dtype)) * wanted
        return {
            **{name: marks.sum(1) + broken for name, marks in counts.items()},
            "cross_entropy": losses.sum(1) / wanted.sum(1),
            "last_accuracy": right[:, -1] + broken,
        }

    def summarize(self, means: Mapping[str, float]) -> Mapping[str, float]:
        true, false = means["true"], means["false"]
        rates = [means[f"right_{kind}"] / means[kind] for kind in ("true", "false") if means[kind]]
        return {
            "accuracy": (means["right_true"] + means["right_false"]) / (true + false),
            "balanced_accuracy": sum(rates) / len(rates),
            "cross_entropy": means["cross_entropy"],
            "last_accuracy": means["last_accuracy"],
        }


@dataclass(kw_only=True)
class EveryTask(Quantifier):
    """All of them are positive."""

    def truth(self, positive: np.ndarray) -> np.ndarray:
        return np.logical_and.accumulate(positive, 1)


@dataclass(kw_only=True)
class SomeTask(Quantifier):
    """One of them is positive."""

    def truth(self, positive: np.ndarray) -> np.ndarray:
        return np.logical_or.accumulate(positive, 1)


@dataclass(kw_only=True)
class AffineTask(InContext):
    """y = a x + b, with a and b of N(0, 1) and x of N(0, input_scale^2) in training."""

    test_functions: int
    test_functions_step: int
    test_inputs: int
    test_inputs_step: int
    slope: int
    reach: int
    questions: int

    @property
    def longest(self) -> int:
        return 2 * self.points - 1

    def examples(self, stream: Words, count: int) -> tuple[Floats, Floats]:
        x, a, b = self._draw(stream, count)
        x = self.input_scale * x
        return x, a * x + b

    def validation(self, stream: Words, count: int) -> Batch:
        return self._judge(*self.examples(stream, count))

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        x, a, b = self._draw(stream, count)
        sets: dict[str, Batch] = {}
        for functions in range(1, self.test_functions + 1, self.test_functions_step):
            for inputs in range(1, self.test_inputs + 1, self.test_inputs_step):
                batch = self._judge(inputs * x, functions * (a * inputs * x + b))
                sets[f"functions={functions} inputs={inputs}"] = batch
        for size in self.extremes:
            wider = np.concatenate([size * x[:, :1], x[:, 1:]], 1)
            sets[f"deviant={size}"] = self._judge(wider, a * wider + b)
        grid = 2 * draw_permutations(stream, count, self.points, self.points) / (self.points - 1) - 1
        for slope, reach in ((self.slope, self.reach), (1, self.slope * self.reach)):
            sets[f"slope={slope} reach={reach}"] = self._judge(reach * grid, slope * reach * grid)
            for question in range(self.questions):
                asked, there = round(reach * (2 * question / max(self.questions - 1, 1) - 1), 3) + 0.0, x.copy()
                there[:, -1] = asked
                sets[f"slope={slope} asked={asked:g}"] = self._judge(there, slope * there)
        return sets

    def _draw(self, stream: Words, count: int) -> tuple[Floats, Floats, Floats]:
        drawn = draw_normal(stream, count, self.points + 2)
        return drawn[:, :-2], drawn[:, -2:-1], drawn[:, -1:]

    def _judge(self, x: Floats, y: Floats) -> Batch:
        """Return the prompts, with the error of the line through the points before each."""
        batch = join_points(x, y, np.ones(x.shape, bool))
        x, y = x.astype(np.float32).astype(np.float64), batch["targets"].double().numpy()
        errors = np.zeros(len(x))
        for row in range(len(x)):
            for point in range(2, self.points):
                errors[row] += (extend_line(x[row, :point], y[row, :point], x[row, point]) - y[row, point]) ** 2
        return batch | {"least_squares_mse": torch.from_numpy(errors / self.points)}

    def losses(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return (predictions - targets) ** 2

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        counted, targets = outputs[:, 4::2, 0], batch["targets"][:, 2:].to(outputs.dtype)
        metrics = {
            "mse": ((counted - targets) ** 2).sum(1) / self.points,
            "zero_mse": (targets**2).sum(1) / self.points,
            "least_squares_mse": batch["least_squares_mse"].to(outputs.dtype),
            "highest_output": counted.amax(1),
            "lowest_output": counted.amin(1),
        }
        return metrics | {"answer": counted[:, -1]} if self.questions else metrics


def extend_line(x: Floats, y: Floats, there: float) -> float:
    """Return what the line that fits these points best says there; level where they have one x between them."""
    u, v = x - x.mean(), y - y.mean()
    spread = float(u @ u)
    return float(y.mean() + (u @ v / spread if spread else 0.0) * (there - x.mean()))
