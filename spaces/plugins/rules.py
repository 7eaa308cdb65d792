"""The rule of a plug-in's field: its kind, its range or choices, and the check of a value."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spaces.bounds import LARGEST_COUNT, LARGEST_SIZE
from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins import resources
from spaces.plugins.digests import ALL_FILES, Selection
from spaces.plugins.files import FilePath, find_file

Kind = Literal["size", "knob", "option", "flag", "text", "file", "part"]
REQUIRED = dataclasses.MISSING


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The values that a field accepts."""

    kind: Kind
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    integer: bool = False
    switch: bool = False
    start: bool = False
    plain: bool = False
    """True for a text that leads to no file, data set or code, whatever it says."""
    padded: int = 0
    steps: bool = False
    """True if it counts optimizer steps, and is cut where training is."""
    choices: tuple[str, ...] = ()
    family: type | None = None
    optional: bool = False
    """True if an empty text, which names no file, is a value."""
    selection: Selection = ALL_FILES
    """The files of a folder that count."""
    ending: str = ""
    """The field that, unless empty, replaces the ending of the files of a folder."""
    earlier: tuple[int, float] | None = None
    """An older default: the last version of the numerics that had it, and its value."""

    @property
    def structural(self) -> bool:
        """True if the lanes of a pack must agree on the value."""
        return self.kind != "knob" and not self.start

    def describe(self) -> str:
        """Return the rule in words, as it stands in an error: `a number in [0, 1)`."""
        if self.kind == "part":
            return "a plug-in"
        if self.kind == "flag":
            return "true or false"
        if self.kind == "text":
            return "a text"
        if self.kind == "file":
            return "a file or a folder" + (", or empty" if self.optional else "")
        if self.kind == "option":
            return "one of " + ", ".join(self.choices)
        noun = "an integer" if self.integer else "a number"
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        if math.isinf(self.low) and math.isinf(self.high):
            return noun
        if math.isinf(self.high):
            return f"{noun} {'>' if self.open_low else '>='} {self.low:g}"
        if math.isinf(self.low):
            return f"{noun} {'<' if self.open_high else '<='} {self.high:g}"
        return f"{noun} in {left}{self.low:g}, {self.high:g}{right}"

    def for_fields(self, config: Mapping[str, Any]) -> Rule:
        """Return the rule for these fields, which may select files; PluginError if one is drawn."""
        end = config.get(self.ending, "")
        if not isinstance(end, str):
            need = "it must be a text, and is not drawn"
            raise PluginError(f"{self.ending} says which files of a folder count: {need}")
        return dataclasses.replace(self, selection=Selection((end,))) if end else self

    def check(self, path: str, value: Any) -> Any:
        """Return the value in its field's type; PluginError names path, value and rule."""
        if self.kind == "file":
            return self._find(path, value)
        if self.kind == "flag":
            good = isinstance(value, bool)
        elif self.kind == "option":
            good = value in self.choices
        elif self.kind == "text":
            good = isinstance(value, str)
        else:
            good = self._is_number(value)
        if not good:
            raise PluginError(f"{path}: {shorten(repr(value))} must be {self.describe()}")
        # The integers that torch and SQL can hold, for a field without its own bound.
        most = LARGEST_SIZE if self.kind == "size" else LARGEST_COUNT
        largest = self.high if math.isfinite(self.high) else most
        if self.integer and abs(value) > largest:
            rule = f"{self.describe()}, at most {largest:,}"
            raise PluginError(f"{path}: {shorten(repr(value))} must be {rule}")
        if self.kind == "text" and not self.plain:
            resources.check(path, value)
        if self.kind in ("flag", "option", "text"):
            return value
        return int(value) if self.integer else float(value)

    def _find(self, path: str, value: Any) -> FilePath:
        """Return the file that a text names; PluginError as in `check`, and for no such file."""
        if self.optional and value == "":
            return FilePath("")
        if isinstance(value, str):  # an empty one, too: it would stand for the folder of the space
            resources.check(path, value)
        if not isinstance(value, str) or not value:
            raise PluginError(f"{path}: {shorten(repr(value))} must be {self.describe()}")
        try:
            return find_file(value, self.selection)
        except PluginError as error:
            raise PluginError(f"{path}: {error}") from error

    def _is_number(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if not -math.inf < value < math.inf:
            return False
        if self.integer and value != int(value):
            return False
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below


def padded_size(size: int, least: int) -> int:
    """Return the size that a trial's tensors are padded to: the next power of two, from `least` on.

    Trials seldom meet then, and sizes are less than twice too large where it costs. Of 260 groups
    of Table 1 of paper 003 (the space `set_complement`) with 252 shapes, 19 are left with 8 for
    lengths and widths and 32 for vocabularies, keys and values, with 2.75 times the parameters and
    3.5 times the multiplications. Powers of four from 4 and 8 on leave 26, with 4.7 and 7.3 times;
    powers of two from 4 on leave 117, with 2.1 and 2.8 times.
    """
    return max(least, 1 << (size - 1).bit_length())
