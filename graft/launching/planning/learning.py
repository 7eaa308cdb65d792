"""A prior for the sampler `learned`, made from databases and from a table of trials."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from graft.launching.surrogate import TrialTable
from graft.stored.fingerprints import SURROGATE
from graft.stored.studies import read_transfer_space
from search.analysis.surrogate import features_of
from search.samplers._features import flatten
from search.samplers._prior import Source
from spaces.errors import PluginError, SpaceError
from spaces.settings import sign_of
from storage import open_reader
from storage.frames.study import StudyReader

_SECTIONS = ("model", "optimizer", "averaging", "training.batch")
"""Sections of a stored configuration that a prior learns from; a table has no others."""
_FEWEST = 8
"""Trials of a study or a task below which nothing is learnt from it."""
_TRAINED = f"state IN ('finished', 'diverged') AND parent IS NULL AND (step_kind IS NULL OR step_kind <> '{SURROGATE}')"


def sources_of_table(table: TrialTable) -> Iterator[Source]:
    """Yield the trials of each task of a table."""
    for name, task in table.tasks.items():
        trials, metrics = table.rows_of(name)
        wanted = metrics.filter(name=task.objective.metric, variant="raw", condition="", step=trials["steps"].max())
        kept = trials.join(wanted.select("slice", "number", "value"), on=["slice", "number"], how="left")
        if trials.height >= _FEWEST:
            configs = [{**row, "model": task.model} for row in features_of(trials)]
            yield Source(task=name, configs=configs, costs=_costs(kept["value"], task.objective.sign))


def sources_of_database(url: str) -> Iterator[Source]:
    """Yield the trained trials of each search with one objective; a surrogate's are left out.

    A study is one search, a transfer one on each source task; its stage two searches nothing.
    """
    with open_reader(url) as reader:
        for row in reader.studies().iter_rows(named=True):
            if row["second_objective"] is not None:
                continue
            try:
                transfer = read_transfer_space(reader, row)
            except (SpaceError, PluginError):  # only another version of Graft can read it
                continue
            study = reader.study(row["name"])
            if not transfer:
                yield from _read_source(study, row["name"], _TRAINED, sign_of(row["direction"]))
                continue
            for group, domain in enumerate(transfer.domains):
                where, sign = f"{_TRAINED} AND group_number = {group}", domain.baseline.search.objective.sign
                yield from _read_source(study, f"{row['name']} {domain.name}", where, sign)


def _read_source(study: StudyReader, name: str, where: str, sign: float) -> Iterator[Source]:
    """Yield the trials of one search; nothing if they are too few. One that is not feasible has no cost."""
    trials = study.trials(where, columns=("number", "config", "objective", "feasible"))
    if trials.height >= _FEWEST:
        whole = (flatten(json.loads(text)) for text in trials["config"])
        configs = [{path: config[path] for path in config if path.startswith(_SECTIONS)} for config in whole]
        objectives = trials.select(pl.when(pl.col("feasible").fill_null(value=True)).then("objective"))
        yield Source(task=name, configs=configs, costs=_costs(objectives["objective"], sign))


def _costs(objectives: pl.Series, sign: float) -> NDArray[np.float64]:
    """Return objectives so that less is better, infinite for what is missing or not finite."""
    values = sign * objectives.cast(pl.Float64).fill_null(np.nan).to_numpy()
    return np.where(np.isfinite(values), values, np.inf)


def collect_sources(databases: Sequence[str], table: TrialTable | None) -> list[Source]:
    """Return all there is to learn from."""
    sources = [source for url in databases for source in sources_of_database(url)]
    return [*sources, *(sources_of_table(table) if table else ())]
