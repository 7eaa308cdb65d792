"""The code and the machines that computed the trials, where these were not the same for all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import final

import polars as pl

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import MISSING, number
from graft.report.sections import FigureNumbers, Part, Section
from graft.stored.fingerprints import compare_fingerprints
from spaces.reading.transfer_section import has_one_objective

_COLUMNS = {
    "Graft": "version",
    "numerics": "numerics",
    "torch": "torch",
    "steps": "step_kind",
    "processor": "processor",
    "resumed from": "previous",
}


@final
class Fingerprints(Section):
    """A row for each fingerprint."""

    part = Part.DETAILS
    after = "groups"
    heading = "How the trials were computed"

    @property
    def applies(self) -> bool:
        return len(self.data.conditions) > 1

    @property
    def _ranked(self) -> pl.DataFrame:
        """The trials that one objective ranks: none where tasks have objectives of their own."""
        is_ranked = has_one_objective(self.data.study.get("space") or "")
        return self.data.ended if is_ranked else self.data.ended.clear()

    def findings(self) -> Iterable[str]:
        # Other kinds of step do not count: trials of other sizes have them.
        every = [replace(fingerprint, step_kind=None) for fingerprint in self.data.conditions]
        changes: list[str] = []
        for index in range(1, len(every)):
            changes += compare_fingerprints(every[:index], every[index]).deciding
        if changes:
            yield (
                f"Not all trials were computed alike: {'; '.join(changes)}. The last table tells which were; compare "
                "trials of different fingerprints with care."
            )

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        conditions = self.data.conditions
        objective = pl.col("objective")
        best = objective.min() if self.data.study["direction"] == "minimize" else objective.max()
        counted = dict(self.data.trials.group_by("fingerprint").agg(pl.len()).iter_rows())
        leading = dict(self._ranked.group_by("fingerprint").agg(best).iter_rows())
        shown = {
            word: name
            for word, name in _COLUMNS.items()
            if len({getattr(fingerprint, name) for fingerprint in conditions}) > 1
        }
        rows: list[list[str]] = []
        sources: dict[str, set[str | None]] = {}
        for fingerprint in conditions:
            counts = (number(counted.get(fingerprint.number, 0)), number(leading.get(fingerprint.number)))
            values = (getattr(fingerprint, name) for name in shown.values())
            texts = (MISSING if value is None else str(value) for value in values)
            rows.append([str(fingerprint.number), *counts, *texts])
            for plugin, digest in fingerprint.sources.items():
                sources.setdefault(plugin, set()).add(digest)
        header = ["fingerprint", "trials", f"best {self.data.study['objective']}", *shown]
        yield Table(caption="Trials by fingerprint", header=header, rows=rows, folded=len(rows) > 12)
        differing = sorted(plugin for plugin, digests in sources.items() if len(digests) > 1)
        if differing:
            yield Paragraph(text=f"Between them the sources differ of {', '.join(differing)}.")
