"""A prior for the sampler `learned`, made from databases and from a table of trials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from graft.launching.surrogate import TrialTable
from search.analysis.surrogate import features_of
from search.samplers._features import flatten
from search.samplers._prior import Source
from spaces.settings import sign_of
from storage import open_reader

_SECTIONS = ("model", "optimizer", "averaging", "training.batch")
"""Sections of a stored configuration that a prior learns from; a table has no others."""
_FEWEST = 8
"""Trials of a study or a task below which nothing is learnt from it."""


def sources_of_table(table: TrialTable) -> Iterator[Source]:
    """Yield the trials of each task of a table."""
    for name, task in table.tasks.items():
        trials, metrics = table.rows_of(name)
        wanted = metrics.filter(name=task.objective.metric, variant="raw", condition="", step=trials["steps"].max())
        kept = trials.join(wanted.select("slice", "number", "value"), on=["slice", "number"], how="left")
        values = task.objective.sign * kept["value"].cast(pl.Float64).fill_null(np.nan).to_numpy()
        if trials.height >= _FEWEST:
            configs = [{**row, "model": task.model} for row in features_of(trials)]
            yield Source(task=name, configs=configs, costs=np.where(np.isfinite(values), values, np.inf))


def sources_of_database(url: str) -> Iterator[Source]:
    """Yield the trained trials of each study that has one objective; a surrogate's are left out."""
    with open_reader(url) as reader:
        for row in reader.studies().iter_rows(named=True):
            if row["second_objective"] is not None:
                continue
            where = "state IN ('finished', 'diverged') AND parent IS NULL AND step_kind IS NOT 'surrogate'"
            trials = reader.study(row["name"]).trials(where, columns=("number", "config", "objective"))
            if trials.height >= _FEWEST:
                values = sign_of(row["direction"]) * trials["objective"].cast(pl.Float64).fill_null(np.nan).to_numpy()
                whole = (flatten(json.loads(text)) for text in trials["config"])
                configs = [{path: config[path] for path in config if path.startswith(_SECTIONS)} for config in whole]
                costs = np.where(np.isfinite(values), values, np.inf)
                yield Source(task=row["name"], configs=configs, costs=costs)


def collect_sources(databases: Sequence[str], table: TrialTable | None) -> list[Source]:
    """Return all there is to learn from."""
    sources = [source for url in databases for source in sources_of_database(url)]
    return [*sources, *(sources_of_table(table) if table else ())]
