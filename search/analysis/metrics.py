"""What the name of a metric declares of its values: the range that they cannot leave, and whether they are counts.

A task's metric is named so that readers know it (docs/how-to/plug-in.md): one whose name has the word `accuracy` is a
share of right answers, of which more is better, and takes one value of a few.
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
    """Return whether the metric is an accuracy: a count of right answers over their number, of which many are equal."""
    return "accuracy" in metric


def range_of(metric: str) -> Range:
    """Return the range of a metric: 0 to 1 for shares and probabilities, by a word of the name; else unbounded."""
    return _SHARE if _SHARES & set(re.split(r"[^a-z]+", metric.lower())) else UNBOUNDED


def range_of_differences(metric: str) -> Range:
    """Return the range of the difference of two values of a metric."""
    low, high = range_of(metric)
    return low - high, high - low
