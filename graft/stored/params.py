"""The params of stored trials, by the names that this version has for plug-ins.

Graft 0.1 wrote a choice among plug-ins by their names, so that softmax at three temperatures was
one `softmax`. The chosen one follows from the stored draws and the space.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, final

import polars as pl
from packaging.version import InvalidVersion, Version

from graft.plugins.families import families
from spaces import parse_stored
from spaces.errors import GraftError
from spaces.records import Scalar
from spaces.space import Space
from storage.frames.columns import JSON_COLUMNS
from storage.frames.study import StudyReader

PARAMS_PREFIX = "params."
"""The beginning of the name of each column of a param."""
_SINCE = Version("0.2.0.dev0")
"""The first version whose params tell plug-ins of one name apart."""


@final
class StoredParams:
    """Reads the params of a study's trials in batches, whose columns include number and params."""

    def __init__(self, study: StudyReader) -> None:
        self._study = study
        self._is_old = False  # also if the version is not known
        with suppress(InvalidVersion):
            self._is_old = Version(study.row["version"]) < _SINCE

    def decode(self, trials: pl.DataFrame) -> Iterator[dict[str, Any]]:
        """Yield the rows of a batch, its JSON columns as values."""
        texts = [name for name in JSON_COLUMNS if name in trials.columns]
        for row in self.renew(trials).iter_rows(named=True):
            yield {**row, **{name: json.loads(row[name] or "null") for name in texts}}

    def unpack(self, trials: pl.DataFrame) -> pl.DataFrame:
        """Return a batch with one typed column for each of `params`, as `unpack_params` does."""
        return unpack_params(self.renew(trials))

    def renew(self, trials: pl.DataFrame) -> pl.DataFrame:
        """Return a batch with each choice in `params` by its present name.

        Trials of a newer study, and trials that chose only numbers, stay as they are.
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
            present: Mapping[str, Any] = {}
            with suppress(GraftError):  # a trial that this version cannot make is shown as stored
                present = space.resolve(number, json.loads(draws[number])).params
            for path, value in known.items():
                if isinstance(value, str):
                    known[path] = present.get(path, value)
            renewed.append(json.dumps(known))
        return trials.with_columns(params=pl.Series(renewed, dtype=pl.String))

    @cached_property
    def _space(self) -> Space | None:
        """The study's space; None if this version cannot read it any more."""
        with suppress(GraftError):
            return parse_stored(self._study.row, families())


def spell_param(value: Scalar | None, column: pl.Series) -> Scalar | None:
    """Return a param as `unpack_params` writes it into a column: a number beside words is a text."""
    if value is None or column.dtype != pl.String:
        return value
    return pl.Series([json.dumps(value)]).str.json_decode(pl.String).item()


def unpack_params(trials: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with the JSON of `params` as one typed column per path, null if missing."""
    params = trials["params"]
    if params.is_empty():
        return trials.drop("params")
    columns = params.str.json_decode(infer_schema_length=None).struct.unnest()
    return trials.drop("params").hstack(columns.rename(lambda path: PARAMS_PREFIX + path))
