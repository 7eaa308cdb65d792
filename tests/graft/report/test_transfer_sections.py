"""The sections about transfers: which sources a target's figures show, and their numbers against plain Python."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from scipy import stats

from graft.report.data import StudyData
from graft.report.rendering.document import Picture, Table
from graft.report.sections import FigureNumbers
from graft.report.sections.transfer_curves import TransferCurves
from graft.report.sections.transfer_lines import TransferLines
from graft.report.sections.transfer_scores import TransferScores
from graft.report.sections.transfer_sizes import TransferSizes
from graft.stored.studies import TransferTask
from spaces.settings import Objective
from tests.support.synthetic_studies import metrics_frame, study_data, study_row, trial_row, trials_frame

pytestmark = pytest.mark.fast

PAIRS = 3
STEPS = (10, 20)
FIGURES = FigureNumbers(own=7, sections={})
ACCURACY = Objective(direction="maximize", metric="accuracy", variant="raw", at="last")
PERPLEXITY = Objective(direction="minimize", metric="perplexity", variant="raw", at="last")
TASKS = {
    "add": ("add", 32, 2, ACCURACY, True),
    "add_wide": ("add", 64, 2, ACCURACY, True),
    "add_attention": ("add", 32, 2, ACCURACY, False),
    "text": ("language", 32, 2, PERPLEXITY, True),
}
"""Name -> its data, width, depth, objective, and whether it is a target."""
SOURCES = ("baseline", "add", "add_attention", "text", "text symmetrised")


def score(source: str, target: str, pair: int, step: int, condition: str = "") -> float:
    return random.Random(f"{source} {target} {pair} {step} {condition}").random()


def tasks() -> dict[str, TransferTask]:
    return {
        name: TransferTask(
            objective=objective,
            config={"task": {"name": data}, "model": {"width": width, "depth": depth}},
            is_target=is_target,
        )
        for name, (data, width, depth, objective, is_target) in TASKS.items()
    }


def transfer() -> StudyData:
    """Stage two of all sources on all targets, and a trial of stage one."""
    targets = [name for name, task in tasks().items() if task.is_target]
    rows = [trial_row(0, 0, "finished", 0.5, params={"transfer.task": "add"})]
    metrics: list[Any] = [(0, step, "accuracy", "raw", "", 0.5) for step in STEPS]
    for source in SOURCES:
        for target in targets:
            for pair in range(PAIRS):
                number = len(rows)
                params = {"architecture.source": source, "transfer.target": target, "pair": pair}
                name = tasks()[target].objective.metric
                rows.append(trial_row(number, 1, "finished", score(source, target, pair, STEPS[-1]), params=params))
                for step in STEPS:
                    metrics.append((number, step, name, "raw", "", score(source, target, pair, step)))
                    metrics.append((number, step, "loss", "raw", "", 1 + score(source, target, pair, step)))
                    metrics += [
                        (number, step, name, "raw", f"length={length}", score(source, target, pair, step, str(length)))
                        for length in (4, 5, 6)
                    ]
    row = study_row(objective="accuracy/raw", direction="maximize")
    data = study_data(row, trials_frame(rows), metrics_frame(metrics))
    seconds = pl.DataFrame({"number": range(len(rows)), "seconds": [float(1 + row % 3) for row in range(len(rows))]})
    return replace(data, load_transfer_tasks=tasks, load_seconds=lambda: seconds)


def test_no_section_applies_to_a_study_that_is_no_transfer() -> None:
    data = study_data(study_row(), trials_frame([trial_row(0, 0, "finished", 0.5)]), metrics_frame([]))
    for section in (TransferScores, TransferCurves, TransferSizes, TransferLines):
        assert not section(data=data).applies


def test_a_targets_own_sources_were_found_on_the_same_data_whatever_the_size() -> None:
    section = TransferScores(data=transfer())
    assert section.sources == list(SOURCES)
    assert section.targets == ["add", "add_wide", "text"]
    assert section.own_sources("add_wide") == ["baseline", "add", "add_attention"]
    assert section.own_sources("text") == ["baseline", "text", "text symmetrised"]


def test_the_tables_have_means_over_pairs_with_students_interval_and_times() -> None:
    [scores, times] = TransferScores(data=transfer()).blocks(FIGURES)
    assert isinstance(scores, Table)
    assert isinstance(times, Table)
    assert scores.header == ["Source", "add", "add_wide", "text"]
    values = [score("add_attention", "text", pair, STEPS[-1]) for pair in range(PAIRS)]
    half = stats.sem(values) * stats.t.ppf(0.975, PAIRS - 1)
    [row] = [row for row in scores.rows if row[0] == "add_attention"]
    mean, margin = (float(part) for part in row[3].split(" ± "))
    assert mean == pytest.approx(statistics.mean(values), rel=1e-2)
    assert margin == pytest.approx(half, rel=0.1)
    assert {cell for row in times.rows for cell in row[1:]} == {"20"}  # 1, 2 and 3 seconds for 100 steps


def test_curves_are_those_of_each_targets_objective_and_own_sources() -> None:
    section = TransferCurves(data=transfer())
    pairs = {(source, target) for source, target in section.lines.select("series", "title").unique().rows()}
    assert pairs == {(source, target) for target in section.targets for source in section.own_sources(target)}
    for row in section.lines.iter_rows(named=True):
        assert row["mean"] == score(row["series"], row["title"], int(row["pair"]), row["x"])
    [picture] = section.blocks(FIGURES)
    assert isinstance(picture, Picture)


def test_lines_over_sizes_join_targets_on_the_same_data_and_a_gain_is_paired_and_turned() -> None:
    section = TransferSizes(data=transfer())
    lines = section.lines
    assert set(lines["title"]) == {"add"}  # `text` has one size
    assert lines["x"].unique().sort().to_list() == [32, 64]
    target = {32: "add", 64: "add_wide"}
    for row in lines.filter(pl.col("kind") == "gain").iter_rows(named=True):
        where = target[int(row["x"])]
        gains = [
            score(row["series"], where, pair, STEPS[-1]) - score("baseline", where, pair, STEPS[-1])
            for pair in range(PAIRS)
        ]
        assert row["mean"] == pytest.approx(statistics.mean(gains))
    assert [block.number for block in section.blocks(FIGURES) if isinstance(block, Picture)] == [7, 8]


def test_perplexities_of_training_over_sizes_are_those_of_the_last_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "text_wide", ("language", 64, 2, PERPLEXITY, True))
    section, where = TransferSizes(data=transfer()), {32: "text", 64: "text_wide"}
    lines = section.lines.filter(pl.col("kind") == "training")
    assert set(lines["title"]) == {"language"}  # accuracies have none
    assert set(lines["series"]) == set(SOURCES)
    for row in lines.iter_rows(named=True):
        values = [math.exp(1 + score(row["series"], where[int(row["x"])], pair, STEPS[-1])) for pair in range(PAIRS)]
        assert row["mean"] == pytest.approx(statistics.mean(values))
    means = {(row["series"], row["x"]): row["mean"] for row in lines.iter_rows(named=True)}
    for row in section.lines.filter(pl.col("kind") == "training_gain").iter_rows(named=True):
        assert row["mean"] == pytest.approx(means["baseline", row["x"]] - means[row["series"], row["x"]])
    assert [block.number for block in section.blocks(FIGURES) if isinstance(block, Picture)] == [7, 8, 9, 10]


def test_lines_over_conditions_are_of_the_targets_own_sources() -> None:
    rows = TransferLines(data=transfer()).lines
    assert set(rows["title"]) == {"accuracy on add", "accuracy on add_wide", "perplexity on text"}
    lines = rows.filter(title="perplexity on text")
    assert set(lines["series"]) == {"baseline", "text", "text symmetrised"}
    row = lines.row(by_predicate=(pl.col("series") == "text") & (pl.col("x") == 5), named=True)
    values = [score("text", "text", pair, STEPS[-1], "5") for pair in range(PAIRS)]
    assert row["mean"] == pytest.approx(statistics.mean(values))
