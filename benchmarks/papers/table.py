"""The plan's rows as a Markdown table: the paper's number, ours with its interval, what may be said, and how long."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from benchmarks.papers.plan import Plan
from benchmarks.papers.trials import Result

_HEADER = (
    "| item | claim | the paper | baseline | arm | difference (95 %) | pairs | adjusted p | expected | found |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def table(plan: Plan, kept: pl.DataFrame, results: Iterable[Result]) -> str:
    """Return the table of comparisons, and that of the studies with the command and the minutes of each."""
    rows = [
        *_HEADER,
        *map(_row, results),
        "",
        "| study | command | trials | minutes on one core |",
        "|---|---|---|---|",
    ]
    compared = {row.study for row in plan.rows}
    for name, study in ((name, study) for name, study in plan.studies.items() if name in compared):
        own = kept.filter(pl.col("study") == name)
        trials, minutes = (own["number"].n_unique(), f"{own['minutes'][0]:.1f}") if own.height else (0, "not trained")
        rows.append(f"| {name} | `{study.command()}` | {trials} | {minutes} |")
    return "\n".join(rows)


def _row(result: Result) -> str:
    row, found = result.row, result.difference
    difference = f"{_number(found.mean)} ({_number(found.low)} to {_number(found.high)})"
    cells = [
        row.item,
        row.claim,
        row.paper or "none given",
        f"{_number(result.against)}",
        f"{_number(result.value)}",
        difference,
        str(found.pairs),
        f"{result.adjusted_p:.1g}",
        row.expected,
        result.verdict,
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.3g}"
