"""Under which code, and on what, the trials were computed, where that was not the same for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import final

import polars as pl

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import MISSING, number
from graft.report.sections import FigureNumbers, Part, Section
from graft.stored.fingerprints import StoredFingerprint, compare_fingerprints

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

    @property
    def applies(self) -> bool:
        return len(self.data.conditions) > 1

    @property
    def title(self) -> str:
        return "How the trials were computed"

    def findings(self) -> Iterable[str]:
        # Other kinds of step do not count: trials of other sizes have them.
        every = [replace(one, step_kind=None) for one in self.data.conditions]
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
        best = pl.col("objective").min() if self.data.study["direction"] == "minimize" else pl.col("objective").max()
        counted = self.data.trials.group_by("fingerprint").agg(pl.len(), best)
        found = {print_: (count, value) for print_, count, value in counted.iter_rows()}
        shown = {word: name for word, name in _COLUMNS.items() if len({getattr(one, name) for one in conditions}) > 1}
        rows = [
            [
                str(one.number),
                *(number(value) for value in found.get(one.number, (0, None))),
                *(MISSING if (value := getattr(one, name)) is None else str(value) for name in shown.values()),
            ]
            for one in conditions
        ]
        header = ["fingerprint", "trials", f"best {self.data.study['objective']}", *shown]
        yield Table(caption="Trials by fingerprint", header=header, rows=rows, folded=len(rows) > 12)
        if _differing_sources(conditions):
            text = f"Between them the sources differ of {', '.join(_differing_sources(conditions))}."
            yield Paragraph(text=text)


def _differing_sources(conditions: Sequence[StoredFingerprint]) -> list[str]:
    known: dict[str, set[str | None]] = {}
    for one in conditions:
        for plugin, digest in one.sources.items():
            known.setdefault(plugin, set()).add(digest)
    return sorted(plugin for plugin, digests in known.items() if len(digests) > 1)
