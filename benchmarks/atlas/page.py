"""The page of the atlas, from the kept trials alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.atlas.effects import Atlas, compare_atlases, detectable, find_effects, find_gaps, find_power
from benchmarks.atlas.picture import draw, signed
from benchmarks.atlas.plan import TaskPlan
from search.analysis.statistics.verdicts import BETTER, SURE, UNDECIDED, WORSE

MOST_SENTENCES = 10
_WHERE = {"in": "", "out": " out of distribution"}
Row = Mapping[str, Any]


def write_page(
    plan: Mapping[str, TaskPlan], kept: pl.DataFrame, earlier: Mapping[str, pl.DataFrame], folder: Path
) -> None:
    """Write results.md and matrix.svg into the folder; `earlier`: the trials of earlier atlases by name."""
    atlas = find_effects(kept)
    lines = list(_lines(plan, kept, atlas))
    for name, trials in earlier.items():
        lines += ["", *_again(name, find_effects(trials), atlas)]
    (folder / "results.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "matrix.svg").write_text(draw(atlas), encoding="utf-8")


def sentences(atlas: Atlas) -> list[str]:
    """Of each arm its surest cell among those told apart from no effect on a set that the baseline learned, by p."""
    learned = atlas.floors.filter("learned").select("task", "endpoint", "metric", "direction")
    cells = atlas.found.join(learned, on=["task", "endpoint"], how="inner", maintain_order="left")
    surest = cells.sort("p", maintain_order=True).unique("arm", keep="first", maintain_order=True).head(MOST_SENTENCES)
    return [_sentence(row) for row in surest.iter_rows(named=True)]


def _sentence(row: Row) -> str:
    where = f"on `{row['task']}`{_WHERE[row['endpoint']]}"
    if row["direction"] == "maximize":
        word = "raises" if row["mean"] > 0 else "lowers"
        size, *ends = (abs(row[key]) for key in ("mean", "wide_low", "wide_high"))
        interval = f"{_end(min(ends))} to {_end(max(ends))}"
        return f"`{row['arm']}` {word} {row['metric']} {where} by {size:.1f} points ({interval})."
    word = "lowers" if row["mean"] > 0 else "raises"
    size, *ends = (100 * abs(exp(-row[key] / 100) - 1) for key in ("mean", "wide_low", "wide_high"))
    return f"`{row['arm']}` {word} {row['metric']} {where} by {size:.1f} % ({_end(min(ends))} to {_end(max(ends))})."


def _say_power(atlas: Atlas) -> str:
    """Say how often an effect of one deviation is found, without a correction and with what this atlas' one left."""
    pairs = int(atlas.cells["pairs"].median() or 0)
    before = find_power(1, pairs)
    after = find_power(1, pairs, SURE * atlas.found.height / atlas.cells.height)
    return (
        f"{pairs} seeds find an effect of one standard deviation of the paired difference in {100 * before:.0f} % of "
        f"cases before any correction, and in {100 * after:.0f} % at the level that the correction leaves here: a pale "
        "cell is no evidence of no effect."
    )


def _end(size: float) -> str:
    """With one decimal, and never as 0 unless it is."""
    return f"{size:.1f}" if size >= 0.05 else f"{size:.1g}"


def _lines(plan: Mapping[str, TaskPlan], kept: pl.DataFrame, atlas: Atlas) -> Iterator[str]:
    trials = kept.select("task", "number", "state").unique()
    trained: list[str] = kept["task"].unique(maintain_order=True).to_list()
    yield "# An atlas of inductive biases: what came out"
    yield ""
    yield "Made from `trials.parquet` beside it by `python -m benchmarks.atlas page`; no line is written by hand."
    yield "[The plan](../atlas.md) says what is compared and by which rules."
    yield ""
    diverged = trials.filter(pl.col("state") == "diverged").height
    verdicts = atlas.cells["verdict"].to_list()
    yield (
        f"{trials.height:,} trials of {len(trained)} tasks, {diverged} of them diverged. Of {len(verdicts)} cells "
        f"{verdicts.count(BETTER)} are better than the baseline, {verdicts.count(WORSE)} worse, "
        f"{verdicts.count(UNDECIDED)} not told apart from it."
    )
    yield ""
    yield from _trained_by(kept)
    if missing := [name for name in plan if name not in trained]:
        yield ""
        yield f"Not trained: {', '.join(missing)}."
    yield ""
    yield "![The matrix: sets down, arms across, shaded where an effect is told apart from none](matrix.svg)"
    yield ""
    yield "## What it says"
    yield ""
    said = sentences(atlas)
    yield from (f"{number}. {text}" for number, text in enumerate(said, 1))
    yield from () if said else ("No cell is told apart from no effect.",)
    yield ""
    yield "Intervals are the corrected ones; of all that are told apart, at most 5 % are expected to miss."
    yield ""
    yield _say_power(atlas)
    yield ""
    counts = atlas.cells.group_by("arm", maintain_order=True).agg(
        better=(pl.col("verdict") == BETTER).sum(), worse=(pl.col("verdict") == WORSE).sum(), sets=pl.len()
    )
    rows = ([row["arm"], *(str(row[name]) for name in ("better", "worse", "sets"))] for row in _rows(counts))
    yield from _table(("arm", "better", "worse", "of sets"), rows)
    yield ""
    yield "## What was learned"
    yield ""
    yield from _table(("set", "metric", "baseline", "floor", "learned"), map(_floor_row, _rows(atlas.floors)))
    yield ""
    yield from _findings(kept, atlas)
    yield "## All cells that are told apart"
    yield ""
    header = ("arm", "set", "effect", "95 % interval", "corrected interval", "adjusted p")
    yield from _table(header, map(_found_row, _rows(atlas.found.sort("arm", "p", maintain_order=True))))


def _trained_by(kept: pl.DataFrame) -> Iterator[str]:
    """Which numerics and which steps trained how many trials: bits are those of the same ones alone."""
    trials = kept.unique(["task", "number"], maintain_order=True)
    counts = trials.group_by("numerics", "step_kind", maintain_order=True).agg(
        trials=pl.len(), tasks=pl.col("task").n_unique()
    )
    rows = ([str(row["numerics"]), row["step_kind"], f"{row['trials']:,}", str(row["tasks"])] for row in _rows(counts))
    yield from _table(("numerics version", "step", "trials", "tasks"), rows)


def _again(name: str, earlier: Atlas, atlas: Atlas) -> Iterator[str]:
    """Say which verdicts of an earlier atlas come out again."""
    both = compare_atlases(earlier, atlas)
    verdicts = (BETTER, WORSE, UNDECIDED)
    yield f"## The {name} atlas, trained again"
    yield ""
    same = both.filter(pl.col("verdict") == pl.col("again_verdict")).height
    turned = both.filter(
        (pl.col("verdict") != UNDECIDED)
        & (pl.col("again_verdict") != UNDECIDED)
        & (pl.col("verdict") != pl.col("again_verdict"))
    ).height
    yield (
        f"Of the {earlier.cells.height} cells of the {name} atlas (`{name}.parquet`, the same seeds) {both.height} are "
        f"here, {same} of them with the same verdict; of those told apart in both {turned} have turned. Each atlas is "
        "corrected over its own cells; [what else was changed](../atlas.md#changes)."
    )
    yield ""
    counts = {key: both.filter(verdict=key[0], again_verdict=key[1]).height for key in product(verdicts, verdicts)}
    rows = ([verdict, *(str(counts[verdict, other]) for other in verdicts)] for verdict in verdicts)
    yield from _table((f"in the {name} atlas", *(f"{word} here" for word in verdicts)), rows)


def _findings(kept: pl.DataFrame, atlas: Atlas) -> Iterator[str]:
    """Yield the three questions of the plan."""
    cells, lost = atlas.cells, atlas.floors.filter(~pl.col("learned"))
    unlearned = {*lost.select("task", "endpoint").rows(), *((task, "gap") for task in lost["task"])}
    asked = {
        "SSA against softmax out of distribution": cells.filter(
            (pl.col("arm") == "ssa") & (pl.col("endpoint") == "out")
        ),
        "Dropout and the gap": find_gaps(kept, "dropout"),
        "Learned splines against GELU": cells.filter(pl.col("arm") == "spline"),
    }
    for title, sets in asked.items():
        yield f"## {title}"
        yield ""
        better = sets.filter(pl.col("verdict") == BETTER).height
        worse = sets.filter(pl.col("verdict") == WORSE).height
        yield (
            f"Better on {better} of {sets.height} sets, worse on {worse}. The last column is the effect that the test "
            "would find four times in five, without a correction. † the baseline is not above the floor there, or on "
            "one of the two sets of a gap: such a change says nothing of generalisation."
        )
        yield ""
        header = ("set", "effect", "95 % interval", "adjusted p", "verdict", "found four times in five")
        yield from _table(header, (_finding_row(row, unlearned) for row in _rows(sets)))
        yield ""


def _floor_row(row: Row) -> Sequence[str]:
    learned = "yes" if row["learned"] else "no †"
    return _set_of(row), row["metric"], f"{row['value']:.3g}", f"{row['floor']:.3g}", learned


def _finding_row(row: Row, unlearned: Collection[tuple[str, ...]]) -> Sequence[str]:
    # Where all pairs are even, as with scores of 0 on both sides, nothing says what would have been found.
    power = f"{detectable(row['deviation'], row['pairs']):.1f}" if row["deviation"] else "unknown"
    name = f"{_set_of(row)}{' †' if (row['task'], row['endpoint']) in unlearned else ''}"
    return name, signed(row["mean"]), _ends(row, ""), f"{row['q']:.2g}", row["verdict"], power


def _found_row(row: Row) -> Sequence[str]:
    return row["arm"], _set_of(row), signed(row["mean"]), _ends(row, ""), _ends(row, "wide_"), f"{row['q']:.2g}"


def _set_of(row: Row) -> str:
    return f"{row['task']}, {row['endpoint']}"


def _ends(row: Row, prefix: str) -> str:
    return f"{signed(row[f'{prefix}low'])} to {signed(row[f'{prefix}high'])}"


def _rows(frame: pl.DataFrame) -> Iterator[Row]:
    return frame.iter_rows(named=True)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))
