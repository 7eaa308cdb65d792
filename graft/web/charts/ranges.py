"""The ranges of values that an address of a page has: `low.PATH=0.001&high.PATH=0.1`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlencode

import polars as pl

from graft.stored.params import PARAMS_PREFIX
from graft.web.security.refusals import RefusalError

OBJECTIVES = ("objective", "second_objective")
"""Paths that are columns of trials, not values that were drawn."""
_MOST = 40
"""Bounds of an address, at most."""
_OPEN = (-math.inf, math.inf)
_BOUND = re.compile(r"(low|high)\.([A-Za-z_]\w*(?:\.\w+)*)", re.ASCII)


@dataclass(frozen=True)
class Ranges:
    """Path of a value -> the least and the greatest that is kept; infinite where it is open."""

    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])

    @classmethod
    def parse(cls, query: Iterable[tuple[str, str]]) -> Self:
        """Read the ranges in an address; refused with 400 for a bound that is no number."""
        bounds: dict[str, tuple[float, float]] = {}
        given = [(match, text) for name, text in query if text.strip() and (match := _BOUND.fullmatch(name))]
        if len(given) > _MOST:
            raise RefusalError(400, f"{len(given)} bounds of ranges; there may be {_MOST}")
        for match, text in given:
            try:
                bound = float(text)
            except ValueError:
                bound = math.nan
            if not math.isfinite(bound):
                raise RefusalError(400, f"{match[0]}: {text[:40]!r} is no number")
            low, high = bounds.get(match[2], _OPEN)
            bounds[match[2]] = (bound, high) if match[1] == "low" else (low, bound)
        return cls(bounds)

    def __str__(self) -> str:
        """Return the ranges as an address has them; empty if there are none."""
        ends = [
            (f"{side}.{path}", bound)
            for path in self.bounds
            for side, bound in zip(("low", "high"), self.write(path), strict=True)
            if bound
        ]
        return urlencode(ends)

    def write(self, path: str) -> tuple[str, str]:
        """Return the two bounds of a value as a form shows them, empty where it is open."""
        bounds = self.bounds.get(path, _OPEN)
        low, high = ("" if math.isinf(bound) else repr(bound) for bound in bounds)
        return low, high

    def keep(self, trials: pl.DataFrame) -> pl.Series:
        """Return which trials are in all ranges; one without such a number is in none."""
        kept = pl.Series([True]).new_from_index(0, trials.height)
        for path, (low, high) in self.bounds.items():
            name = path if path in OBJECTIVES else PARAMS_PREFIX + path
            if name in trials.columns and trials[name].dtype.is_numeric():
                kept &= trials[name].is_between(low, high).fill_null(value=False)
            else:
                kept &= False
        return kept
