"""Numbers as a report's text and tables write them."""

from __future__ import annotations

import re

MISSING = "–"
_NOWHERE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def plain(text: str) -> str:
    """The text without the characters that have no place in HTML and XML, such as those that steer a terminal."""
    return _NOWHERE.sub("\N{REPLACEMENT CHARACTER}", text)


def number(value: float | None) -> str:
    """Three significant digits, and whole numbers in full: 0.00123, 1.5e-7, 12,000; a dash for None."""
    if value is None:
        return MISSING
    if float(value).is_integer() and abs(value) < 1e9:
        return _with_minus(f"{int(value):,}")
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return _with_minus(f"{mantissa}e{int(exponent)}" if exponent else mantissa)


def with_margin(value: float | None, margin: float | None) -> str:
    """A number and half its interval, where there is one: 0.00123 ± 0.0001."""
    return number(value) if value is None or margin is None else f"{number(value)} ± {_short(margin)}"


def percent(share: float | None) -> str:
    """A change, with its sign: +12.3 %, −4.0 %."""
    return MISSING if share is None else _with_minus(f"{100 * share:+.1f} %")


def percent_with_margin(share: float | None, margin: float | None) -> str:
    """A change and half its interval, where there is one: −4.0 ± 1.2 %."""
    if share is None or margin is None:
        return percent(share)
    return _with_minus(f"{100 * share:+.1f} ± {100 * margin:.1f} %")


def parameter(value: object) -> str:
    """A trial's parameter; texts and truth values as they are."""
    if value is None:
        return MISSING
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _short(margin: float) -> str:
    mantissa, _, exponent = f"{margin:.2g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def _with_minus(text: str) -> str:
    """A minus sign in place of each hyphen."""
    return text.replace("-", "−")
