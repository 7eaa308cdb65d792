"""The papers' tables and figures: the list of them is true, and a cut study of each space makes what the list says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from graft.report.papers import items
from graft.report.papers.formulas import FIGURES, FORMULAS, power_series_entropy, ssa
from graft.report.papers.items import find_item, read_items
from graft.report.papers.temperature import PAPER, fitted_temperature
from graft.report.sections import Section
from graft.report.sections.condition_lines import ConditionLines
from graft.report.sections.temperature_curves import closed_form
from search.analysis.study.condition_lines import order_lines, sweep_conditions, trace_lines
from search.analysis.study.gaps import averages_by_gap
from search.analysis.study.temperatures import compare_temperatures
from spaces import plugins
from spaces.errors import StudyError
from spaces.reading import catalogue
from spaces.reading.transfer_section import is_transfer_text
from tests.support.inside import called
from tests.support.synthetic_studies import metrics_frame, study_data, study_row, trial_row, trials_frame
from workers.networks.scorers import LogitScorer
from workers.networks.scorers.linear import Linear
from workers.networks.scorers.linearised_softmax import LinearisedSoftmax
from workers.networks.scorers.softmax import Softmax
from workers.networks.scorers.ssa import SignedAveraging

ITEMS = {item.name: item for item in read_items()}
MADE = [item for item in read_items() if item.report]
CUT = sorted({item.cut for item in MADE} - {""})
HERE = ("--executor=inline", "--device=cpu", "--workers=1")


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_names_what_there_is_and_says_what_is_missing(name: str) -> None:
    item = ITEMS[name]
    assert {item.space, item.cut} - {""} <= set(catalogue.packaged_spaces())
    assert set(item.sections) <= set(plugins.names(Section))
    assert bool(item.sections) == (item.report == "study")
    assert bool(item.missing) == (item.state != "whole")
    assert bool(item.space and item.cut) == (item.report not in ("", "formulas"))
    assert not item.report or item.state != "none"
    assert not item.options or item.report not in ("study", "")


def test_the_page_of_the_papers_counts_as_the_list_does() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "experiments" / "papers.md").read_text().split())
    counts = {state: sum(item.state == state for item in ITEMS.values()) for state in ("whole", "part", "none")}
    said = f"{len(ITEMS)} tables and figures {counts['whole']} can be made whole, {counts['part']} in part and "
    assert said + f"{counts['none']} not at all" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("003/figure-9", "003/figure-9"),
        ("002/figure-5", "search report transfer STUDY"),
    ],
)
def test_what_a_study_does_not_make_is_refused_with_what_is_to_be_done(name: str, words: str) -> None:
    with pytest.raises(StudyError, match=re.escape(words)):
        find_item(name)


def test_what_nothing_makes_is_refused_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = items.Item(name="009/figure-1", shows="a map", state="none", missing="pretrained weights")
    monkeypatch.setattr(items, "read_items", lambda: [nothing])
    with pytest.raises(StudyError, match=r"^009/figure-1 .a map. is not made here; missing: pretrained weights$"):
        find_item("009/figure-1")


@pytest.mark.long
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_formulas_needs_no_study(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any], tmp_path: Path
) -> None:
    page = tmp_path / "formulas.html"
    status, _, error = called(monkeypatch, capsys, "report", "paper", name, "-o", str(page))
    assert (status, error.count("\n")) == (0, 1)
    assert page.read_text().count("<svg") == 1
    status, out, error = called(monkeypatch, capsys, "report", "paper", name, "a-study", "-o", str(page))
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert "name no study" in error


@pytest.mark.parametrize(
    ("name", "scorer"), [("softmax", Softmax), ("linearised softmax", LinearisedSoftmax), ("linear", Linear)]
)
def test_formulas_are_those_of_the_scorers(name: str, scorer: type[LogitScorer]) -> None:
    logits = np.random.default_rng(3).normal(size=(5, 7))
    for temperature in (0.3, 2.0):
        expected = scorer(temperature=temperature).weigh(torch.tensor(logits), torch.ones(5, 7, dtype=torch.bool), {})
        np.testing.assert_allclose(FORMULAS[name](logits, temperature), expected.numpy(), rtol=1e-12, atol=1e-15)


def test_the_figures_of_formulas_are_all_that_the_list_has_and_draw_what_they_say() -> None:
    assert FIGURES.keys() == {name for name, item in ITEMS.items() if item.report == "formulas"}
    values = np.linspace(-4, 4, 9)
    powers = [(1 + 1.3 * abs(x)) ** (1.5 if x > 0 else -1.5 if x < 0 else 0) for x in values]
    np.testing.assert_allclose(ssa(values, 1.3, 1.5), powers)
    weights = SignedAveraging(b=1.3, n=1.5).weigh(
        torch.tensor(values)[None], torch.ones(1, 9, dtype=torch.bool), {"b": torch.tensor(1.3), "n": torch.tensor(1.5)}
    )
    np.testing.assert_allclose(np.array(powers) / sum(powers), weights[0].numpy(), rtol=1e-6)
    ratios, temperatures = np.array([0.0, 0.5, 1.0, 1.7]), np.array([0.3, 4.0])
    expected = [
        [stats.entropy(special.softmax([r**i / t for i in range(1, 11)])) for r in ratios] for t in temperatures
    ]
    np.testing.assert_allclose(power_series_entropy(ratios, temperatures), expected, atol=1e-12)


def test_a_fitted_temperature_is_the_inverse_of_its_polynomial() -> None:
    entropy = np.array([0.3, 0.9, 2.0, 4.0])
    inverse = (
        -1.791 + 4.917 * entropy - 2.3 * entropy**2 + 0.481 * entropy**3 - 0.037 * entropy**4
    )  # paper 001, Figure 6
    temperatures = fitted_temperature(PAPER, entropy)
    assert np.isnan(temperatures[0])
    assert inverse[0] < 0
    np.testing.assert_allclose(temperatures[1:], 1 / inverse[1:])


def test_the_command_lists_all_items_and_refuses_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any], tmp_path: Path
) -> None:
    monkeypatch.setenv("SEARCH_STORAGE", str(tmp_path / "none.db"))
    status, out, _ = called(monkeypatch, capsys, "report", "paper", "--format", "csv")
    assert (status, out.count("\n")) == (0, 1 + len(ITEMS))
    for arguments in (["003/figure-9"], ["003/figure-4"], ["003/figure-4", "x"], ["000/figure-6", "x", "-o", "a.html"]):
        status, out, error = called(monkeypatch, capsys, "report", "paper", *arguments)
        assert status != 0
        assert (out, error.count("\n")) == ("", 1)
        assert "Traceback" not in error


# --------------------------------------------------------------------------------------------------------------- lines


@pytest.mark.long
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), unique=True, max_size=16))
def test_a_line_goes_over_one_number_and_holds_the_others(pairs: list[tuple[int, int]]) -> None:
    lines = sweep_conditions(f"sigma={sigma} length={length}" for sigma, length in pairs)
    expected: set[tuple[str, str, float, str]] = set()
    for sigma, length in pairs:
        for across, x, rest, other in (
            ("sigma", sigma, f"length={length}", {s for s, size in pairs if size == length}),
            ("length", length, f"sigma={sigma}", {size for s, size in pairs if s == sigma}),
        ):
            if len(other) >= 3:
                expected.add((f"sigma={sigma} length={length}", across, float(x), rest))
    assert set(lines.rows()) == expected
    assert lines.height == len(expected)


def test_a_word_is_no_number_and_a_line_keeps_it() -> None:
    lines = sweep_conditions(["items=1 scorer=trained", "items=2 scorer=trained", "items=4 scorer=trained", "kind=a"])
    assert lines["rest"].unique().to_list() == ["scorer=trained"]
    assert lines["x"].to_list() == [1, 2, 4]


def test_lines_are_means_of_raw_last_validations_with_students_interval() -> None:
    random = np.random.default_rng(1)
    rows = [
        (number, f"sigma={sigma}", variant, -1, random.normal())
        for number in range(6)
        for sigma in (1, 2, 5)
        for variant in ("raw", "bema")
    ]
    scores = pl.DataFrame(rows, schema=["number", "condition", "variant", "sign", "last"], orient="row")
    series = pl.DataFrame({"number": range(6), "series": ["b", "a"] * 3})
    lines = trace_lines(scores, series)
    assert lines["series"].unique(maintain_order=True).to_list() == ["b", "a"]
    row = lines.row(by_predicate=(pl.col("series") == "a") & (pl.col("x") == 2), named=True)
    values = [-value for number, condition, variant, _, value in rows if (condition, variant) == ("sigma=2", "raw")
              and number % 2]  # fmt: skip
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    assert (row["trials"], row["mean"]) == (3, pytest.approx(np.mean(values)))
    assert (row["low"], row["high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_the_line_through_the_objectives_condition_comes_first() -> None:
    conditions = [f"a={a} b={b}" for a in (1, 2, 3) for b in (1, 2, 3, 4)]
    scores = pl.DataFrame({"condition": conditions}).with_columns(number=0, variant=pl.lit("raw"), sign=1, last=1.0)
    series = pl.DataFrame({"number": [0], "series": ["all"]})
    lines = order_lines(trace_lines(scores, series), "a=2 b=4")
    pairs = lines.select("across", "rest").unique(maintain_order=True).rows()
    assert pairs[:3] == [("b", "a=2"), ("a", "b=4"), ("b", "a=1")]
    assert lines["low"].null_count() == lines.height


def test_a_study_of_several_tasks_has_a_panel_for_each() -> None:
    algorithms, sizes = ["dfs", "minimum"], (4, 5, 6)
    trials = [
        trial_row(n, 0, "finished", 0.5, params={"task.algorithm": algorithms[n % 2], "model.scorer": f"s{n // 2}"})
        for n in range(4)
    ]
    metrics = [(n, 100, "accuracy", "raw", f"size={size}", n + size / 10) for n in range(4) for size in sizes]
    row = study_row(objective="accuracy/raw", direction="maximize")
    data = study_data(row, trials_frame(trials), metrics_frame(metrics))
    lines = ConditionLines(data=data).lines
    assert lines["title"].unique(maintain_order=True).to_list() == algorithms
    for index, name in enumerate(algorithms):
        shown = lines.filter(title=name).select("series", "x", "mean").rows()
        assert shown == [(f"s{k}", size, pytest.approx(2 * k + index + size / 10)) for k in range(2) for size in sizes]


def test_averages_by_gap_take_the_best_of_the_grid_of_each_trial() -> None:
    random = np.random.default_rng(2)
    powers = [(kappa / 10, eta / 10) for kappa in range(1, 5) for eta in range(1, 5)]
    grid = {number: random.random(len(powers)) for number in (3, 8)}
    rows = [
        (number, f"kappa={kappa} eta={eta}", "bema", 1, value)
        for number, values in grid.items()
        for (kappa, eta), value in zip(powers, values, strict=True)
    ]
    rows += [(number, "kappa=0.1", "bema", 1, -5.0) for number in grid]  # an EMA is no pair
    schema = ["number", "condition", "variant", "sign", "last"]
    scores = pl.DataFrame(rows, schema=schema, orient="row")
    plain = pl.DataFrame([(3, "", "raw", 1, 0.5), (8, "", "raw", 1, 0.6)], schema=schema, orient="row")
    gaps = pl.DataFrame({"number": [3, 8], "gap": [4.0, 1.0]})
    averages = averages_by_gap(scores, plain, gaps)
    assert averages["gap"].to_list() == [1.0] * 4 + [4.0] * 4
    values = {(number, kind): value for number, _, kind, value in averages.rows()}
    assert values[3, "raw"] == 0.5
    for number, errors in grid.items():
        assert values[number, "best"] == errors.min()
        assert values[number, "mean of the best 10"] == pytest.approx(np.sort(errors)[:10].mean())
        assert values[number, "mean of all"] == pytest.approx(errors.mean())


def test_each_temperature_is_compared_with_one_on_the_same_trial() -> None:
    random = np.random.default_rng(4)
    values = {(number, shift, word): random.normal() for number in range(5) for shift in ("", "noise=1")
              for word in ("", "temperature=0.5", "temperature=1e1")}  # fmt: skip
    rows = [(number, f"{shift} {word}".strip(), "raw", 1, value) for (number, shift, word), value in values.items()]
    rows += [(0, "temperature=estimated", "raw", 1, 3.0), (0, "temperature=0.5", "bema", 1, 3.0)]
    rows += [(0, "noise=1 scorer=trained", "raw", 1, 3.0)]
    comparisons = compare_temperatures(
        pl.DataFrame(rows, schema=["number", "condition", "variant", "sign", "last"], orient="row")
    )
    assert comparisons.select("shift", "temperature", "pairs").rows() == [
        ("", 0.5, 5), ("", 10.0, 5), ("noise=1", 0.5, 5), ("noise=1", 10.0, 5),
    ]  # fmt: skip
    for row in comparisons.iter_rows(named=True):
        word = {0.5: "temperature=0.5", 10.0: "temperature=1e1"}[row["temperature"]]
        there, at_one = ([values[number, row["shift"], part] for number in range(5)] for part in (word, ""))
        expected = stats.ttest_rel(there, at_one)
        interval = expected.confidence_interval()
        assert (row["at_one"], row["value"]) == (pytest.approx(np.mean(at_one)), pytest.approx(np.mean(there)))
        assert (row["low"], row["high"]) == (pytest.approx(interval.low), pytest.approx(interval.high))
        assert row["p"] == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(("constant", "cross", "second"), [(9.0, 2.0, 5.0), (3.0, 1.5, 0.9)])
def test_the_closed_form_over_temperatures_follows_from_three_numbers(
    constant: float, cross: float, second: float
) -> None:
    temperatures = np.array([0.5, 1.0, 1.7, 4.0])
    exact = constant - 2 * cross / temperatures + second / temperatures**2  # paper 004, theorem 4.6
    error, optimum = constant - 2 * cross + second, second / cross
    least = constant - cross**2 / second
    assert closed_form(temperatures, error, least, optimum) == pytest.approx(exact)
    assert np.isnan(closed_form(temperatures, 1.0, 1.0, 1.0)).all()


# --------------------------------------------------------------------------------------------------------- cut studies


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEARCH_STORAGE", str(tmp_path / "papers.db"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("space", CUT)
def test_a_study_of_a_cut_space_makes_its_items(
    space: str, database: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[Any]
) -> None:
    steps = ("--steps=6", "--set=training.validate_every=3", "--set=training.validation_batch=32")
    if is_transfer_text(catalogue.read_text(space)):
        steps = ("--steps=8",)  # its tasks have sections of their own
    if space == "quick/max_retrieval":  # a temperature is fitted to a head that has learnt something
        steps = ("--steps=400", "--set=training.validate_every=400", "--set=training.validation_batch=256")
    status, _, error = called(monkeypatch, capsys, "launch", space, "--study=cut", *steps, *HERE)
    assert status == 0, error
    for item in MADE:
        if item.cut == space:
            command = item.command("cut").replace("TRIAL", "0").replace("FILE.html", "item.html")
            status, _, error = called(monkeypatch, capsys, *shlex.split(command)[1:], "--force")
            assert status == 0, error
            page = (database / "item.html").read_text()
            assert "<svg" in page or "<table" in page
            assert "Left out:" not in page or item.state != "whole", item.name
