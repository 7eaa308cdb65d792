"""The params of trials that an older Graft stored, as this one would have them.

Graft 0.1 wrote a choice among plug-ins by their names, so that softmax at three temperatures was
one `softmax`. What was chosen is in the stored draws, and the space says what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import polars as pl
from packaging.version import InvalidVersion, Version

from graft.plugins.families import families
from spaces.errors import GraftError
from spaces.space import Space
from storage.frames.study import StudyReader

_SINCE = Version("0.2.0.dev0")
"""From this version on, params tell plug-ins of one name apart."""


@final
class Renewal:
    """A converter of the params of a study's trials to what they would be now, in batches."""

    def __init__(self, study: StudyReader) -> None:
        self._study = study

    def __call__(self, trials: pl.DataFrame) -> pl.DataFrame:
        """Return the trials, with number and params among their columns, each choice by the name
        that it has now.

        Trials of a study that is new enough, or that chose among nothing but numbers, are left as
        they are.
        """
        values = (value for params in trials["params"] for value in json.loads(params).values())
        has_choice = self._is_old and any(isinstance(value, str) for value in values)
        if not (has_choice and (space := self._space)):
            return trials
        rows = trials.select("number", "params").rows()
        where = f"number BETWEEN {trials['number'].min()} AND {trials['number'].max()}"
        draws = dict(self._study.trials(where=where, columns=("number", "draws")).rows())
        renewed: list[str] = []
        for number, params in rows:
            known: dict[str, Any] = json.loads(params)
            found: Mapping[str, Any] = {}
            with suppress(GraftError):  # a trial that this version makes no more is shown as it was stored
                found = space.resolve(number, json.loads(draws[number])).params
            for path, value in known.items():
                if isinstance(value, str):
                    known[path] = found.get(path, value)
            renewed.append(json.dumps(known))
        return trials.with_columns(params=pl.Series(renewed, dtype=pl.String))

    @property
    def _is_old(self) -> bool:
        """True if an older Graft made the study; False for a version that is not known."""
        with suppress(InvalidVersion):
            return Version(self._study.row["version"]) < _SINCE
        return False

    @cached_property
    def _space(self) -> Space | None:
        """The study's space; None if this version cannot read it any more."""
        from spaces import parse_stored

        with suppress(GraftError):
            return parse_stored(self._study.row, families())
