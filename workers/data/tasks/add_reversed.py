"""Decimal addition of reversed numbers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.data.tasks._addition import Addition


@dataclass(frozen=True, kw_only=True)
class AddReversed(Addition):
    """9001+2901 gives 1012: the lowest digit first, so that a carry is known when it is needed.

    "Known to be easier to learn" (paper 002, Table 1, after Lee et al. 2023).
    """

    def write(self, numerals: Tensor) -> Tensor:
        return numerals
