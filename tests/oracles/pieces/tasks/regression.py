"""Linear regression in context (paper 004): each prompt has a weight vector of its own."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Batch
from tests.oracles.pieces.streams import Floats, Words, draw_normal
from tests.oracles.pieces.tasks.task import Task


@dataclass(kw_only=True)
class LinearRegressionTask(Task):
    """After `pairs` pairs (x_i, y_i), y = w . x + noise, the label of one more input is asked."""

    dimension: int
    pairs: int
    noise: float
    input_mean: float
    input_scale: float
    input_condition: float
    task_mean: float
    task_scale: float
    task_condition: float
    shifts: str
    lemma: bool

    def __post_init__(self) -> None:
        self.features, self.outputs = self.dimension + 1, 1

    @property
    def longest(self) -> int:
        return 1 + max(task.pairs for task in (self, *self.others().values()))

    def others(self) -> Mapping[str, LinearRegressionTask]:
        """Name of a shift, `input_scale=3 noise=2` -> the task with that distribution."""
        tasks: dict[str, LinearRegressionTask] = {}
        for text in self.shifts.split(";"):
            changes = [item.partition("=") for item in text.split()]
            if changes:
                tasks[" ".join(text.split())] = other = copy.copy(self)
                for name, _, value in changes:
                    setattr(other, name, int(float(value)) if name == "pairs" else float(value))
        return tasks

    def training(self, stream: Words, count: int, step: int) -> Batch:
        return write_prompts(*self.draw(stream, count))

    def validation(self, stream: Words, count: int) -> Batch:
        return self._judge(self, stream, count)

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        return {name: self._judge(other, stream, count) for name, other in self.others().items()}

    def variances(self) -> tuple[Floats, Floats]:
        """[d] of inputs and of weights."""
        inputs = spread_variances(self.input_scale, self.input_condition, self.dimension)
        return inputs, spread_variances(self.task_scale, self.task_condition, self.dimension)

    def draw(self, stream: Words, count: int) -> tuple[Floats, Floats]:
        """Return inputs [N, pairs + 1, d] and labels [N, pairs + 1]."""
        size, rows = self.dimension, self.pairs + 1
        normal = draw_normal(stream, count, size + rows * (size + 1))
        of_inputs, of_weights = self.variances()
        weights = self.task_mean + np.sqrt(of_weights) * normal[:, :size]
        table = normal[:, size:].reshape(count, rows, size + 1)
        inputs = self.input_mean + np.sqrt(of_inputs) * table[..., :size]
        return inputs, (inputs @ weights[..., None])[..., 0] + self.noise**0.5 * table[..., size]

    def _judge(self, truth: LinearRegressionTask, stream: Words, count: int) -> Batch:
        """Prompts of a distribution, with what other predictions make of them."""
        inputs, labels = truth.draw(stream, count)
        least = 1e-9 * (inputs[:, :-1] ** 2).sum(1).mean(1)[:, None] * np.ones(self.dimension)
        _, of_weights = truth.variances()
        prior = np.full(self.dimension, truth.task_mean)
        predictors = {
            "bayes_error": fit_ridge(inputs, labels, np.maximum(truth.noise / of_weights, least), prior),
            "least_squares_error": fit_ridge(inputs, labels, least, 0 * prior),
            "zero_error": np.zeros((count, self.dimension)),
        }
        constant, cross, second = describe_error(fit_attention(self), truth)
        optimum = second / cross if cross > 0 else np.inf
        known = {
            "closed_form_error": constant - 2 * cross + second,
            "closed_form_optimum": constant - 2 * cross / optimum + second / optimum**2,
            "closed_form_temperature": optimum,
        }
        batch = write_prompts(inputs, labels)
        if self.lemma:
            known["lemma_temperature"] = self._mimic(truth, inputs, labels, batch)
        for name, weights in predictors.items():
            batch[name] = torch.from_numpy(((inputs[:, -1] * weights).sum(1) - labels[:, -1]) ** 2)
        return batch | {name: torch.full((count,), number, dtype=torch.float64) for name, number in known.items()}

    def _mimic(self, truth: LinearRegressionTask, inputs: Floats, labels: Floats, batch: Batch) -> float:
        """Add what linearised attention with the weights of lemma 4.1 makes of prompts; its best temperature there."""
        of_inputs, of_weights = self.variances()
        matrix = np.diag(1 / (of_inputs + self.noise / self.pairs / of_weights))
        _, cross, second = describe_error(matrix / SMALL, truth)
        optimum = second / cross if cross > 0 else np.inf
        x, y = inputs[:, :-1], labels[:, :-1]
        covariance = ((x - x.mean(1, keepdims=True)) * (y - y.mean(1, keepdims=True))[..., None]).mean(1)
        answers = (covariance @ matrix * inputs[:, -1]).sum(1)
        batch["lemma_error"] = torch.from_numpy((answers - labels[:, -1]) ** 2)
        batch["lemma_optimum_error"] = torch.from_numpy((answers / optimum - labels[:, -1]) ** 2)
        return optimum

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return ((outputs[:, -1, 0] - batch["targets"].to(outputs.dtype)) ** 2).mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        references = {name: values for name, values in batch.items() if name not in ("inputs", "targets")}
        return {"error": (outputs[:, -1, 0] - batch["targets"]) ** 2, **references}


@dataclass(kw_only=True)
class InterleavedRegressionTask(LinearRegressionTask):
    """The same prompts as x_1, y_1, x_2, ..., each label predicted where its input stands."""

    def __post_init__(self) -> None:
        self.features, self.outputs = self.dimension, 1

    @property
    def longest(self) -> int:
        return 2 * super().longest - 1

    def training(self, stream: Words, count: int, step: int) -> Batch:
        return self._interleave(super().training(stream, count, step))

    def validation(self, stream: Words, count: int) -> Batch:
        return self._interleave(super().validation(stream, count))

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        return {name: self._interleave(batch) for name, batch in super().shifted_sets(stream, count).items()}

    def _interleave(self, batch: Batch) -> Batch:
        pairs, asked = batch["inputs"], batch["targets"]
        count, rows, _ = pairs.shape
        inputs = torch.zeros(count, 2 * rows - 1, self.dimension)
        inputs[:, ::2] = pairs[..., :-1]
        inputs[:, 1::2, 0] = pairs[:, :-1, -1]
        return batch | {"inputs": inputs, "targets": torch.cat([pairs[:, :-1, -1].to(asked.dtype), asked[:, None]], 1)}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return ((outputs[:, ::2, 0] - batch["targets"].to(outputs.dtype)) ** 2).mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        return super().metrics(outputs, batch | {"targets": batch["targets"][:, -1]})


def spread_variances(scale: float, condition: float, size: int) -> Floats:
    """[d] of mean `scale`, evenly spread in their logarithms, the last `condition` times the first."""
    powers = condition ** np.linspace(-0.5, 0.5, size)
    return scale * powers / powers.mean()


def fit_ridge(inputs: Floats, labels: Floats, penalty: Floats, centre: Floats) -> Floats:
    """Return the w [N, d] of least squared error plus penalty (w - centre)^2, from all pairs but the last."""
    x, residual = inputs[:, :-1], labels[:, :-1] - inputs[:, :-1] @ centre
    normal = x.transpose(0, 2, 1) @ x + penalty[..., None] * np.eye(x.shape[-1])
    return centre + np.linalg.solve(normal, x.transpose(0, 2, 1) @ residual[..., None])[..., 0]


SMALL = 1e-6
"""The label's entry in the values of attention fitted to a distribution, so that their mean counts for nothing."""


def fit_attention(task: LinearRegressionTask) -> Floats:
    """Return the matrix of linearised attention of least error at temperature 1: what training on a task comes to."""
    inputs, weights = map(np.diag, task.variances())
    tasks = weights + task.task_mean**2
    isotropic = (np.trace(tasks @ inputs) + task.noise) * inputs / task.pairs
    return np.linalg.solve(inputs @ tasks @ inputs + isotropic, inputs @ tasks) / SMALL


def describe_error(matrix: Floats, task: LinearRegressionTask) -> tuple[float, float, float]:
    """Return expected squared error constant - 2 cross / temperature + second / temperature^2 (paper 004, theorem 4.6).

    The prediction is mean u + (1 / temperature) x_q' M' S, with u = SMALL y, and S the covariance of x and u in the
    prompt; for normal inputs E[S S'] is exact at any number of pairs.
    """
    pairs, mean = task.pairs, np.full(task.dimension, task.input_mean)
    inputs, weights = map(np.diag, task.variances())
    tasks, asked = weights + task.task_mean**2, inputs + np.outer(mean, mean)
    signal = np.trace(tasks @ asked)
    of_mean = np.trace(tasks @ (inputs / pairs + np.outer(mean, mean))) + task.noise / pairs
    constant = signal + task.noise - 2 * SMALL * mean @ tasks @ mean + SMALL**2 * of_mean
    free = (pairs - 1) / pairs
    response = inputs @ matrix
    cross = free * (SMALL * np.trace(tasks @ response @ asked) - SMALL**2 * mean @ tasks @ response @ mean)
    moment = inputs @ tasks @ inputs + (np.trace(tasks @ inputs) + task.noise) * inputs / pairs
    second = free * SMALL**2 * np.trace(matrix @ asked @ matrix.T @ moment)
    return float(constant), float(cross), float(second)


def write_prompts(inputs: Floats, labels: Floats) -> Batch:
    """Rows (x, y) in float32, with 0 for the label that is asked."""
    shown = np.where(np.arange(labels.shape[1]) < labels.shape[1] - 1, labels, 0.0)
    rows = np.concatenate([inputs, shown[..., None]], -1)
    return {"inputs": torch.from_numpy(rows).float(), "targets": torch.from_numpy(labels[:, -1].copy())}
