"""The temperature of attention after training: sweeps, the adaptive one's polynomial, closed forms.

Closed forms: paper 004 predicts from l pairs (x_i, y_i) and an input x, with u_i = v . (x_i, y_i),

    mean u + (1 / temperature) covariance(x_i . M x, u_i),

both over the pairs. The best temperature minimises the error, a parabola in 1 / temperature.

Legend: d dimensions of an input, l pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spaces.errors import PluginError

TEMPERATURES = torch.arange(1, 101, dtype=torch.float64) / 10
"""0.1 .. 10.0 in steps of 0.1, the grid of the source (0 itself is an argmax)."""


class BestTemperatures(NamedTuple):
    """Entropies of softmax(z), in nats, and best temperatures, float64 [n], of n misses."""

    entropy: Tensor
    temperature: Tensor
    asked: int
    """The number of all queries."""


def best_temperatures(logits: Tensor, target: Tensor) -> BestTemperatures:
    """Find the best temperatures of `logits` [m, k] of m queries with the keys `target` [m].

    The target's weight is largest there, in the grid. Queries whose largest logit is the target's
    are left out: their best temperature is zero. Source: paper 001, Appendix F.
    """
    wrong = logits.argmax(-1) != target
    z, right = logits[wrong].double(), target[wrong]
    entropy = torch.special.entr(z.softmax(-1)).sum(-1)
    weights = (z[:, None, :] / TEMPERATURES[:, None]).softmax(-1)  # [n, t, k]
    of_target = weights.gather(-1, right[:, None, None].expand(-1, len(TEMPERATURES), 1))[..., 0]
    return BestTemperatures(entropy, TEMPERATURES[of_target.argmax(-1)], len(logits))


def fit_temperature(best: BestTemperatures, degree: int = 4) -> dict[str, float]:
    """Fit 1 / temperature as a polynomial in the entropy; return coefficients a4 .. a0.

    Raises ValueError if no more queries than `degree` miss, or if their entropies are too alike.
    """
    entropy = best.entropy
    if len(entropy) <= degree:
        raise ValueError(
            f"{len(entropy)} of {best.asked} queries miss their target; fitting degree {degree} needs more"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", np.exceptions.RankWarning)
        try:
            fitted: Any = np.polyfit(entropy.numpy(), (1 / best.temperature).numpy(), degree)
        except np.exceptions.RankWarning as error:
            least, most = float(entropy.min()), float(entropy.max())
            message = f"entropies of {least:.3g} to {most:.3g} are too alike to fit degree {degree}"
            raise ValueError(message) from error
    return {f"a{degree - index}": float(value) for index, value in enumerate(fitted)}


def sweep(path: str, temperatures: str) -> Mapping[str, float]:
    """Return label -> temperature of a text `1 2 4`: `temperature=2` -> 2; raises PluginError."""
    by_label: dict[str, float] = {}
    for item in temperatures.split():
        try:
            value = float(item)
        except ValueError:
            value = 0.0
        if not 1e-3 <= value <= 1e6:
            raise PluginError(
                f"{path}: {item!r} must be a number in [0.001, 1e+06]; write numbers with spaces between them"
            )
        by_label[f"temperature={item}"] = value
    return by_label


# -- closed forms ----------------------------------------------------------------------------------

_SMALL = 1e-6
"""The factor by which v is shrunk, as in the paper, and M grown: the mean of the u_i vanishes."""


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The distribution of prompts of linear regression; tensors are float64, with any leading axes.

    Inputs x are normal, weights w have these two moments, labels are w . x plus noise.
    """

    pairs: int
    noise: Tensor
    input_mean: Tensor  # [d]
    input_covariance: Tensor  # [d, d]
    task_mean: Tensor  # [d]
    task_covariance: Tensor  # [d, d]

    @property
    def tasks(self) -> Tensor:
        """E[w w'] [d, d]."""
        return self.task_covariance + _outer(self.task_mean, self.task_mean)


class Curve(NamedTuple):
    """The expected squared error: constant - 2 cross / temperature + second / temperature^2."""

    constant: Tensor
    cross: Tensor
    second: Tensor

    def at(self, temperature: float | Tensor) -> Tensor:
        return self.constant - 2 * self.cross / temperature + self.second / temperature**2

    @property
    def optimum(self) -> Tensor:
        """The temperature of least error (theorem 4.7); infinity if `cross` <= 0."""
        return torch.where(self.cross > 0, self.second / self.cross, float("inf"))


def error_curve(matrix: Tensor, value: Tensor, prompts: Prompts) -> Curve:
    """Return the error of the model with M = `matrix` [d, d] and v = `value` [d + 1] (theorem 4.6).

    The last entry of v is the label's. Exact at any l for normal inputs, where the paper drops what
    vanishes for large l: with C their covariance and S the sample covariance around the sample
    mean, E[S B S] = ((l - 1) / l^2) (l C B C + tr(B C) C).
    """
    pairs, noise = prompts.pairs, prompts.noise
    mean, covariance = prompts.input_mean, prompts.input_covariance
    free = (pairs - 1) / pairs
    weight, offset = value[..., -1, None], value[..., :-1]
    tasks, crossed = prompts.tasks, _outer(offset, prompts.task_mean)
    both = weight[..., None] * tasks + crossed  # E[(v_x + v_y w) w']
    moment = weight[..., None] * (both + crossed.mT) + _outer(offset, offset)  # E[(v_x + v_y w) (v_x + v_y w)']
    noise_in_values = noise * weight[..., 0].square()
    asked = covariance + _outer(mean, mean)  # E[x x'] of the input that is asked
    constant = _trace(tasks @ asked) + noise - 2 * _form(mean, both, mean)
    constant = constant + _trace(moment @ (covariance / pairs + _outer(mean, mean))) + noise_in_values / pairs
    of_asked = _trace(covariance @ matrix @ asked @ both.mT)
    cross = free * (of_asked - _form(mean, moment @ covariance @ matrix, mean))
    isotropic = (_trace(moment @ covariance) + noise_in_values)[..., None, None] * covariance
    middle = covariance @ moment @ covariance + isotropic / pairs
    second = free * _trace(matrix @ asked @ matrix.mT @ middle)
    return Curve(constant=constant, cross=cross, second=second)


def minimize_error(prompts: Prompts) -> tuple[Tensor, Tensor]:
    """Return matrix and value of least error at temperature 1, with v_x = 0: the end of training.

    M = (C A C + (tr(A C) + noise) C / l)^-1 C A, A = E[w w'], where the derivative of the error by
    M is zero. It differs from the matrix of lemma 4.1, (C + (noise / l) C_w^-1)^-1, by the sampling
    error of C; both are C^-1 for many pairs.
    """
    covariance, tasks = prompts.input_covariance, prompts.tasks
    isotropic = (_trace(tasks @ covariance) + prompts.noise)[..., None, None] * covariance / prompts.pairs
    matrix = torch.linalg.solve(covariance @ tasks @ covariance + isotropic, covariance @ tasks)
    value = torch.zeros_like(prompts.task_mean)
    return matrix / _SMALL, torch.cat([value, torch.ones_like(value[..., :1])], -1) * _SMALL


def mimic_bayes(prompts: Prompts) -> tuple[Tensor, Tensor]:
    """Return matrix and value of lemma 4.1, the Bayes predictor's, from the true moments."""
    spread = prompts.noise[..., None, None] / prompts.pairs * torch.linalg.inv(prompts.task_covariance)
    matrix = torch.linalg.inv(prompts.input_covariance + spread)
    value = torch.zeros_like(prompts.task_mean)
    return matrix / _SMALL, torch.cat([value, torch.ones_like(value[..., :1])], -1) * _SMALL


def predict_weights(matrix: Tensor, value: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return the w [L, N, d] by which the model predicts w . x at temperature 1.

    Its matrix is [L, d, d], its value [L, d + 1]; the pairs are inputs [L, N, l, d] and labels [L,
    N, l]. The plain mean of the u_i vanishes.
    """
    centred = inputs - inputs.mean(-2, keepdim=True)
    moments = (centred * (labels * value[:, None, None, -1])[..., None]).mean(-2)  # [L, N, d]
    return moments @ matrix


def _outer(left: Tensor, right: Tensor) -> Tensor:
    """Return [d, d] of [d] and [d]."""
    return left[..., :, None] * right[..., None, :]


def _form(left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
    """Return left' matrix right, []."""
    return (left[..., None, :] @ matrix @ right[..., None])[..., 0, 0]


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)
