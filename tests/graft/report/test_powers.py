"""The sections of a study's report on grids of averages, diagnostics, trained scorers and maps, against numpy."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
import scipy.stats

from graft.plugins.families import member_names
from graft.report.data import StudyData
from graft.report.rendering.document import Table
from graft.report.sections.averaging_grid import AveragingGrid
from graft.report.sections.condition_maps import ConditionMaps
from graft.report.sections.diagnostics import Diagnostics
from graft.report.sections.trained_scorer import TrainedScorer
from graft.report.study import document
from search.analysis.study.averaging_grid import CONDITIONS, split_powers
from search.analysis.study.scores import Reserved, distribution
from spaces import plugins
from tests.support.synthetic_studies import metrics_frame, study_data, study_row, trial_row, trials_frame
from workers.networks.diagnostics import Diagnostic

pytestmark = pytest.mark.fast

KAPPAS, ETAS = (0.5, 1.0), (0.3, 0.9)


def values(trials: int) -> dict[tuple[str, str], np.ndarray]:
    """(variant, condition) -> the last tvd of each trial."""
    generator = np.random.default_rng(0)
    columns = {("raw", ""): generator.uniform(0.2, 0.4, trials), ("raw", "length=9"): np.full(trials, 0.5)}
    for kappa in KAPPAS:
        columns["ema", f"kappa={kappa:g}"] = generator.uniform(0.1, 0.4, trials)
        columns["ema", f"length=9 kappa={kappa:g}"] = np.full(trials, 0.9)
        for eta in ETAS:
            columns["bema", f"kappa={kappa:g} eta={eta:g}"] = generator.uniform(0.05, 0.3, trials)
    return columns


def grid_study(trials: int, objective: str = "tvd/bema/kappa=0.5 eta=0.3") -> StudyData:
    rows = [trial_row(number, 0, "finished", 0.1) for number in range(trials)]
    metrics = [
        (number, step, "tvd", variant, condition, float(column[number]) if step == 20 else 0.99)
        for (variant, condition), column in values(trials).items()
        for number in range(trials)
        for step in (10, 20)
    ]
    return study_data(study_row(objective=objective), trials_frame(rows), metrics_frame(metrics))


@pytest.mark.parametrize("trials", [3, 8])
def test_each_pair_of_powers_is_compared_with_raw_on_the_last_validations(trials: int) -> None:
    powers = AveragingGrid(data=grid_study(trials)).powers
    columns = values(trials)
    raw = columns["raw", ""]
    assert powers.select("kappa", "eta").rows() == [(k, e) for k in KAPPAS for e in (*ETAS, None)]
    for row in powers.iter_rows(named=True):  # whose intervals hold together
        eta = "" if row["eta"] is None else f" eta={row['eta']:g}"
        column = columns["ema" if row["eta"] is None else "bema", f"kappa={row['kappa']:g}{eta}"]
        assert row["value"] == pytest.approx(column.mean())
        assert row["change"] == pytest.approx((column.mean() - raw.mean()) / raw.mean())
        error = (
            scipy.stats.t.ppf(1 - 0.025 / powers.height, trials - 1)
            * (column - raw).std(ddof=1)
            / trials**0.5
            / raw.mean()
        )
        assert row["margin"] == (None if trials < 5 else pytest.approx(error))


def test_a_grid_is_one_picture_and_no_rows_of_tables() -> None:
    data = grid_study(8)
    assert data.statistics["condition"].unique().sort().to_list() == ["", "length=9"]
    pictures = [block for block in document(data).blocks if getattr(block, "number", None) == 5]
    assert len(pictures) == 1
    best = AveragingGrid(data=data).powers.sort("change").row(0, named=True)
    assert f"The lowest is κ = {best['kappa']:g}" in pictures[0].caption
    assert pictures[0].svg.startswith("<svg")


def test_a_study_without_a_grid_has_no_such_picture() -> None:
    rows = [trial_row(number, 0, "finished", 0.1) for number in range(3)]
    metrics = [(number, 10, "tvd", "raw", "", 0.1 * number) for number in range(3)]
    data = study_data(study_row(objective="tvd/raw"), trials_frame(rows), metrics_frame(metrics))
    assert AveragingGrid(data=data).powers.is_empty()
    assert not [block for block in document(data).blocks if getattr(block, "number", None) == 5]


def test_conditions_are_told_from_powers() -> None:
    reserved = Reserved(conditions=CONDITIONS)
    assert reserved.rest_of("length=9 kappa=0.5 eta=0.3") == "length=9"
    assert reserved.rest_of("kappa=0.5") == reserved.rest_of("") == ""
    assert reserved.rest_of("my_kappa=0.5") == "my_kappa=0.5"
    conditions = ["", "a=1", "a=1 kappa=0.2", "kappa=0.2 eta=1"]
    held = [condition for condition in conditions if reserved.holds(("tvd", condition, 0))]
    assert held == conditions[2:]
    grid = split_powers(pl.DataFrame({"condition": held}))
    assert grid.rows() == [("a=1", 0.2, None), ("", 0.2, 1.0)]


def test_diagnostics_are_a_table_of_means_and_no_race() -> None:
    rows = [trial_row(number, 0, "finished", 0.1) for number in range(4)]
    metrics = [
        (number, step, name, "raw", "", number + step)
        for number in range(4)
        for step in (10, 20)
        for name in ("tvd", "attention_entropy", "attention_entropy layer=0 head=1")
    ]
    frames = trials_frame(rows), metrics_frame(metrics)
    data = study_data(study_row(objective="tvd/raw"), *frames)
    assert data.statistics["name"].unique().to_list() == ["tvd"]
    assert distribution(data.scores.all())["name"].unique().to_list() == ["tvd"]
    assert Diagnostics(data=data).means.select("name", "variant", "trials", "value").rows() == [
        ("attention_entropy", "raw", 4, 21.5),
        ("attention_entropy layer=0 head=1", "raw", 4, 21.5),
    ]
    tables = [block for block in document(data).blocks if isinstance(block, Table)]
    assert any(table.caption.startswith("Diagnostics of attention") for table in tables)


def test_names_of_diagnostics_are_those_of_the_family() -> None:
    assert sorted(member_names("diagnostic")) == sorted(plugins.names(Diagnostic))


def test_weights_that_are_validated_both_ways_are_compared_trial_by_trial() -> None:
    generator = np.random.default_rng(1)
    ways = {condition: generator.uniform(0.2, 0.9, 6) for condition in ("", "items=32")}
    ways |= {f"{c} scorer=trained".strip(): values - generator.uniform(0, 0.2, 6) for c, values in list(ways.items())}
    rows = [trial_row(number, 0, "finished", 0.1) for number in range(6)]
    metrics = [
        (number, 20, "accuracy", "raw", condition, float(column[number]))
        for condition, column in ways.items()
        for number in range(6)
    ]
    study = study_row(objective="accuracy/raw", direction="maximize")
    data = study_data(study, trials_frame(rows), metrics_frame(metrics))
    comparison = TrainedScorer(data=data).comparison
    assert comparison["condition"].to_list() == ["", "items=32"]
    for row in comparison.iter_rows(named=True):
        plain, trained = ways[row["condition"]], ways[f"{row['condition']} scorer=trained".strip()]
        ttest = scipy.stats.ttest_rel(plain, trained)
        assert row["p"] == pytest.approx(ttest.pvalue)
        assert (row["low"], row["high"]) == pytest.approx(tuple(ttest.confidence_interval(0.95)))
        assert (row["trained"], row["value"], row["pairs"]) == pytest.approx((trained.mean(), plain.mean(), 6))
    tables = [block for block in document(data).blocks if isinstance(block, Table)]
    assert any(table.caption.startswith("The same weights") for table in tables)


@pytest.mark.long
def test_conditions_of_two_numbers_are_maps_of_each_scorer() -> None:
    scorers = ("softmax", "ssa")
    rows = [trial_row(number, 0, "finished", 0.1, params={"model.scorer": scorers[number % 2]}) for number in range(4)]
    places = [(length, sigma) for length in (10, 20) for sigma in (1, 2, 3)]
    metrics = [
        (number, 20, "accuracy", "raw", f"length={length} sigma={sigma}", number + length + 0.1 * sigma)
        for number in range(4)
        for length, sigma in places
    ]
    for other in ("alone=1 other=2", "slope=1 reach=2", "slope=2 reach=1"):
        metrics += [(number, 20, "accuracy", "raw", other, 0.5) for number in range(4)]
    study = study_row(objective="accuracy/raw/length=10 sigma=1", direction="maximize")
    data = study_data(study, trials_frame(rows), metrics_frame(metrics))
    means = ConditionMaps(data=data).means
    assert means["across"].unique().to_list() == ["length"], "one value of each number is no map, nor are two pairs"
    for row in means.iter_rows(named=True):
        numbers = [number for number in range(4) if scorers[number % 2] == row["panel"]]
        assert row["value"] == pytest.approx(np.mean(numbers) + row["x"] + 0.1 * row["y"])
    assert means.height == 2 * len(places)
    [picture] = [block for block in document(data).blocks if getattr(block, "number", None) == 9]
    assert picture.caption.startswith("accuracy by length and sigma")
    assert "panel for each scorer" in picture.caption


def test_maps_of_confirmed_arms_are_of_the_confirmations() -> None:
    """So are the tables and lines of the same report."""
    tried = [{"configuration": number, "seed": 0} for number in (0, 1)]
    fresh = [{"confirmed rank": 0, "seed": seed} for seed in (1, 2)]
    facts = [{"arm": arm} | params for arm in ("base", "warm") for params in (*tried, *fresh)]
    rows = [trial_row(number, 0, "finished", number / 10, params=params) for number, params in enumerate(facts)]
    metrics = [
        (number, 20, "accuracy", "raw", f"length={length} sigma={sigma}", float(number))
        for number in range(len(facts))
        for length in (10, 20)
        for sigma in (1, 2, 3)
    ]
    study = study_row(objective="accuracy/raw/length=10 sigma=1", direction="maximize")
    means = ConditionMaps(data=study_data(study, trials_frame(rows), metrics_frame(metrics))).means
    assert means.select("panel", "value").unique().sort("panel").rows() == [("base", 2.5), ("warm", 6.5)]
