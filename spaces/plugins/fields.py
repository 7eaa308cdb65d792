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
    """Return a structural integer in [low, high], which may be padded from `padded` on.

    `steps`: it counts optimizer steps, so that `--steps` cuts it as it cuts training.
    """
    rule = Rule(kind="size", low=low, high=high, integer=True, padded=padded, steps=steps)
    return _field(rule, default)


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
    """Return a number that may differ from lane to lane.

    Of a `switch` it is structural whether it is zero: the engine leaves out what a zero turns off
    (a dropout mask), for all lanes of a pack alike. `earlier`: the last version of the numerics
    that had another default, and that default, which its studies keep.
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
    """Return any string, structural unless it only says how parameters `start`.

    `plain`: nothing is opened, fetched or run by that name, so that spaces over HTTP may have it.
    """
    return _field(Rule(kind="text", start=start, plain=plain), default)


def file(*ends: str, optional: bool = False, ending: str = "") -> Any:
    """Return a file or a folder that the plug-in reads, relative to the space, as a `FilePath`.

    Its content is part of a trial's identity: a study keeps a digest of it, and refuses to go on
    with another content. All files in a folder, and in the folders in it, count whose names end in
    one of `ends`, or in the text of the field named `ending`, unless that is empty. If `optional`,
    it may be left out or empty, and is then false.
    """
    rule = Rule(kind="file", optional=optional, selection=Selection(ends or ("",)), ending=ending)
    return _field(rule, FilePath("") if optional else REQUIRED)


def part(family: type, default: str) -> Any:
    """Return another plug-in of `family`; `default` names the member if the field is left out."""

    def build_default() -> Any:
        return plugins.build(family, {"name": default})

    rule = Rule(kind="part", family=family)
    return dataclasses.field(default_factory=build_default, metadata={"rule": rule})
