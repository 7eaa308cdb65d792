"""The report of a study as a page: what stands in it, what is left out and why, and that nothing in it can act."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graft.files import OutputError
from graft.report.data import StudyData
from graft.report.rendering import formatting
from graft.report.rendering.document import Paragraph, Table
from graft.report.sections import FigureNumbers
from graft.report.sections.best_trials import BestTrials
from graft.report.sections.fingerprints import Fingerprints
from graft.report.study import document, read, render
from graft.stored.fingerprints import StoredFingerprint
from search.analysis.study.trials import best_trials, compare_parameters, count_states
from spaces.records import TrialResult
from storage import NewStudy, open_reader, open_store
from tests.support.databases import raw
from tests.support.report import EVIL, Page, assert_inert, evil_study, html
from tests.support.studies import OBJECTIVE, rate, trial, write_study
from tests.support.synthetic_studies import (
    metrics_frame,
    set_complement_study,
    study_data,
    study_row,
    trial_row,
    trials_frame,
)

OWN_OBJECTIVES = """
transfer: {tasks: {a: {space: {}, objective: {maximize: accuracy/raw}}, b: {space: {}}}}
search: {objective: {minimize: tvd/bema}}
"""
"""The text of a transfer whose tasks have objectives of their own."""


def synthetic(row: dict[str, Any] | None = None, **options: Any) -> StudyData:
    return study_data(row or study_row(), *set_complement_study(**options))


@pytest.fixture(scope="module")
def four_groups() -> StudyData:
    return synthetic(groups=4, members=250)


@pytest.fixture(scope="module")
def page_file(four_groups: StudyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of four groups, in a folder of its own; drawing it takes seconds."""
    folder = tmp_path_factory.mktemp("page")
    html(four_groups, folder)
    return folder / "page.html"


@pytest.fixture(scope="module")
def four_groups_page(page_file: Path) -> Page:
    return Page(page_file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def markdown(four_groups: StudyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of four groups in Markdown, in a folder with its figures."""
    path = tmp_path_factory.mktemp("markdown") / "my report.md"
    render(four_groups, path)
    return path


def test_a_page_has_all_figures_and_fetches_nothing(four_groups_page: Page) -> None:
    page = four_groups_page
    assert_inert(page)
    assert page.tags.count("svg") == page.tags.count("metadata") == 4
    assert [f"Figure {number}." in page.text for number in (1, 2, 3, 4)] == [True] * 4
    assert "Left out" not in page.text


def test_a_page_shows_the_numbers_of_the_study(four_groups: StudyData, four_groups_page: Page) -> None:
    page = four_groups_page
    best_ten = best_trials(four_groups.ended, "minimize")
    best = best_ten.row(0, named=True)
    assert f"The best trial is {best['number']}, with tvd/bema = {best['objective']:.3g}." in page.text
    wanted = four_groups.statistics.row(
        by_predicate=(pl.col("kept") == "best")
        & (pl.col("name") == "tvd")
        & (pl.col("variant") == "bema")
        & (pl.col("portion") == "best 10 %"),
        named=True,
    )
    assert f"−{-100 * wanted['change']:.1f} ± {100 * wanted['change_margin']:.1f} % (best 10 %)" in page.text
    assert f"{wanted['value']:.3g} ± " in page.text
    for state, count in count_states(four_groups.trials).items():
        assert f"{state} {count}" in page.text
    for path in compare_parameters(best_ten["params"]).varying:
        assert path in page.text


@pytest.mark.long
def test_markdown_has_its_figures_beside_it(markdown: Path) -> None:
    text = markdown.read_text(encoding="utf-8")
    for number in (1, 2, 3, 4):
        assert f"![Figure {number}](my%20report_figure{number}.svg)" in text
        svg = ElementTree.parse(markdown.with_name(f"my report_figure{number}.svg")).getroot()
        assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(markdown.parent.iterdir())) == 5


def test_the_rows_of_a_markdown_table_have_as_many_cells_as_its_header(markdown: Path) -> None:
    tables = re.findall(r"(?:^\|.*\|\n)+", markdown.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(tables) == 6
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1


def test_a_group_is_described_by_its_first_feasible_trial(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/graft.db") as store:
        new = NewStudy(
            "demo", space="", space_hash="", objective=OBJECTIVE, seed=0, trials=20, version="0.2.0", numerics=1
        )
        study = store.take_control(store.create_study(new), policy="full", objective=OBJECTIVE)
        study.start([trial(number) for number in range(20)], "worker")
        broken = {number: {"loss/raw <= 1": 1.0 if number in (0, 1, 10) else -1.0} for number in range(20)}
        result: dict[str, Any] = {"fence": 1, "state": "finished", "objective": 0.5}
        study.end([TrialResult(number=number, constraints=broken[number], **result) for number in range(20)])
    with open_reader(f"sqlite:///{tmp_path}/graft.db") as reader:
        groups = read(reader, "demo").groups
    assert groups.select("group_number", "trials", "task.length", "model.width").rows() == [(0, 8, 4, 8), (1, 9, 4, 8)]
    assert [json.loads(params)["optimizer.learning_rate"] for params in groups["params"]] == [rate(2), rate(11)]


def test_the_best_of_a_fingerprint_is_feasible(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with open_store(url) as store:
        write_study(store)
    raw(url, "UPDATE trials SET feasible = (number >= 5), fingerprint = number % 2 WHERE objective IS NOT NULL")
    conditions = [StoredFingerprint(number=number, torch=f"2.{number}", sources={}) for number in range(2)]
    with open_reader(url) as reader:
        data = replace(read(reader, "demo"), load_conditions=lambda: conditions)
        mixed = replace(data, study={**data.study, "space": OWN_OBJECTIVES})
        figures = FigureNumbers(own=1, sections={})
        [table], [unranked] = (Fingerprints(data=each).blocks(figures) for each in (data, mixed))
    assert isinstance(table, Table)
    assert isinstance(unranked, Table)
    assert table.header == ["fingerprint", "trials", "best tvd/bema", "torch"]
    assert table.rows == [["0", "7", "0.16", "2.0"], ["1", "7", "0.15", "2.1"]]
    assert [row[2] for row in unranked.rows] == ["–", "–"]


def test_trials_of_tasks_with_objectives_of_their_own_have_no_best_ones() -> None:
    one, own = (
        study_data(study_row(space=space), trials_frame([]), metrics_frame([])) for space in ("", OWN_OBJECTIVES)
    )
    assert BestTrials(data=one).applies
    assert not BestTrials(data=own).applies
    [first, *_] = [block for block in document(own).blocks if isinstance(block, Paragraph)]
    assert "Its objective is to maximize accuracy/raw on a, minimize tvd/bema on b; " in first.text


def test_another_ending_is_refused_with_the_choices(four_groups: StudyData, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"^[^\n]*page\.pdf: the ending must be one of \.html, \.md$"):
        render(four_groups, tmp_path / "page.pdf")
    assert list(tmp_path.iterdir()) == []


def test_texts_of_users_stay_texts_in_html(tmp_path: Path) -> None:
    page = html(evil_study(), tmp_path)
    assert_inert(page)
    assert page.text.count(EVIL) > 10


def test_texts_of_users_stay_texts_in_markdown(tmp_path: Path) -> None:
    render(evil_study(), tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert text.startswith('# Study \\<script\\>alert("1 \\& 2")\\</script\\>\\|\\`\\$x\\_1\\$\\`\n')
    assert not re.search(r"(?<!\\)<", text)
    for path in tmp_path.glob("*.svg"):
        assert "script" not in {element.tag.rpartition("}")[2] for element in ElementTree.parse(path).iter()}


def test_a_study_of_nothing_says_so(tmp_path: Path) -> None:
    page = html(study_data(study_row(state="running"), trials_frame([]), metrics_frame([])), tmp_path)
    assert_inert(page)
    assert "0 of 1,000 planned trials exist" in page.text
    assert "No trial has ended with a result yet" in page.text


def test_a_study_whose_trials_all_run_or_failed_shows_its_counts(tmp_path: Path) -> None:
    rows = [trial_row(0, 0, "running", None), trial_row(1, 0, "failed", None), trial_row(2, 0, "failed", None)]
    page = html(study_data(study_row(), trials_frame(rows), metrics_frame([(0, 1, "tvd", "raw", "", 0.5)])), tmp_path)
    assert "failed 2 66.7 %" in page.text
    assert "No trial has ended with a result yet" in page.text
    assert "svg" not in page.tags


def test_a_study_with_results_but_no_metrics_still_has_its_best_trials(tmp_path: Path) -> None:
    page = html(study_data(study_row(), trials_frame([trial_row(0, 0, "finished", 0.5)]), metrics_frame([])), tmp_path)
    assert "The best trial is 0" in page.text
    assert "svg" not in page.tags


@pytest.mark.long
def test_eight_trials_in_one_group(tmp_path: Path) -> None:
    page = html(synthetic(groups=1, members=8), tmp_path)
    assert_inert(page)
    assert page.tags.count("svg") == 2
    assert "Left out: Figure 1, the best metrics per group. The trials form one group; Figure 4 shows" in page.text
    assert "Left out: Figure 3" in page.text


@pytest.mark.long
def test_groups_of_one_trial(tmp_path: Path) -> None:
    page = html(synthetic(groups=30, members=1), tmp_path)
    assert "Left out: Figure 1, the best metrics per group. No group has several trials" in page.text
    assert "by generalisation gap, coloured by the dropout rate of embeddings" in page.text
    assert page.tags.count("svg") == 3


@pytest.mark.long
def test_one_trial(tmp_path: Path) -> None:
    page = html(synthetic(groups=1, members=1), tmp_path)
    assert_inert(page)
    assert "The only trial" in page.text


@pytest.mark.long
def test_without_averages_there_is_no_comparison(tmp_path: Path) -> None:
    page = html(synthetic(study_row(objective="tvd/raw"), groups=2, members=30, variants=("raw",)), tmp_path)
    assert_inert(page)
    assert "one variant of its parameters" in page.text
    assert "Change of best" not in page.text
    assert page.tags.count("svg") == 4


@pytest.mark.long
def test_three_variants(tmp_path: Path) -> None:
    page = html(synthetic(groups=2, members=30, variants=("raw", "ema", "bema")), tmp_path)
    assert_inert(page)
    assert "EMA changes tvd" in page.text
    assert "BEMA changes tvd" in page.text


def without(trials: pl.DataFrame, pattern: str) -> pl.DataFrame:
    """Return the trials with other names for the parameters that match the pattern."""
    return trials.with_columns(pl.col("params").str.replace_all(pattern, "other"))


@pytest.mark.long
def test_without_sampled_dropout_its_figures_are_left_out(tmp_path: Path) -> None:
    trials, metrics = set_complement_study(groups=2, members=30)
    page = html(study_data(study_row(), without(trials, "dropout"), metrics), tmp_path)
    assert "Left out: Figures 2 and 3, dropout of the best trials. The study samples no dropout rate." in page.text
    assert page.tags.count("svg") == 2


@pytest.mark.long
def test_without_a_gap_groups_stand_in_order_and_dropout_by_portion(tmp_path: Path) -> None:
    trials, metrics = set_complement_study(groups=3, members=30)
    page = html(study_data(study_row(), without(trials, "generalisation_gap"), metrics), tmp_path)
    assert_inert(page)
    assert page.tags.count("svg") == 3
    assert "averaged over groups" in page.text
    assert "lines join the medians" not in page.text


@pytest.mark.long
def test_another_task_that_maximises_accuracy(tmp_path: Path) -> None:
    rows = [trial_row(number, number // 10, "finished", number / 20, task="copy") for number in range(20)]
    metrics = [
        (number, 1, "accuracy", variant, condition, number / 20 + (variant == "ema") / 100)
        for number in range(20)
        for variant in ("raw", "ema")
        for condition in ("", "length=64")
    ]
    row = study_row(objective="accuracy/ema/length=64", direction="maximize")
    page = html(study_data(row, trials_frame(rows), metrics_frame(metrics)), tmp_path)
    assert_inert(page)
    assert "The best trial is 19, with accuracy/ema/length=64 = 0.95." in page.text
    assert "EMA changes accuracy" not in page.text  # of twenty trials no change has an interval
    assert "accuracy ↑" in page.text
    assert page.tags.count("svg") == 2


def test_metrics_that_are_always_0_are_not_drawn(tmp_path: Path) -> None:
    rows = [trial_row(number, 0, "finished", 0.0) for number in range(4)]
    metrics = [(number, 1, "tvd", variant, "", 0.0) for number in range(4) for variant in ("raw", "bema")]
    page = html(study_data(study_row(), trials_frame(rows), metrics_frame(metrics)), tmp_path)
    assert "Left out: Figure 4, the distribution of all trials. All metrics are 0 in the best trials." in page.text


@pytest.mark.long
def test_many_groups_are_folded_away(tmp_path: Path) -> None:
    page = html(synthetic(groups=20, members=4, validations=1), tmp_path)
    assert page.tags.count("details") == 1
    assert_inert(page)


@pytest.mark.long
def test_the_same_study_gives_the_same_page(four_groups: StudyData, page_file: Path, tmp_path: Path) -> None:
    render(four_groups, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == page_file.read_bytes()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001234, "0.00123"),
        (-0.5, "−0.5"),
        (1.5e-7, "1.5e−7"),
        (12000, "12,000"),
        (12000.0, "12,000"),
        (123456.7, "1.23e5"),
        (0.0, "0"),
        (None, "–"),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


@given(st.floats(-1e12, 1e12))
def test_numbers_read_back_to_three_digits(value: float) -> None:
    shown = formatting.number(value).replace("−", "-").replace(",", "")
    assert float(shown) == pytest.approx(value, rel=5.01e-3)
