"""Numbers as a report's text and tables write them."""

from __future__ import annotations

import math
import re

from search.analysis.metrics import UNBOUNDED, Range

MISSING = "–"
_MOST_DECIMALS = 16
"""All that a float64 next to 1 has."""
_NOWHERE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def plain(text: str) -> str:
    """Return the text without control characters: HTML and XML forbid them, terminals obey them."""
    return _NOWHERE.sub("\N{REPLACEMENT CHARACTER}", text)


def number(value: float | None) -> str:
    """Return three significant digits, or a whole number in full: 0.00123, 1.5e-7, 12,000.

    Near 1 the distance from 1 has two significant digits: 0.9999992. A dash stands for None.
    """
    if value is None:
        return MISSING
    if float(value).is_integer() and abs(value) < 1e9:
        return _with_minus(f"{int(value):,}")
    distance = abs(abs(value) - 1)
    if 0 < distance < 0.01:
        decimals = min(1 - math.floor(math.log10(distance)), _MOST_DECIMALS)
        return _with_minus(f"{value:.{decimals}f}".rstrip("0").rstrip("."))
    return _with_minus(_shorten(value, 3))


def with_margin(value: float | None, margin: float | None, within: Range = UNBOUNDED) -> str:
    """Return a number and half its interval, where there is one: 0.00123 ± 0.0001.

    An interval that leaves the range `within` is written by its ends, cut there: 0.97 (0.94 to 1).
    """
    if value is None or margin is None:
        return number(value)
    low, high = value - margin, value + margin
    if within[0] <= low and high <= within[1]:
        return f"{number(value)} ± {_shorten(margin, 2)}"
    return with_interval(value, max(low, within[0]), min(high, within[1]))


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """Return a number and the ends of its interval, where there is one: 0.97 (0.94 to 1)."""
    if low is None or high is None:
        return number(value)
    return f"{number(value)} ({number(low)} to {number(high)})"


def percent(share: float | None) -> str:
    """Return a change, with its sign: +12.3 %, −4.0 %."""
    return MISSING if share is None else _with_minus(f"{100 * share:+.1f} %")


def percent_with_margin(share: float | None, margin: float | None) -> str:
    """Return a change and half its interval, where there is one: −4.0 ± 1.2 %."""
    if share is None or margin is None:
        return percent(share)
    return _with_minus(f"{100 * share:+.1f} ± {100 * margin:.1f} %")


def parameter(value: object) -> str:
    """Return a trial's parameter; texts and truth values as they are."""
    if value is None:
        return MISSING
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _shorten(value: float, digits: int) -> str:
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def _with_minus(text: str) -> str:
    """Return the text with minus signs in place of hyphens."""
    return text.replace("-", "−")
