"""Linear regression in context: each prompt has a weight vector of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spaces import plugins
from spaces.errors import PluginError
from spaces.plugins.fields import flag, knob, size, text
from spaces.records import Params
from workers.data.tasks import Batch, VectorTask
from workers.numerics.randomness import Streams
from workers.numerics.regression import draw_prompts
from workers.numerics.temperature import Prompts, error_curve, mimic_bayes, minimize_error, predict_weights

VANISHING = 1e-9
"""The least ridge penalty, relative to the mean sum of squares of a coordinate over the pairs."""


@dataclass(frozen=True, kw_only=True)
class LinearRegression(VectorTask):
    """Labels y = w . x + e; after l pairs one more input's label is asked (paper 004, section 3.1).

    Inputs are normal with mean (m, ..., m) and a diagonal covariance of mean eigenvalue
    `input_scale`, a variance; its eigenvalues are `input_condition` apart, spread evenly in their
    logarithms, in descending order if below 1. A prompt's weights w are drawn in the same way; the
    noise e has variance `noise`.

    A position is a pair, (x_i, y_i), and the last one the question, (x_q, 0), as in equation 3:
    only its output is trained and evaluated, on a label y_q with its noise. (The GPT-2 of the
    paper's Appendix K is trained on every prefix of the interleaved sequence instead.)

    `shifts`: distributions to be evaluated on, too, `input_scale=3; noise=2 pairs=40`, all else as
    in training and from the same random numbers.
    """

    dimension: int = size(8)
    pairs: int = size(40, low=2)
    noise: float = knob(0.5, low=0)
    input_mean: float = knob(0.0)
    input_scale: float = knob(1.0, low=0, open_low=True)
    input_condition: float = knob(1.0, low=0, open_low=True)
    task_mean: float = knob(0.0)
    task_scale: float = knob(1.0, low=0, open_low=True)
    task_condition: float = knob(1.0, low=0, open_low=True)
    shifts: str = text("", plain=True)
    lemma: bool = flag(False)
    """True if the references have the weights of lemma 4.1, too."""

    def __post_init__(self) -> None:
        self._conditions()

    @property
    def context(self) -> int:
        return self.pairs + 1

    @property
    def longest(self) -> int:
        return max(task.context for task in (self, *self._conditions().values()))

    @property
    def features(self) -> int:
        return self.dimension + 1

    @property
    def outputs(self) -> int:
        return 1

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        drawn = draw_prompts(streams, self._moments, batch, self.context)
        if drawn:
            return {"inputs": drawn[0], "targets": drawn[1]}
        return _prompts(*self._draw(streams, batch))

    def validation(self, streams: Streams, batch: int) -> Batch:
        """Return prompts with the errors [L, N] of other predictions on them, `..._error`."""
        return self._draw_evaluation_set(self, streams, batch)

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        return {name: self._draw_evaluation_set(other, streams, batch) for name, other in self._conditions().items()}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean squared error of the label that is asked."""
        return (outputs[:, -1, 0] - batch["targets"].to(outputs.dtype)).square().mean()

    @property
    def position_loss(self) -> str | None:
        return "squared"

    def position_targets(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        before, targets = batch["inputs"].shape[2] - 1, batch["targets"][..., None]
        weights = torch.full_like(targets, 1 / targets.shape[1])
        targets, weights = (torch.nn.functional.pad(last.to(dtype), (before, 0)) for last in (targets, weights))
        return targets, weights

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `error`, squared, of the model, and the references' on the same prompts.

        `bayes_error`: of the posterior mean of w under the prompts' distribution, the least there
        is (equation 9, with inputs and labels as they are, as no intercept is unknown).
        `least_squares_error`: of the least squares solution of least norm. `zero_error`: of 0.
        `closed_form_error`, `closed_form_optimum` and `closed_form_temperature`: of attention
        linearised and fitted to the training distribution (`minimize_error` in
        `workers.numerics.temperature`), the expected error at temperature 1, the least at any
        temperature, and that temperature.
        With `lemma`: `lemma_error` of attention linearised with the weights of lemma 4.1 for the
        training distribution, at temperature 1; `lemma_optimum_error`, at the best for the prompts'
        distribution (theorem 4.7), and `lemma_temperature`, the best.
        """
        references = {name: batch[name] for name in batch if name not in ("inputs", "targets")}
        return {"error": (outputs[:, -1, 0] - batch["targets"]).square(), **references}

    def evaluated_positions(self, batch: Batch) -> Tensor | None:
        shape = batch["inputs"].shape[:3]
        return torch.arange(1 - shape[2], 1, device=batch["inputs"].device).eq(0).expand(shape)

    def facts(self) -> Params:
        """Return `chance`, the expected `zero_error`: E[(w . x)^2] + noise."""
        prompts = self.prompts()
        inputs = (
            prompts.input_covariance + prompts.input_mean[..., :, None] * prompts.input_mean[..., None, :]
        )  # E[x x']
        return {"chance": float((prompts.tasks * inputs).sum() + prompts.noise)}

    def prompts(self, device: torch.device | str = "cpu") -> Prompts:
        """Return each lane's distribution: tensors [L, ...], or [1, ...] outside the engine."""

        def column(value: float | Tensor) -> Tensor:
            return torch.as_tensor(value, dtype=torch.float64, device=device).reshape(-1, 1)

        return Prompts(
            pairs=self.pairs,
            noise=column(self.noise)[:, 0],
            input_mean=column(self.input_mean).expand(-1, self.dimension),
            input_covariance=_covariance(column(self.input_scale), column(self.input_condition), self.dimension),
            task_mean=column(self.task_mean).expand(-1, self.dimension),
            task_covariance=_covariance(column(self.task_scale), column(self.task_condition), self.dimension),
        )

    def _draw(self, streams: Streams, batch: int) -> tuple[Tensor, Tensor]:
        """Draw rows [L, N, l + 1, d + 1] of inputs and noise, and labels [L, N, l + 1], float64."""
        size, given = self.dimension, self.prompts(streams.state.device)
        normal = streams.normal(batch, size + self.context * self.features)
        deviation = given.task_covariance.diagonal(dim1=-2, dim2=-1).sqrt()
        weights = given.task_mean[:, None, None] + deviation[:, None, None] * normal[..., None, :size]
        rows = normal[..., size:]
        rows *= self._along(given.input_covariance.diagonal(dim1=-2, dim2=-1).sqrt(), given.noise.sqrt())
        rows += self._along(given.input_mean, torch.zeros_like(given.noise))
        rows = rows.unflatten(-1, (self.context, self.features))
        return rows, (rows[..., :size] * weights).sum(-1) + rows[..., size]

    def _moments(self) -> Tensor:
        """Return means and deviations of weights, then of inputs with noise, [L or 1, 4, d + 1]."""

        def columns(*values: float | Tensor) -> Tensor:  # [n, L or 1, 1]
            same = [torch.as_tensor(value, dtype=torch.float64).reshape(-1, 1) for value in values]
            return torch.stack(torch.broadcast_tensors(*same))

        scales = columns(self.task_scale, self.input_scale)
        conditions = columns(self.task_condition, self.input_condition)
        means, (noise,) = columns(self.task_mean, self.input_mean), columns(self.noise)
        deviations = _spread(scales, conditions, self.dimension).sqrt()  # [2, L, d]
        lanes = max(deviations.shape[1], means.shape[1], len(noise))
        moments = deviations.new_zeros(lanes, 4, self.features)
        moments[:, 0::2, :-1], moments[:, 1::2, :-1] = means.transpose(0, 1), deviations.transpose(0, 1)
        moments[:, 3, -1:] = noise.sqrt()
        return moments

    def _along(self, inputs: Tensor, label: Tensor) -> Tensor:
        """Repeat rows' numbers [L, d] and [L], [L, 1, (l + 1) (d + 1)]: short rows are slow."""
        lanes = max(len(inputs), len(label))
        row = torch.cat([inputs.expand(lanes, -1), label[:, None].expand(lanes, 1)], -1)
        return row.repeat(1, self.context)[:, None]

    def _draw_evaluation_set(self, other: LinearRegression, streams: Streams, batch: int) -> Batch:
        """Draw prompts of `other`, with the references."""
        rows, labels = other._draw(streams, batch)
        inputs = rows[..., :-1]
        truth, prompts = (task.prompts(inputs.device) for task in (other, self))
        references = {
            name: ((inputs[..., -1, :] * weights).sum(-1) - labels[..., -1]).square()
            for name, weights in _predictors(truth, inputs, labels).items()
        }
        curve = error_curve(*minimize_error(prompts), truth)
        constants = {
            "closed_form_error": curve.at(1.0),
            "closed_form_optimum": curve.at(curve.optimum),
            "closed_form_temperature": curve.optimum,
        }
        if self.lemma:
            matrix, value = mimic_bayes(prompts)
            optimum = error_curve(matrix, value, truth).optimum
            weights = predict_weights(matrix, value, inputs[..., :-1, :], labels[..., :-1])
            answers = (weights * inputs[..., -1, :]).sum(-1)
            references["lemma_error"] = (answers - labels[..., -1]).square()
            references["lemma_optimum_error"] = (answers / optimum[:, None] - labels[..., -1]).square()
            constants["lemma_temperature"] = optimum
        references |= {name: constant[:, None].expand_as(labels[..., -1]) for name, constant in constants.items()}
        return _prompts(rows, labels) | references

    def _conditions(self) -> Mapping[str, LinearRegression]:
        """Return the task with the distribution of each shift, by its name."""
        names = [" ".join(part.split()) for part in self.shifts.split(";") if part.strip()]
        return {name: plugins.replace(self, {**_values(name), "shifts": ""}) for name in names}


def _values(shift: str) -> dict[str, Any]:
    """Return field -> value of `input_scale=3 noise=2`; raises PluginError for other texts."""
    rules = plugins.rules(LinearRegression)
    known = [name for name in rules if name not in ("dimension", "shifts", "lemma")]
    values: dict[str, Any] = {}
    for item in shift.split():
        name, _, value = item.partition("=")
        if name not in known:
            raise PluginError(f"task.shifts: {item!r} must be NAME=NUMBER; NAME is one of {', '.join(known)}")
        number: float | str = value  # a text that writes no number stays one, which no rule accepts
        with suppress(ValueError):
            number = float(value)
        values[name] = rules[name].check(f"task.shifts: {name}", number)
    return values


def _covariance(scale: Tensor, condition: Tensor, size: int) -> Tensor:
    """Return diagonals [L, d, d] of mean `scale` [L, 1], the last `condition` times the first."""
    return _spread(scale, condition, size).diag_embed()


def _spread(scale: Tensor, condition: Tensor, size: int) -> Tensor:
    """Return the eigenvalues of `_covariance`, [..., d]."""
    places = torch.linspace(-0.5, 0.5, size, dtype=torch.float64, device=scale.device)
    powers = (condition.log() * places).exp()
    return scale * powers / powers.mean(-1, keepdim=True)


def _predictors(truth: Prompts, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Return the w [L, N, d] by which each reference predicts, from all pairs but the last."""
    spread = inputs[..., :-1, :].square().sum(-2).mean(-1, keepdim=True)  # [L, N, 1]
    least = (VANISHING * spread).expand_as(inputs[..., 0, :])
    prior = truth.noise[:, None] / truth.task_covariance.diagonal(dim1=-2, dim2=-1)  # [L, d]
    centre = truth.task_mean[:, None]  # [L, 1, d]
    return {
        "bayes_error": _ridge(inputs, labels, torch.maximum(prior[:, None], least), centre),
        "least_squares_error": _ridge(inputs, labels, least, torch.zeros_like(centre)),
        "zero_error": torch.zeros_like(least),
    }


def _ridge(inputs: Tensor, labels: Tensor, penalty: Tensor, centre: Tensor) -> Tensor:
    """Return the w [L, N, d] with the least |y - X w|^2 + sum_i penalty_i (w_i - centre_i)^2."""
    given = inputs[..., :-1, :]
    residual = (labels - (inputs * centre[..., None, :]).sum(-1))[..., :-1]
    normal = given.mT @ given + penalty.diag_embed()
    return centre + torch.linalg.solve(normal, (given.mT @ residual[..., None])[..., 0])


def _prompts(rows: Tensor, labels: Tensor) -> Batch:
    """Return prompts: labels last in their rows, the last of them for a target and 0 instead."""
    inputs = rows.float()
    inputs[..., -1] = torch.nn.functional.pad(labels[..., :-1], (0, 1))
    return {"inputs": inputs, "targets": labels[..., -1]}
