"""Properties of a metric that its name declares: the range of its values, or that they are counts.

A metric whose name has the word `accuracy` is a share of right answers (docs/how-to/plug-in.md):
more is better, and it takes one value of a few.
"""

from __future__ import annotations

import math
import re

Range = tuple[float, float]
"""The least and the largest value that a metric can have."""

UNBOUNDED: Range = (-math.inf, math.inf)
_SHARE: Range = (0.0, 1.0)
_SHARES = frozenset({"accuracy", "chance", "itp", "itr", "probability", "share", "tvd"})
"""Words that name a share or a probability; `itp`, `itr` and `tvd` are those of paper 003."""


def is_count(metric: str) -> bool:
    """Return True for an accuracy: a count of right answers over their number, often equal."""
    return "accuracy" in metric


def range_of(metric: str) -> Range:
    """Return the range of a metric: 0 to 1 for shares and probabilities; else unbounded."""
    return _SHARE if _SHARES & set(re.split(r"[^a-z]+", metric.lower())) else UNBOUNDED


def range_of_differences(metric: str) -> Range:
    """Return the range of the difference of two values of a metric."""
    low, high = range_of(metric)
    return low - high, high - low
