"""Refitting the adaptive temperature's polynomial to a trained model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

TEMPERATURES = torch.arange(1, 101, dtype=torch.float64) / 10
"""0.1 .. 10.0 in steps of 0.1, as the source searches them (0 itself is an argmax)."""


def refit(logits: Tensor, target: Tensor, degree: int = 4) -> dict[str, float]:
    """Coefficients a4 .. a0 of beta as a polynomial in the entropy of softmax(z), fitted to a trained head.

    `logits` [n, k] of n queries, `target` [n] the key that each should find. Queries whose largest logit is the
    target's already are left out: their best temperature is zero. For the others the temperature of the grid under
    which the target's weight is largest is the optimal one, and its inverse is fitted by least squares. Raises
    ValueError if fewer queries than coefficients are left. Source: paper 001, Appendix F.
    """
    wrong = logits.argmax(-1) != target
    z, right = logits[wrong].double(), target[wrong]
    if len(z) <= degree:
        raise ValueError(f"{len(z)} of {len(logits)} queries miss their target; fitting degree {degree} needs more")
    probabilities = z.softmax(-1)
    entropy = torch.special.entr(probabilities).sum(-1)
    weights = (z[:, None, :] / TEMPERATURES[:, None]).softmax(-1)  # [n, t, k]
    of_target = weights.gather(-1, right[:, None, None].expand(-1, len(TEMPERATURES), 1))[..., 0]
    beta = 1 / TEMPERATURES[of_target.argmax(-1)]
    fitted: Any = np.polyfit(entropy.numpy(), beta.numpy(), degree)
    return {f"a{degree - index}": float(value) for index, value in enumerate(fitted)}
