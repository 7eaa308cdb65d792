"""The params of trials that an older Graft stored, as this one would have them.

Graft 0.1 wrote a choice among plug-ins by their names, so that softmax at three temperatures was one `softmax`. What
was chosen is in the stored draws, and the space says what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import polars as pl
from packaging.version import Version

from graft.families import families
from spaces.errors import GraftError
from spaces.space import Space
from storage.frames import Reader

Renew = Callable[[pl.DataFrame], pl.DataFrame]
"""Gives a frame of trials, with number and params among its columns, the params that they have now."""

_SINCE = Version("0.2.0.dev0")
"""From this version on, params tell plug-ins of one name apart, and may come from outside."""


def renewing(reader: Reader, study: str) -> Renew:
    """What gives the trials of a study each choice by the name that it has now; of a newer study it changes nothing."""
    from spaces import parse

    row = reader.study(study)
    if Version(row["version"]) >= _SINCE:
        return lambda trials: trials
    try:
        space = parse(row["space"], f"the space of study {study}", families())
    except GraftError:  # a space that this version reads no more: its trials are shown as they were stored
        return lambda trials: trials
    draws: dict[int, str] = dict(reader.trials(study, columns=("number", "draws")).rows())

    def renew(trials: pl.DataFrame) -> pl.DataFrame:
        renewed = [
            text and _renew(space, number, json.loads(draws[number]), json.loads(text))
            for number, text in trials.select("number", "params").rows()
        ]
        return trials.with_columns(params=pl.Series(renewed, dtype=pl.String))

    return renew


def _renew(space: Space, number: int, draws: Mapping[str, float], params: Mapping[str, Any]) -> str:
    found: Mapping[str, Any] = {}
    if any(isinstance(value, str) for value in params.values()):
        with suppress(GraftError):  # a trial that this version makes no more
            found = space.resolve(number, draws).params
    known = {path: found.get(path, value) if isinstance(value, str) else value for path, value in params.items()}
    return json.dumps(known)
