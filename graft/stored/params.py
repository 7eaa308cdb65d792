"""The params of trials that an older Graft stored, as this one would have them.

Graft 0.1 wrote a choice among plug-ins by their names, so that softmax at three temperatures was one `softmax`. What
was chosen is in the stored draws, and the space says what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import polars as pl
from packaging.version import Version

from graft.families import families
from graft.plugins.stored import read_outside
from spaces.errors import GraftError
from spaces.plugins.active import using
from spaces.space import Space
from storage.frames import Reader

_SINCE = Version("0.2.0.dev0")
"""From this version on, params tell plug-ins of one name apart."""


def renew_params(reader: Reader, study: str, trials: pl.DataFrame) -> pl.DataFrame:
    """The trials, with number and params among their columns, each choice by the name that it has now.

    Trials of a study that is new enough, or that chose among nothing but numbers, are left as they are.
    """
    row = reader.study(study)
    if Version(row["version"]) >= _SINCE or not any(_chosen(text) for text in trials["params"]):
        return trials
    from spaces import parse

    draws = dict(reader.trials(study, columns=("number", "draws")).rows())
    with using(read_outside(reader, study)):
        try:
            space = parse(row["space"], f"the space of study {study}", families())
        except GraftError:  # a space that this version reads no more
            return trials
        renewed = [
            _renew(space, number, json.loads(draws[number]), json.loads(params))
            for number, params in trials.select("number", "params").rows()
        ]
    return trials.with_columns(params=pl.Series(renewed, dtype=pl.String))


def _chosen(params: str) -> bool:
    return any(isinstance(value, str) for value in json.loads(params).values())


def _renew(space: Space, number: int, draws: Mapping[str, float], params: Mapping[str, Any]) -> str:
    found: Mapping[str, Any] = {}
    with suppress(GraftError):  # a trial that this version makes no more is shown as it was stored
        found = space.resolve(number, draws).params
    known = {path: found.get(path, value) if isinstance(value, str) else value for path, value in params.items()}
    return json.dumps(known)
