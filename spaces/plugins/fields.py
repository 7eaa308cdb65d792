"""Fields of a plug-in's dataclass, with the rule that its values keep.

A plug-in is a frozen keyword-only dataclass. Each field says what kind of thing it is:

    size    an integer that sets tensor shapes or loops; structural: equal for all lanes of a pack
    option  a string out of a few, or a flag; structural
    text    any string, for example a path; structural, unless it only says how parameters start
    file    a file or a folder that is read; its name and its content are structural
    part    another plug-in; its name is structural
    knob    a number that may differ from lane to lane; inside the engine it is a per-lane tensor
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from spaces import plugins
from spaces.plugins.digests import Selection
from spaces.plugins.files import FilePath
from spaces.plugins.rules import REQUIRED, Rule


def _field(rule: Rule, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"rule": rule})


def size(
    default: Any = REQUIRED, *, low: float = 1, high: float = math.inf, padded: int = 0, steps: bool = False
) -> Any:
    """Return a structural integer in [low, high]; one that may be padded says from which size on (`padded_size`).

    `steps`: it counts optimizer steps, so that `--steps` cuts it as it cuts training.
    """
    return _field(Rule(kind="size", low=low, high=high, integer=True, padded=padded, steps=steps), default)


def step_count(default: Any = REQUIRED, *, low: float = 0) -> Any:
    """Return a knob that counts optimizer steps: `--steps` cuts it as it cuts training."""
    return _field(Rule(kind="knob", low=low, integer=True, steps=True), default)


def knob(
    default: Any = REQUIRED,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    integer: bool = False,
    switch: bool = False,
    earlier: tuple[int, float] | None = None,
) -> Any:
    """Return a number that may differ from lane to lane; with `switch`, whether it is zero is structural.

    A switch lets the engine leave out what a zero turns off (a dropout mask), for all lanes of a pack alike.
    `earlier`: the last version of the numerics that had another default, and that default, which the studies of these
    versions keep.
    """
    rule = Rule(
        kind="knob", low=low, high=high, open_low=open_low, open_high=open_high, integer=integer, switch=switch,
        earlier=earlier,
    )  # fmt: skip
    return _field(rule, default)


def option(default: Any, choices: Sequence[str]) -> Any:
    """Return a structural string out of `choices`."""
    return _field(Rule(kind="option", choices=tuple(choices)), default)


def flag(default: Any) -> Any:
    """Return a structural truth value."""
    return _field(Rule(kind="flag"), default)


def text(default: Any = REQUIRED, *, start: bool = False, plain: bool = False) -> Any:
    """Return any string, for example a path; structural, but for one that says no more than how parameters `start`.

    `plain`: whatever it says, nothing is opened, fetched or run by that name, so that spaces over HTTP may have it.
    """
    return _field(Rule(kind="text", start=start, plain=plain), default)


def file(*ends: str, optional: bool = False, ending: str = "") -> Any:
    """Return a file or a folder that the plug-in reads, relative to the space; its value is a `FilePath`, which can
    be opened.

    Its content is part of a trial's identity: a study keeps a digest of it, and refuses to go on where it has changed.
    Of a folder all files count, in the folders in it too, or those whose names end in one of `ends`; where the field
    named `ending` is a text that is not empty, those whose names end in it. `optional`: it may be left out, or empty,
    and its value is then false.
    """
    rule = Rule(kind="file", optional=optional, selection=Selection(ends or ("",)), ending=ending)
    return _field(rule, FilePath("") if optional else REQUIRED)


def part(family: type, default: str) -> Any:
    """Return another plug-in of `family`; `default` names the member used when the field is left out."""

    def build_default() -> Any:
        return plugins.build(family, {"name": default})

    return dataclasses.field(default_factory=build_default, metadata={"rule": Rule(kind="part", family=family)})
