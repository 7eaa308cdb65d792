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
    told = {one.study for one in (*plan.rows, *plan.levels)}
    for name, study in ((name, study) for name, study in plan.studies.items() if name in told):
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


def _level(found: Reached) -> str:
    level, (low, high) = found.level, found.interval
    cells = [
        level.item,
        level.study,
        " ".join(filter(None, (level.metric, level.condition))),
        str(found.step),
        level.paper,
        f"{_number(found.mean)} ({_number(low)} to {_number(high)})",
        f"{_number(found.least)} to {_number(found.most)}",
        str(found.seeds),
    ]
    return f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:.3g}"
