"""The report of one study: what it found, its best trials, averaged against raw parameters, its figures, its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from graft.files import OutputError
from graft.report import dropout_figures, figures, html, markdown
from graft.report.document import Block, Document, Heading, Paragraph, Picture, Table
from graft.report.drawing import look
from graft.report.map_figure import map_figure
from graft.report.powers_figure import powers_figure
from graft.report.selection import series_label, shown
from graft.report.words import MISSING, number, parameter, percent, percent_with_margin, with_margin
from search.analysis.dropout import MEASURES
from search.analysis.summary import StudySummary

WRITERS: dict[str, Callable[[Document, Path], None]] = {".html": html.write, ".md": markdown.write}
"""Ending of a file -> who writes it."""

_ARROWS = {1: "↓", -1: "↑"}
_MOST_GROUPS = 300
_PORTIONS = ("best", "best 1 %", "best 10 %")


def render(summary: StudySummary, path: Path) -> None:
    """Write the report to `path`: one .html file, or an .md file and its figures as `<stem>_figure1.svg` beside it.

    Raises OutputError for another ending.
    """
    if path.suffix not in WRITERS:
        raise OutputError(f"{path}: the ending must be one of {', '.join(WRITERS)}")
    WRITERS[path.suffix](document(summary), path)


def document(summary: StudySummary) -> Document:
    """The report in no format yet."""
    blocks = [*_opening(summary), *(_results(summary) if summary.best.height else [_nothing()])]
    return Document(title=f"Study {summary.name}", blocks=blocks)


def _nothing() -> Paragraph:
    return Paragraph(text="No trial has ended with a result yet, so there is nothing to compare and no figure to draw.")


def _results(summary: StudySummary) -> list[Block]:
    return [
        *_best(summary),
        *_averages(summary),
        *_both_ways(summary),
        *_diagnostics(summary),
        Heading(text="Figures"),
        _figure_1(summary),
        *_figures_2_and_3(summary),
        _figure_4(summary),
        *_figure_5(summary),
        *_map_figures(summary),
        *_groups(summary),
        Heading(text="How these numbers are made"),
        *_notes(),
    ]


def _opening(summary: StudySummary) -> Iterable[Block]:
    started = f", started {summary.created_at:%Y-%m-%d %H:%M} UTC" if summary.created_at else ""
    total = sum(summary.counts.values())
    yield Paragraph(
        text=f"The study is {summary.state}{started}. Its objective is to {summary.direction} {summary.objective}; "
        f"{number(total)} of {number(summary.planned)} planned trials exist.{_lanes(summary)}"
    )
    yield from (Paragraph(text=sentence) for sentence in _findings(summary))
    if total:
        rows = [[state, number(count), f"{100 * count / total:.1f} %"] for state, count in summary.counts.items()]
        yield Table(caption="Trials by state", header=["State", "Trials", "Share"], rows=rows)


def _lanes(summary: StudySummary) -> str:
    if not summary.lane_room:
        return ""
    steps, room = number(summary.lane_steps), number(summary.lane_room)
    return f" Lane utilisation is {100 * summary.lane_steps / summary.lane_room:.1f} % ({steps} of {room} lane-steps)."


def _findings(summary: StudySummary) -> Iterable[str]:
    if summary.best.height:
        best = summary.best.row(0, named=True)
        yield f"The best trial is {best['number']}, with {summary.objective} = {number(best['objective'])}."
    own = summary.statistics.filter(pl.col("kept") == "best").head(1).select("name", "condition")
    compared = summary.statistics.join(own, on=["name", "condition"], maintain_order="left")
    compared = compared.filter(pl.col("kept") == "best", pl.col("change").is_not_null())
    compared = compared.unique(["variant", "counted"], keep="first", maintain_order=True)
    for (variant,), rows in compared.group_by("variant", maintain_order=True):
        changes = [
            f"{percent_with_margin(row['change'], row['change_margin'])} ({row['portion']})"
            for row in rows.iter_rows(named=True)
        ]
        row = rows.row(0, named=True)
        yield (
            f"{look(str(variant)).label} changes {series_label((row['name'], row['condition']))} "
            f"({'less' if row['sign'] > 0 else 'more'} is better) against the raw parameters by {', '.join(changes)}."
        )


def _best(summary: StudySummary) -> Iterable[Block]:
    best = summary.best
    yield Heading(text="Best trials")
    rows = [
        [summary.objective, *map(number, best["objective"])],
        ["group", *map(str, best["group_number"])],
        ["state", *best["state"]],
        ["steps", *map(number, best["steps"])],
        *([path, *map(parameter, values)] for path, values in summary.varying.items()),
    ]
    caption = f"The {best.height} best trials and their sampled parameters" if best.height > 1 else "The only trial"
    yield Table(caption=caption, header=["Trial", *map(str, best["number"])], rows=rows)
    if summary.shared:
        pairs = ", ".join(f"{path} = {parameter(value)}" for path, value in summary.shared.items())
        yield Paragraph(text=f"The same in all of them: {pairs}.")


def _averages(summary: StudySummary) -> Iterable[Block]:
    several = summary.statistics["variant"].n_unique() > 1
    yield Heading(text="Averaged against raw parameters" if several else "Metrics")
    if not several:
        grid = "These are the raw parameters; their averages are a grid, Figure 5."
        alone = "The study reports one variant of its parameters, so there is nothing to compare it with."
        yield Paragraph(text=grid if summary.powers.height else alone)
    for kept, words in (("best", "best"), ("last", "last kept")):
        caption = (
            f"Best trials, each with its {words} validation; ↓ less or ↑ more is better; ± is half a 95 % interval"
        )
        yield _statistics_table(summary.statistics.filter(pl.col("kept") == kept), caption, several)
    if summary.groups.height > 1 and summary.across_groups.height:
        yield _across_table(summary)


def _both_ways(summary: StudySummary) -> Iterable[Block]:
    found = summary.both_ways
    if found.is_empty():
        return
    rows = [
        [
            series_label((row["name"], row["condition"])),
            row["variant"],
            number(row["pairs"]),
            *map(number, (row["trained"], row["value"], row["mean"])),
            MISSING if row["pairs"] < 2 else f"{number(row['low'])} to {number(row['high'])}",
            MISSING if row["pairs"] < 2 else number(row["p"]),
        ]
        for row in found.iter_rows(named=True)
    ]
    caption = (
        "The same weights with the scorer of training and with that of validation, last validations, paired by trial"
    )
    header = ["Metric", "Variant", "Trials", "As trained", "As validated", "Change", "95 % interval", "p"]
    yield Table(caption=caption, header=header, rows=rows, labels=2, folded=len(rows) > 24)


def _diagnostics(summary: StudySummary) -> Iterable[Block]:
    found = summary.diagnostics
    if found.is_empty():
        return
    rows = [
        [series_label((name, condition)), variant, number(trials), number(value)]
        for name, condition, variant, trials, value in found.rows()
    ]
    caption = "Diagnostics of attention, each trial with its last validation"
    header = ["Diagnostic", "Variant", "Trials", "Mean"]
    yield Table(caption=caption, header=header, rows=rows, labels=2, folded=len(rows) > 12)


def _statistics_table(statistics: pl.DataFrame, caption: str, several: bool) -> Table:
    rows: list[list[str]] = []
    for (name, condition, variant), cell in statistics.group_by("name", "condition", "variant", maintain_order=True):
        by_portion = {row["portion"]: row for row in cell.iter_rows(named=True)}
        first, portions = by_portion["best"], [by_portion[portion] for portion in _PORTIONS]
        series = series_label((str(name), str(condition)))
        row = [f"{series} {_ARROWS[first['sign']]}", str(variant), number(first["trials"])]
        row += [with_margin(each["value"], each["margin"]) for each in portions]
        row += [percent_with_margin(each["change"], each["change_margin"]) for each in portions] if several else []
        rows.append(row)
    header = ["Metric", "Variant", "Trials", "Best", "Best 1 %", "Best 10 %"]
    changes = ["Change of best", "of best 1 %", "of best 10 %"] if several else []
    return Table(caption=caption, header=[*header, *changes], rows=rows, labels=2)


def _across_table(summary: StudySummary) -> Table:
    rows = [
        [
            series_label((row["name"], row["condition"])),
            row["variant"],
            row["portion"],
            f"{row['better']} of {row['groups']}",
            percent(row["median"]),
            MISSING if row["low"] is None else f"{percent(row['low'])} to {percent(row['high'])}",
        ]
        for row in summary.across_groups.iter_rows(named=True)
    ]
    header = ["Metric", "Variant", "Portion", "Better than raw in groups", "Median change", "95 % interval"]
    return Table(caption="The same comparison within each group", header=header, rows=rows, labels=3)


def _left_out(numbers: str, reason: str) -> Paragraph:
    return Paragraph(text=f"Left out: {numbers}. {reason}")


def _figure_1(summary: StudySummary) -> Block:
    if summary.groups.height < 2:
        reason = "The trials form one group" if summary.groups.height else "No group has several trials"
        return _left_out("Figure 1, the best metrics per group", f"{reason}; Figure 4 shows them all.")
    if not shown(summary):
        return _left_out("Figure 1, the best metrics per group", _ALL_ZERO)
    ground = "Points are groups"
    if summary.gap_trend["gap"].n_unique() > 1:
        ground += (
            "; lines join the medians over groups of gap 0, 1–2, 3–6, 7–14 and so on, thick bars their 95 % intervals"
        )
    else:
        ground += ", in each panel in the order of their raw values"
    caption = f"Best metrics per group: the best trial and the means of the best portions of each group. {ground}."
    return Picture(number=1, caption=caption, svg=figures.groups_figure(summary))


_ALL_ZERO = "All metrics are 0 in the best trials."


def _figures_2_and_3(summary: StudySummary) -> list[Block]:
    dropout, trend = summary.dropout, summary.dropout.trend
    if dropout.pooled.is_empty():
        return [_left_out("Figures 2 and 3, dropout of the best trials", "The study samples no dropout rate.")]
    if trend["gap"].n_unique() > 1:
        return [_figure_by_gap(summary, measure, place) for place, measure in enumerate(MEASURES, 2)]
    within = "in their groups, averaged over groups" if summary.groups.height > 1 else "among all"
    caption = (
        f"Mean dropout rates of the best trials {within}, with the number of trials in each portion. "
        "Bars are 95 % intervals."
    )
    reason = "It needs groups of different gaps, with a known vocabulary, width and value width."
    return [
        Picture(number=2, caption=caption, svg=dropout_figures.dropout_by_portion_figure(summary, 2)),
        _left_out("Figure 3, dropout by generalisation gap and extra dimensions", reason),
    ]


_MEASURES = {
    "width_multiplier": "embedding dimension multiplier d / (v − 1)",
    "value_coefficient": "value dimension coefficient (d_v − v + 1) / (d − v + 1), 0 where d = v − 1",
}


def _figure_by_gap(summary: StudySummary, measure: str, place: int) -> Picture:
    caption = (
        "Mean dropout rates of the best trials of each group by generalisation gap, for groups up to the median "
        f"{_MEASURES[measure]}, and above it. Points are means over groups of gap 0, 1–2, 3–6, 7–14 and so on, "
        "bars 95 % intervals over five groups or more."
    )
    return Picture(number=place, caption=caption, svg=dropout_figures.dropout_by_gap_figure(summary, measure, place))


def _figure_4(summary: StudySummary) -> Block:
    if not shown(summary):
        return _left_out("Figure 4, the distribution of all trials", _ALL_ZERO)
    caption = (
        "All trials, each with its best validation: the share that is at least as good as the value below. "
        "Where a line crosses 1 % is the threshold of the best 1 %."
    )
    return Picture(number=4, caption=caption, svg=figures.distribution_figure(summary, 4))


def _figure_5(summary: StudySummary) -> Iterable[Block]:
    """The grid of averages, where the study has one."""
    powers = summary.powers
    if powers.is_empty():
        return
    minimize = summary.direction == "minimize"
    most: Any = powers["trials"].max()
    best = powers.drop_nulls("change").sort("change", descending=not minimize).head(1)
    winner = "".join(_winner(row, minimize) for row in best.iter_rows(named=True))
    caption = (
        f"Averages from one training run: the change of the mean {summary.objective.split('/')[0]} over "
        f"{number(most)} trials, each with its last validation, against the raw parameters "
        f"({number(powers['raw'][0])}), for EMA power κ and BEMA power η (paper 003, section 6).{winner}"
    )
    yield Picture(number=5, caption=caption, svg=powers_figure(powers, 5))


def _map_figures(summary: StudySummary) -> Iterable[Block]:
    """The objective's metric over each two numbers of its conditions."""
    metric = summary.objective.split("/")[0]
    for place, ((across, up), cells) in enumerate(summary.maps.group_by("across", "up", maintain_order=True), 6):
        caption = f"{metric} by {across} and {up}: means over trials, raw parameters, each with its last validation"
        panels = ", a panel for each scorer." if cells["scorer"].n_unique() > 1 else "."
        yield Picture(number=place, caption=caption + panels, svg=map_figure(cells, place))


def _winner(row: dict[str, Any], minimize: bool) -> str:
    eta = "" if row["eta"] is None else f", η = {row['eta']:g}"
    change = percent_with_margin(row["change"], row["margin"])
    return f" The {'lowest' if minimize else 'highest'} is κ = {row['kappa']:g}{eta}: {change}."


def _groups(summary: StudySummary) -> Iterable[Block]:
    if summary.groups.height < 2:
        return
    yield Heading(text="Groups")
    groups = summary.groups.head(_MOST_GROUPS)
    if groups.height < summary.groups.height:
        yield Paragraph(text=f"The table has the first {_MOST_GROUPS} of {number(summary.groups.height)} groups.")
    sizes = [name for name in groups.columns[1:] if groups[name].null_count() < groups.height]
    labels, cells = _group_cells(summary)
    rows = [
        [str(group["group_number"]), *(number(group[name]) for name in sizes), *cells.get(group["group_number"], [])]
        for group in groups.iter_rows(named=True)
    ]
    header = ["group", *(name.replace("_", " ") for name in sizes), *labels]
    yield Table(caption=f"{groups.height} groups", header=header, rows=rows, folded=groups.height > 12)


def _group_cells(summary: StudySummary) -> tuple[list[str], dict[int, list[str]]]:
    """The statistics of the objective's metric: labels of the columns, group -> cells."""
    statistics = summary.group_statistics
    own = statistics.join(statistics.head(1), on=["name", "condition"], how="semi", maintain_order="left")
    columns = own.select("variant", "portion").unique(maintain_order=True).rows()
    labels = [f"{own['name'][0]} {variant} {portion}" for variant, portion in columns]
    cells: dict[int, dict[tuple[str, str], str]] = {}
    for row in own.iter_rows(named=True):
        cells.setdefault(row["group_number"], {})[row["variant"], row["portion"]] = number(row["value"])
    return labels, {group: [known.get(column, MISSING) for column in columns] for group, known in cells.items()}


def _notes() -> Sequence[Paragraph]:
    texts = (
        "Finished and pruned trials count; diverged, failed and unfinished ones do not. A trial's best validation is "
        "the best of those that were kept. The best 1 % and 10 % are rounded down to whole trials, and have at least "
        "one.",
        "Changes are (averaged − raw) / |raw|. Raw and averaged parameters are ranked on their own, so that the best "
        "trials of the two need not be the same ones.",
        "Intervals are normal and take the groups as given; those of a change use that both variants come from the "
        "same trials. Medians over groups have order-statistic intervals. Means of fewer than five trials, and "
        "medians over fewer than six groups, have none.",
    )
    return [Paragraph(text=text) for text in texts]
