"""From values to coordinates: the trial of a space that has certain values at certain paths."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from spaces.errors import SpaceError
from spaces.grammar.formulas import CoordinateOf, Draw, Level
from spaces.messages import no_such, shorten
from spaces.program import Resolved
from spaces.records import Trial
from spaces.space import LAST, DrawnSpace

TOLERANCE = 1e-12
"""Relative difference between a wanted number and the one that a coordinate gives."""
_GRID = 64
"""Coordinates at which a formula is tried before the ones between them."""
_HALVINGS = 64
_MOST_OPTIONS = 1000


def find_trial(space: DrawnSpace, number: int, coordinate_of: CoordinateOf, wanted: Mapping[str, Any]) -> Trial:
    """Return trial `number` with the wanted values; `coordinate_of` gives the other coordinates.

    `wanted`: dotted path of a draw, or `group.NAME` and `trial.NAME` for named values -> a number,
    a truth value, a text, or a plug-in as a space writes it. Raises SpaceError, one line, for a
    path at which nothing is drawn and for a value that no coordinate gives.
    """
    search = _Search(space, coordinate_of)
    order = {draw.name: index for index, draw in enumerate(space.draws)}
    for path in wanted:
        if path in order:
            continue
        row = next((row for row in space.rows if row.path == path), None)
        if row is None:
            drawn = sorted({draw.name for draw in space.draws if "#" not in draw.name})
            raise SpaceError(f"{path}: {no_such('value that is drawn', path, drawn)}")
        why = ", which is not drawn there; set what it is made of"
        if row.level is Level.CONSTANT:
            why = " in every trial"
        raise SpaceError(f"{path}: it is {shorten(row.text)}{why}")
    # In the space's own order: choices and parts of bounds come before what depends on them.
    for path in sorted(wanted, key=lambda path: order[path]):
        search.fix(path, wanted[path], [other for other in wanted if other.startswith(f"{path}.")])
    trial = space.sample(number, search.coordinate)
    for path, value in wanted.items():
        if not _is_match(search.read(search.run({}), path), value):
            raise SpaceError(f"{path}: {_show(value)} does not go with the other values")
    return trial


@final
class _Search:
    """Coordinates that are found one after another."""

    def __init__(self, space: DrawnSpace, coordinate_of: CoordinateOf) -> None:
        self._space = space
        self._others = coordinate_of
        self._fixed: dict[str, float] = {}
        self._texts = {row.path: row.text for row in space.rows}

    def coordinate(self, draw: Draw) -> float:
        """Return the coordinate of a draw as it is now."""
        return self._fixed[draw.name] if draw.name in self._fixed else self._others(draw)

    def run(self, tried: Mapping[str, float]) -> Resolved:
        """Resolve the space at these coordinates and the fixed ones."""
        return self._space.program.run(lambda draw: tried[draw.name] if draw.name in tried else self.coordinate(draw))

    def read(self, resolved: Resolved, path: str) -> Any:
        """Return the value at a path: a plug-in as its configuration, None for nothing."""
        block, _, name = path.partition(".")
        if block in ("group", "trial"):
            return resolved.values.get(name)
        value: Any = resolved.config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def fix(self, path: str, value: Any, inner: Sequence[str]) -> None:
        """Fix the draws at a path, with drawn `inner` paths; SpaceError if none give the value."""
        seen: list[float] = []
        if not self._own(path, self.run({})):
            conditions = [draw.condition for draw in self._space.draws if draw.name == path]
            raise SpaceError(f"{path}: it is drawn only where {conditions[0]}; set that, too")
        for options in self._options(path, {}):
            resolved = self.run(options)
            ranges = [name for name in self._own(path, resolved) if name not in options]
            if len(ranges) > 1:
                text = self._texts.get(path, path)
                message = f"{text} has {len(ranges)} draws, so that a value does not tell them"
                raise SpaceError(f"{path}: {message}")
            if not all(self._own(other, resolved) for other in inner):
                continue
            if not ranges and _is_match(self.read(resolved, path), value):
                self._fixed |= options
                return
            if ranges and _is_number(value):
                coordinate = self._solve(path, {**options, ranges[0]: 0.0}, float(value), seen)
                if coordinate is not None:
                    self._fixed |= {**options, ranges[0]: coordinate}
                    return
        text = shorten(self._texts.get(path, path))
        reached = f", which goes from {min(seen):g} to {max(seen):g}" if seen else ""
        raise SpaceError(f"{path}: {_show(value)} is not given by {text}{reached}")

    def _own(self, path: str, resolved: Resolved) -> list[str]:
        """Return the draws at a path that are active, in order."""
        return [name for name in resolved.draws if name.partition("#")[0] == path]

    def _options(self, path: str, taken: Mapping[str, float]) -> Iterator[dict[str, float]]:
        """Yield combinations of options of the choices at a path, which depend on one another."""
        choices = {draw.name: draw.choices for draw in self._space.draws if draw.choices}
        names = self._own(path, self.run(taken))
        here = [name for name in names if name in choices and name not in taken]
        if not here:
            yield dict(taken)
            return
        count = choices[here[0]]
        assert count
        for index in itertools.islice(range(count), _MOST_OPTIONS):
            yield from self._options(path, {**taken, here[0]: (index + 0.5) / count})

    def _solve(self, path: str, tried: Mapping[str, float], value: float, seen: list[float]) -> float | None:
        """Return the coordinate of `tried`'s last draw for the value; values met go to `seen`."""
        *_, name = tried

        def compute(u: float) -> float:
            try:
                setting = self.read(self.run({**tried, name: u}), path)
            except SpaceError:  # a rule that these draws break
                return math.nan
            return float(setting) if isinstance(setting, int | float) else math.nan

        grid = [min(index / _GRID, LAST) for index in range(_GRID + 1)]
        values = [compute(u) for u in grid]
        seen += [number for number in values if math.isfinite(number)]
        for (low, first), (high, second) in itertools.pairwise(zip(grid, values, strict=True)):
            for u, reached in ((low, first), (high, second)):
                if _is_match(reached, value):
                    return u
            if min(first, second) < value < max(first, second):
                coordinate = _bisect(compute, low, high, value, rising=first < second)
                if coordinate is not None:
                    return coordinate
        return None


def _bisect(compute: Any, low: float, high: float, value: float, *, rising: bool) -> float | None:
    """Return the coordinate between two at which a monotone function has the value, or None."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reached = compute(middle)
        if _is_match(reached, value):
            return middle
        low, high = (middle, high) if (reached < value) == rising else (low, middle)
    return None


def _is_match(setting: Any, wanted: Any) -> bool:
    """Return True if a configuration's value is as wanted; a plug-in, in its named fields."""
    if isinstance(setting, Mapping):
        if isinstance(wanted, str):
            return setting.get("name") == wanted
        if not isinstance(wanted, Mapping) or not wanted:
            return False
        if "name" not in wanted and len(wanted) == 1:
            [(name, fields)] = wanted.items()
            if fields is not None and not isinstance(fields, Mapping):
                return False
            wanted = {"name": name, **(fields or {})}
        return all(_is_match(setting.get(key), value) for key, value in wanted.items())
    if _is_number(setting) and _is_number(wanted):
        return math.isclose(setting, wanted, rel_tol=TOLERANCE, abs_tol=0.0)
    return type(setting) is type(wanted) and setting == wanted


def _is_number(value: Any) -> bool:
    """Return True for a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


def _show(value: Any) -> str:
    return shorten(value if isinstance(value, str) else repr(value))
