"""Shared by sections about a transfer: the trials of stage two, and the sources of a target."""

from __future__ import annotations

import json
from abc import ABC
from functools import cached_property
from typing import Any

import polars as pl

from graft.report.rendering.drawing import Looks, series_looks
from graft.report.sections import Section
from graft.report.sections._lines import Lines
from spaces.transfer import BASELINE


class TransferSection(Section, ABC):
    """A section of studies that are transfers, about the trials of stage two."""

    @cached_property
    def stage_two(self) -> pl.DataFrame:
        """number, source, target and pair of the trials with a result, the baseline's first."""
        names = {"source": "architecture.source", "target": "transfer.target", "pair": "pair"}
        parameters = pl.DataFrame()
        if self.data.transfer_tasks:
            patterns = (name.replace(".", r"\.") for name in names.values())
            parameters = self.data.parameters("|".join(patterns))
        if not set(names.values()) <= set(parameters.columns):
            return pl.DataFrame(schema={"number": pl.Int64, **dict.fromkeys(names, pl.String)})
        columns = {key: pl.col(name) for key, name in names.items()}
        trials = parameters.select("number", **columns).drop_nulls()
        ended = trials.join(self.data.ended.select("number"), on="number", how="semi")
        # The baseline's first, then as the space has the tasks, forms in alphabetic order.
        places = {name: index for index, name in enumerate([BASELINE, *self.data.transfer_tasks])}
        ranks = ((places.get(_task_of(source), len(places)), source) for source in ended["source"].unique())
        order = {name: index for index, (_, name) in enumerate(sorted(ranks))}
        return ended.sort(pl.col("source").replace_strict(order, return_dtype=pl.Int64), "number")

    @property
    def applies(self) -> bool:
        return not self.stage_two.is_empty() and super().applies

    @cached_property
    def sources(self) -> list[str]:
        """The sources that have a result, in their order."""
        return self.stage_two["source"].unique(maintain_order=True).to_list()

    @property
    def targets(self) -> list[str]:
        """The targets on which there is a result, in the order of the space."""
        there = set(self.stage_two["target"])
        return [name for name in self.data.transfer_tasks if name in there]

    def own_sources(self, target: str) -> list[str]:
        """Return the baseline and the sources found on the target's data, or all if none was."""
        wanted = self.data_of(target)
        others = (name for name in self.sources if name != BASELINE)
        matches = [name for name in others if self.data_of(_task_of(name)) == wanted]
        return [name for name in self.sources if name == BASELINE or name in matches or not matches]

    def data_of(self, task: str) -> str:
        """Return a text that two tasks share if they have the same data: their `task` as JSON."""
        return json.dumps(self.data.transfer_tasks[task].config["task"], sort_keys=True)

    def size_of(self, task: str, path: str) -> Any:
        """Return a number of a task's configuration, at `model.width`; None where it has none."""
        value: Any = self.data.transfer_tasks[task].config
        for step in path.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        return value


class TransferFigure(TransferSection, Lines, ABC):
    """A figure of lines of such studies; each source has the same colour in all of them."""

    def looks(self, lines: pl.DataFrame) -> Looks:
        shown = set(lines["series"])
        return {name: look for name, look in series_looks(self.sources).items() if name in shown}


def _task_of(source: str) -> str:
    """Return the task of a source, whose name says its form behind a space."""
    return source.partition(" ")[0]
