"""p values adjusted for how many of them are looked at."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Correction = Literal["holm", "bh"]
"""holm keeps the chance of one false claim or more in the family; bh keeps the share of them."""


def adjust_p(p: Numbers, correction: Correction = "holm") -> Numbers:
    """Return the adjusted p values of one family, in its order; NaN stays NaN and does not count.

    Sources: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure"; Benjamini and
    Hochberg 1995, "Controlling the False Discovery Rate".
    """
    q = np.full(len(p), np.nan)
    known = np.flatnonzero(~np.isnan(p))
    if correction == "bh":
        from scipy import stats  # 45 MB that most reports do not need

        adjusted: Any = stats.false_discovery_control(p[known])
        q[known] = adjusted
        return q
    order = known[np.argsort(p[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    q[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors))
    return q
