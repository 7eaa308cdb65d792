"""The plan as Markdown tables: the paper's numbers, ours with intervals, what may be said, and how long it took."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from benchmarks.papers.plan import Plan
from benchmarks.papers.trials import Reached, Result

_HEADER = (
    "| item | claim | the paper | baseline | arm | difference (95 %) | pairs | adjusted p | expected | found |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def table(plan: Plan, kept: pl.DataFrame, results: Iterable[Result], reached: Iterable[Reached] = ()) -> str:
    """Return the tables of comparisons, of levels, and of the studies with the command and the minutes of each."""
    rows = [
        *_HEADER,
        *map(_row, results),
        "",
        "| item | study | metric | after steps | the paper | here (95 %) | least to most | seeds |",
        "|---|---|---|---|---|---|---|---|",
        *map(_level, reached),
        "",
        "| study | command | trials | minutes on one core |",
        "|---|---|---|---|",
    ]
    names = {row.study for row in (*plan.rows, *plan.levels)}
    for name, study in ((name, study) for name, study in plan.studies.items() if name in names):
        part = kept.filter(pl.col("study") == name)
        trials, minutes = (
            (part["number"].n_unique(), f"{part['minutes'][0]:.1f}") if part.height else (0, "not trained")
        )
        rows.append(f"| {name} | `{study.command()}` | {trials} | {minutes} |")
    return "\n".join(rows)


def _row(result: Result) -> str:
    row, gap = result.row, result.difference
    difference = f"{_number(gap.mean)} ({_number(gap.low)} to {_number(gap.high)})"
    cells = [
        row.item,
        row.claim,
        row.paper or "none given",
        f"{_number(result.against)}",
        f"{_number(result.value)}",
        difference,
        str(gap.pairs),
        f"{result.adjusted_p:.1g}",
        row.expected,
        result.verdict,
    ]
    return f"| {' | '.join(cells)} |"


def _level(point: Reached) -> str:
    level, (low, high) = point.level, point.interval
    cells = [
        level.item,
        level.study,
        " ".join(filter(None, (level.metric, level.condition))),
        str(point.step),
        level.paper,
        f"{_number(point.mean)} ({_number(low)} to {_number(high)})",
        f"{_number(point.least)} to {_number(point.most)}",
        str(point.seeds),
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.3g}"
