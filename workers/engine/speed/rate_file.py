"""Measured rates of training, in a cache file that may be missing, broken or not writable."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from spaces.cache import write_aside

Rates = dict[int, float]
"""Lanes of a pack -> model-steps per second."""
Measurements = dict[int, list[float]]
"""Lanes of a pack -> all measured rates."""


class RateFile:
    """Rates by key, in a JSON file that processes share.

    Each process reads it again at every use and replaces it as a whole, without a lock: if two
    write at once an entry may be lost, which costs one more measurement.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mine: dict[str, Measurements] = {}
        """This process's measurements by key, if the file does not take them."""

    def rates(self, key: str) -> Rates:
        """Return the best known rates, widths ascending: other work only slows a measurement."""
        return {width: max(rates) for width, rates in sorted(self._known(key).items())}

    def times(self, key: str, width: int) -> int:
        """Return the number of measurements of a width."""
        return len(self._known(key).get(width, ()))

    def add(self, key: str, width: int, rate: float) -> None:
        """Store one more measurement of a width."""
        self._mine[key] = self._known(key)
        self._mine[key].setdefault(width, []).append(rate)
        known = self._read() | {key: self._mine[key]}
        with suppress(OSError):
            write_aside(self._path, json.dumps(known, indent=1, sort_keys=True).encode())

    def _known(self, key: str) -> Measurements:
        mine, stored = self._mine.get(key, {}), self._read().get(key, {})
        return {width: max(mine.get(width, []), stored.get(width, []), key=len) for width in mine | stored}

    def _read(self) -> dict[str, Measurements]:
        try:
            parsed = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return {key: _valid_measurements(entry) for key, entry in parsed.items()} if isinstance(parsed, dict) else {}


def _valid_measurements(entry: Any) -> Measurements:
    """Return the entries that are rates of widths, without the rest."""
    valid: Measurements = {}
    for width, rates in entry.items() if isinstance(entry, dict) else ():
        is_width = width.isascii() and width.isdecimal() and 2 <= int(width[:10]) < 10**9
        if is_width and isinstance(rates, list) and any(map(_is_rate, rates)):
            valid[int(width)] = [float(rate) for rate in rates if _is_rate(rate)]
    return valid


def _is_rate(rate: Any) -> bool:
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < 1e300 and math.isfinite(rate)
