"""Rates of training that were measured on this machine, kept in a small file of the user's cache.

A file that is missing, broken or not writable costs a new measurement and nothing else.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

Rates = dict[int, float]
"""Lanes of a pack -> model-steps per second."""


class RateFile:
    """Rates by key, in a JSON file that processes share.

    Each process reads it again at every use and replaces it as a whole, without a lock: of two that write at the same
    time one entry may be lost, which costs one more measurement.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine: dict[str, Rates] = {}
        """What this process measured, should the file not take it."""

    def rates(self, key: str) -> Rates:
        """The known rates, widths ascending."""
        known = self._read().get(key, {}) | self._mine.get(key, {})
        return dict(sorted(known.items()))

    def add(self, key: str, width: int, rate: float) -> None:
        """Store the rate of a width; an older one is replaced."""
        self._mine.setdefault(key, {})[width] = rate
        known = self._read()
        known[key] = known.get(key, {}) | self._mine[key]
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._path, json.dumps(known, indent=1, sort_keys=True))

    def _read(self) -> dict[str, Rates]:
        try:
            parsed = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return {key: _valid_rates(rates) for key, rates in parsed.items()} if isinstance(parsed, dict) else {}


def _valid_rates(rates: Any) -> Rates:
    """The entries that are rates of widths; the rest is left out."""
    pairs = rates.items() if isinstance(rates, dict) else ()
    return {int(width): float(rate) for width, rate in pairs if _is_width(width) and _is_rate(rate)}


def _is_width(width: str) -> bool:
    return width.isascii() and width.isdecimal() and 2 <= int(width[:10]) < 10**9


def _is_rate(rate: Any) -> bool:
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e300 and math.isfinite(rate)


def _replace(path: Path, text: str) -> None:
    handle, aside = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(aside).replace(path)
    finally:
        Path(aside).unlink(missing_ok=True)
