"""The studies of a database for Optuna, read-only and as they are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

import polars as pl

from graft.files import writing
from graft.plugins.families import families
from graft.plugins.stored import read_outside
from graft.stored.params import StoredParams
from search.optuna_view.journal import write_journal
from search.optuna_view.storage import Reading, ReadOnlyStorage, Version
from search.optuna_view.trials import COLUMNS
from spaces import parse
from spaces.errors import GraftError
from spaces.plugins.active import using
from spaces.settings import MetricName
from spaces.space import Space
from storage.frames import open_reader
from storage.frames.answers import quote

MOST_SHOWN = 5_000
"""Trials of a study that are shown: beyond some thousand, Optuna's pages take minutes to draw."""
_VERSION = ("state", "fence", "finished_at", "objective")
"""Columns that change when a trial ends, or is queued again."""
_BATCH = 500
"""Trials whose validations are read at once."""


def open_storage(url: str, most: int | None = MOST_SHOWN) -> ReadOnlyStorage:
    """Return Optuna's storage over a database, read-only, for `optuna.load_study(storage=...)`.

    `most`: trials of a study that are shown, half the best and half the newest; all if None.
    Raises StorageError where there is no such database.
    """
    with open_reader(url):
        return ReadOnlyStorage(DatabaseStudies(url, most))


def export_journal(url: str, study: str, file: Path) -> int:
    """Write a study to a journal file of Optuna, or raise OutputError; return how many trials."""
    with open_reader(url) as reader:
        reader.study(study)
    aside = file.with_name(f".{file.name}.part")
    with writing(file):
        try:
            aside.unlink(missing_ok=True)
            count = write_journal(open_storage(url, most=None), study, aside)
            aside.replace(file)
        finally:
            aside.unlink(missing_ok=True)
    return count


@final
class DatabaseStudies:
    """Reads a database for Optuna's storage, each call over its own connection, from any thread."""

    def __init__(self, url: str, most: int | None) -> None:
        self._url = url
        self._most = most

    def list_studies(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows of `studies`, oldest first."""
        with open_reader(self._url) as reader:
            return reader.studies().rows(named=True)

    def read_spaces(self, study: str) -> Sequence[Space]:
        """Return the spaces that a study has had, the present one last, without unreadable ones."""
        with open_reader(self._url) as reader:
            stored = reader.study(study)
            texts = [*stored.changes()["space"], stored.row["space"]]
            spaces: list[Space] = []
            for text in texts:
                # This version of Graft, or this machine, may no longer read it.
                with suppress(GraftError), using(read_outside(reader, study)):
                    spaces.append(parse(text, f"the space of study {study}", families()))
            return spaces

    def read_trials(self, study: str, known: Mapping[int, Version]) -> Reading:
        """Return the trials to show; rows and validations only of those with an unknown version."""
        with open_reader(self._url) as reader, reader.moment():
            stored, columns = reader.study(study), ("number", *_VERSION)
            if self._most is None:
                shown = stored.trials(columns=columns)
            else:  # one half are the best trials, the others the newest
                best = stored.trials("objective IS NOT NULL", top=self._most // 2, columns=columns)
                newest = stored.trials(sort="number DESC", top=self._most, columns=columns)
                others = newest.join(best, on="number", how="anti", maintain_order="left")
                shown = pl.concat([best, others.head(self._most - best.height)])
            versions = {number: tuple(rest) for number, *rest in shown.iter_rows()}
            # A trial that trains has another validation each time.
            stale = [number for number, row in versions.items() if row[0] == "running" or known.get(number) != row]
            metric, variant, condition = map(quote, MetricName.of(str(stored.row["objective"])))
            params, rows = StoredParams(stored), list[dict[str, Any]]()
            validations: dict[int, dict[int, float | None]] = {}
            for start in range(0, len(stale), _BATCH):
                numbers = stale[start : start + _BATCH]
                chosen = f"number IN ({', '.join(map(str, numbers))})"
                rows += params.renew(stored.trials(chosen, columns=COLUMNS)).rows(named=True)
                ids = {row["id"]: row["number"] for row in rows[-len(numbers) :]}
                listed = ", ".join(map(str, ids))
                values = reader.query(
                    f"SELECT trial_id, step, value FROM metrics WHERE trial_id IN ({listed})"
                    f" AND name = {metric} AND variant = {variant} AND condition = {condition}"
                    " ORDER BY trial_id, step"
                )
                for trial, step, value in values.iter_rows():
                    validations.setdefault(ids[trial], {})[step] = value
        return Reading(versions, rows, validations)
