"""The content of a report about a compatibility matrix, before it has a format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import polars as pl

from graft.report.compatibility.cells import MARK, Cell, Shading, change
from graft.report.rendering.document import Block, Heading, Paragraph, Table
from graft.report.rendering.formatting import MISSING, number
from search.analysis.statistics.paired import FEWEST_OF_VERDICT
from search.analysis.statistics.verdicts import BETTER, WORSE
from search.analysis.transfer.affinity import best_sources, generality, similarity
from search.analysis.transfer.compatibility_matrix import Matrix
from spaces.settings import Direction

_UNITS = {
    "points": "percentage points of {objective}",
    "percent": "percent of the baseline's value of {objective}",
    "difference": "differences of {objective}",
}


@dataclass(frozen=True, kw_only=True)
class Paths:
    """The paths in a trial that give a matrix its rows, its columns and its pairing."""

    source: str
    target: str
    pair: str


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A study's compatibility matrix, and the trials that it is made from."""

    study: str
    objective: str
    direction: Direction
    paths: Paths
    matrix: Matrix
    results: pl.DataFrame = field(repr=False)
    """number, source, target, seed, value and direction: one row per trial."""
    left_out: int
    """Number of trials that lack one of the paths."""

    @cached_property
    def shading(self) -> Shading:
        """The limits of the colour scale and the decimals of numbers, for each unit."""
        return Shading.of(self.matrix.cells)

    @cached_property
    def cells(self) -> Mapping[tuple[str, str], Cell]:
        """(source, target) -> what its cell shows."""
        rows = self.matrix.cells.iter_rows(named=True)
        return {(row["source"], row["target"]): Cell.of(row, self.shading) for row in rows}


def title(transfer: Transfer) -> str:
    """Return the report's heading."""
    return f"Compatibility matrix of {transfer.study}"


def caption(transfer: Transfer) -> str:
    """Describe the matrix in one sentence or two."""
    units = transfer.matrix.cells["unit"].unique(maintain_order=True)
    what = " or ".join(_UNITS[unit] for unit in units).format(objective=transfer.objective)
    directions = transfer.matrix.cells["direction"].unique().to_list()
    better = "more is better" if directions == ["maximize"] else "less is better"
    if len(directions) > 1:
        better = "blue is better: more where the objective is maximised, less where it is minimised"
    return (
        f"Change against {transfer.matrix.baseline} in {what}, {better}. "
        f"Rows are sources ({transfer.paths.source}), columns targets ({transfer.paths.target})."
    )


def opening(transfer: Transfer) -> list[Block]:
    """Return the paragraphs that a reader should see first."""
    cells = transfer.matrix.cells
    missing = cells.filter(pl.col("mean").is_null()).height
    pairs = cells.filter(pl.col("pairs") > 0)["pairs"]
    fewest, most = int(str(pairs.min())), int(str(pairs.max()))
    counted = number(fewest) if fewest == most else f"{number(fewest)} to {number(most)}"
    counted += f" pair{'s' * (most != 1)}"
    sentences = [
        caption(transfer),
        f"{cells.height - missing} of {cells.height} cells have results, each of {counted}, "
        f"matched by {transfer.paths.pair}.",
    ]
    verdicts = cells["verdict"].to_list()
    if cells["q"].count():
        better, worse, tested = verdicts.count(BETTER), verdicts.count(WORSE), cells["verdict"].count()
        sentences.append(
            f"Of {tested} cells {better} {'is' if better == 1 else 'are'} better than the baseline and "
            f"{worse} {'is' if worse == 1 else 'are'} worse beyond chance (q < 0.05 and an interval "
            f"without 0, marked {MARK})."
        )
        diagonal = best_sources(transfer.matrix)["own_against_rest"].drop_nulls().to_list()
        if diagonal:
            sentences.append(
                "The target's own source (the diagonal) is better than every other one on "
                f"{diagonal.count(BETTER)} of {len(diagonal)} targets and worse than one on {diagonal.count(WORSE)}; "
                "on the others the pairs do not tell."
            )
    texts = [" ".join(sentences), *cautions(transfer)]
    return [Paragraph(text=text) for text in texts]


def cautions(transfer: Transfer) -> list[str]:
    """List what makes the matrix less certain than it looks."""
    cells, sentences = transfer.matrix.cells, list[str]()
    dropped = int(cells["dropped"].sum())
    most = int(str(cells["pairs"].max()))
    if most == 1:
        sentences.append("No cell has more than one pair, so there are no intervals and no tests.")
    elif most < FEWEST_OF_VERDICT:
        sentences.append(f"No cell has {FEWEST_OF_VERDICT} pairs, so there are no tests.")
    if dropped:
        were = "pair was" if dropped == 1 else "pairs were"
        sentences.append(f"{number(dropped)} {were} dropped: one side did not finish with a finite result.")
    bare = cells.group_by("target").agg(pl.col("pairs").sum()).filter(pl.col("pairs") == 0)["target"].sort()
    if len(bare):
        sentences.append(f"Without any pair: {', '.join(bare)}.")
    if transfer.left_out:
        paths = f"{transfer.paths.source}, {transfer.paths.target} or {transfer.paths.pair}"
        trials = "1 trial has" if transfer.left_out == 1 else f"{number(transfer.left_out)} trials have"
        sentences.append(f"{trials} no {paths} and {'was' if transfer.left_out == 1 else 'were'} left out.")
    return sentences


def conclusions(transfer: Transfer) -> list[Block]:
    """Return the tables of what the matrix says, and how their numbers are made."""
    return [
        Heading(text="Best source of each target"),
        _best_table(transfer),
        Heading(text="How general sources are"),
        _generality_table(transfer),
        *_similarity(transfer),
        Heading(text="How these numbers are made"),
        *notes(transfer),
    ]


def _best_table(transfer: Transfer) -> Table:
    rows: list[list[str]] = []
    for row in best_sources(transfer.matrix).iter_rows(named=True):
        decimals = transfer.shading.decimals(row["unit"])
        rows.append(
            [
                row["target"],
                row["best"] or "none beyond chance",
                f"{row['leading']}: {_with_interval(row['mean'], row['low'], row['high'], decimals)}",
                *(change(row[name], decimals) for name in ("own", "others")),
                row["own_against_rest"] or MISSING,
            ]
        )
    header = ["Target", "Best source", "Largest mean", "Own source", "Mean of the others", "Own against the others"]
    return Table(caption="The diagonal against the rest of each column", header=header, rows=rows, labels=2)


def _generality_table(transfer: Transfer) -> Table:
    rows: list[list[str]] = []
    for row in generality(transfer.matrix).iter_rows(named=True):
        decimals = transfer.shading.decimals(row["unit"]) + 1
        rows.append(
            [
                row["source"],
                row["unit"],
                f"{row['better']} of {row['targets']}",
                f"{row['worse']} of {row['targets']}",
                *(change(row[name], decimals) for name in ("mean", "elsewhere")),
                _with_interval(row["middle"], row["middle_low"], row["middle_high"], decimals),
                number(row["improvement"]),
            ]
        )
    header = ["Source", "Unit", "Better beyond chance", "Worse", "Mean of the row"]
    header += ["Without its own target", "Middle half of all pairs", "P(better)"]
    return Table(caption="Against the baseline, over targets", header=header, rows=rows, labels=2)


def _with_interval(value: float, low: float | None, high: float | None, decimals: int) -> str:
    """Return a change, with its interval where it has one."""
    shown = change(value, decimals)
    if low is None or high is None:
        return shown
    return f"{shown} ({change(low, decimals)} to {change(high, decimals)})"


def _similarity(transfer: Transfer) -> list[Block]:
    alike = similarity(transfer.matrix)
    if not alike.filter(pl.col("one") != pl.col("other"))["r"].count():
        return []
    rows: list[list[str]] = []
    for (source,), row in alike.group_by("one", maintain_order=True):
        cells = [str(source)]
        for r, low, high in row.select("r", "low", "high").rows():
            is_known = low is not None and high is not None and low != high
            interval = f" ({low:.2f} to {high:.2f})" if is_known else ""
            cells.append(MISSING if r is None else f"{r:.2f}{interval}".replace("-", "−"))
        rows.append(cells)
    header = ["Source", *transfer.matrix.sources]
    about = "Correlation r of every two rows of the matrix, with its 95 % interval"
    return [Heading(text="Which sources are alike"), Table(caption=about, header=header, rows=rows)]


def notes(transfer: Transfer) -> list[Paragraph]:
    """Explain how the numbers are computed."""
    texts = (
        "A pair is a source's result and the baseline's on one target with one seed "
        f"({transfer.paths.pair}); several trials of one source, target and seed count by their mean. A cell is the "
        "mean change over its pairs.",
        f"Intervals are {transfer.matrix.interval.describe()}. p is two-sided, of the paired t-test of the "
        "changes, or, where at most half of the changes are distinct, the larger of it and the sign-flip test's; a "
        f"cell of fewer than {FEWEST_OF_VERDICT} pairs has none. q is p adjusted for the number of cells (Benjamini "
        "and Hochberg). A cell is better or worse beyond chance where q < 0.05 and the interval excludes 0. The own "
        "source is tested against each other one in the same way, with Holm's correction.",
        "The middle half is the interquartile mean of the changes of all pairs on all targets of a unit. Its 95 % "
        "interval is Student's, from the variance within targets (Tukey and McLaughlin 1963), given from five targets "
        "with five pairs each on. P(better) is the probability that a trial is better than one of the baseline on the "
        "same target (Agarwal et al. 2021).",
        "A colour stands for the end of the interval next to 0, so that what may be no change is white; a cell "
        "without an interval has a quarter of its colour. The colours end at the largest change, or at four times "
        "the changes' upper quartile where that is less, so that one source that fails does not pale the others.",
    )
    return [Paragraph(text=text) for text in texts]
