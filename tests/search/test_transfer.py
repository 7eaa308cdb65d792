"""The arithmetic of the compatibility matrix, against numbers worked out by hand, pandas, numpy and scipy."""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.stats
from polars.testing import assert_frame_equal
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

import benchmarks.transfer
from search.analysis.statistics.intervals import Bootstrap, Interval, Student
from search.analysis.statistics.verdicts import BETTER, UNDECIDED, WORSE
from search.analysis.transfer.affinity import best_sources, by_similarity, generality, similarity
from search.analysis.transfer.compatibility_matrix import Matrix, TransferError, compute_matrix
from search.analysis.transfer.stage_two import READ, results

pytestmark = pytest.mark.fast

Row = tuple[str, str, int, float | None]
SCHEMA = {"source": pl.String, "target": pl.String, "seed": pl.Int64, "value": pl.Float64}

# -- fixtures --------------------------------------------------------------------------------------------------------


def frame(rows: list[Row], direction: str = "maximize") -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").with_columns(direction=pl.lit(direction))


def cell(matrix: Matrix, source: str, target: str) -> dict[str, Any]:
    return matrix.cells.row(by_predicate=(pl.col("source") == source) & (pl.col("target") == target), named=True)


BY_HAND: list[Row] = [
    ("baseline", "copy", 0, 0.50),
    ("baseline", "copy", 1, 0.60),
    ("baseline", "copy", 2, 0.40),
    ("copy", "copy", 0, 0.70),  # changes +20, +30, +40: mean 30, deviation 10
    ("copy", "copy", 1, 0.90),
    ("copy", "copy", 2, 0.80),
    ("mano", "copy", 0, 0.40),  # one pair, -10; seed 2 diverged, seed 3 has no baseline, seed 1 was not tried
    ("mano", "copy", 2, None),
    ("mano", "copy", 3, 0.99),
]

FIGURE_5 = {  # paper 002, in its order of columns, which is that of its rows
    "memorize": (43, 0, 9, 13, -4, -10, -15, 0),
    "add_mod": (16, 16, 14, 21, -1, -9, 6, -4),
    "add": (17, 7, 15, 18, 29, 7, 13, 0),
    "add_reversed": (14, 6, 14, 17, 29, 6, 12, 1),
    "mano": (9, 3, 9, 12, 22, 13, 17, 0),
    "haystack": (1, 3, 8, -2, -6, 12, 15, 0),
    "copy": (0, 3, 11, -3, -11, 11, 19, -1),
    "parentheses": (7, 5, 9, 10, 13, 11, 13, 0),
}


def figure_5(seeds: int = 6) -> pl.DataFrame:
    """Results that have the changes of Figure 5 exactly in the mean, and a baseline that differs from seed to seed."""
    rows: list[Row] = []
    for column, target in enumerate(FIGURE_5):
        for seed in range(seeds):
            base = 0.3 + 0.01 * seed + 0.02 * column
            rows.append(("baseline", target, seed, base))
            noise = 0.002 * (seed - (seeds - 1) / 2)
            # The luck of a seed is a little more of one source than of another: no two differ alike in all seeds.
            rows += [
                (source, target, seed, base + row[column] / 100 + noise * (1 + index / 30))
                for index, (source, row) in enumerate(FIGURE_5.items())
            ]
    return frame(rows)


def random_results(seed: int, direction: str = "maximize") -> pl.DataFrame:
    """Three sources and four targets with repeats, holes, diverged trials and seeds that only one side has."""
    random = np.random.default_rng(seed)
    rows: list[Row] = []
    for _ in range(400):
        source = str(random.choice(["baseline", "x", "y", "z"]))
        value = None if random.uniform() < 0.1 else float(random.uniform(0.1, 1))
        rows.append((source, str(random.choice(list("abcd"))), int(random.integers(0, 9)), value))
    return frame(rows, direction)


# -- cells -----------------------------------------------------------------------------------------------------------


def test_a_matrix_worked_out_by_hand() -> None:
    matrix = compute_matrix(frame(BY_HAND))
    assert (matrix.sources, matrix.targets) == (("copy", "mano"), ("copy",))
    diagonal, other = cell(matrix, "copy", "copy"), cell(matrix, "mano", "copy")
    assert diagonal["unit"] == "points"
    assert diagonal["mean"] == pytest.approx(30)
    reach = 4.302652729696142 * 10 / math.sqrt(3)  # t of 97.5 % with 2 degrees of freedom
    assert (diagonal["low"], diagonal["high"]) == pytest.approx((30 - reach, 30 + reach))
    assert (diagonal["pairs"], diagonal["dropped"]) == (3, 0)
    assert other["mean"] == pytest.approx(-10)
    assert (other["pairs"], other["dropped"]) == (1, 3)  # seeds 1, 2 and 3
    assert [other[name] for name in ("low", "high", "p", "q")] == [None] * 4


def test_less_is_better_in_percent_of_each_baseline() -> None:
    rows: list[Row] = [("baseline", "t", 0, 2.0), ("baseline", "t", 1, 4.0), ("s", "t", 0, 1.0), ("s", "t", 1, 5.0)]
    row = cell(compute_matrix(frame(rows, "minimize")), "s", "t")
    assert row["unit"] == "percent"
    assert row["mean"] == pytest.approx((-50 + 25) / 2)


@pytest.mark.parametrize(("baseline", "other"), [(20.0, 23.0), (-2.5, 0.5)])
def test_a_maximised_metric_beyond_0_and_1_keeps_its_own_unit(baseline: float, other: float) -> None:
    row = cell(compute_matrix(frame([("baseline", "t", 0, baseline), ("s", "t", 0, other)])), "s", "t")
    assert (row["unit"], row["mean"]) == ("difference", 3)


def test_figure_5_of_paper_002_comes_back() -> None:
    matrix = compute_matrix(figure_5())
    for source, row in FIGURE_5.items():
        for target, expected in zip(FIGURE_5, row, strict=True):
            assert cell(matrix, source, target)["mean"] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("seed", range(3))
def test_cells_are_those_of_pandas_and_scipy(seed: int, direction: str) -> None:
    random = random_results(seed, direction)
    matrix = compute_matrix(random)
    table = pd.DataFrame(random.to_dicts()).pivot_table(
        index="seed", columns=["source", "target"], values="value", aggfunc="mean", dropna=False
    )
    tried = {(row["source"], row["target"], row["seed"]) for row in random.to_dicts()}
    for row in matrix.cells.to_dicts():
        both = table[[(row["source"], row["target"]), ("baseline", row["target"])]].dropna()
        values, other = both.iloc[:, 0], both.iloc[:, 1]
        changes = 100 * (values - other) if direction == "maximize" else 100 * (values - other) / other
        assert row["mean"] == pytest.approx(changes.mean())
        assert row["pairs"] == len(changes)
        seeds = {key[2] for key in tried if key[1] == row["target"] and key[0] in (row["source"], "baseline")}
        assert row["dropped"] == len(seeds) - len(changes)
        low, high = scipy.stats.t.interval(0.95, len(changes) - 1, changes.mean(), scipy.stats.sem(changes))
        assert (row["low"], row["high"]) == pytest.approx((low, high))
        expected = (
            scipy.stats.ttest_rel(values, other) if direction == "maximize" else scipy.stats.ttest_1samp(changes, 0)
        )
        assert row["p"] == pytest.approx(expected.pvalue)
    assert matrix.cells["q"].to_list() == pytest.approx(
        scipy.stats.false_discovery_control(matrix.cells["p"].to_numpy())
    )


def test_only_seeds_of_both_sides_pair() -> None:
    rows: list[Row] = [("baseline", "t", seed, 0.1 * seed) for seed in range(5)]
    rows += [("s", "t", seed, 0.1 * seed + 0.05) for seed in range(3, 9)]
    row = cell(compute_matrix(frame(rows)), "s", "t")
    assert row["mean"] == pytest.approx(5)
    assert (row["pairs"], row["dropped"]) == (2, 7)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["baseline", "s"])
def test_a_value_that_is_not_finite_drops_its_pair(side: str, value: float | None) -> None:
    rows: list[Row] = [
        (source, "t", seed, 0.2 + 0.1 * (source == "s")) for source in ("baseline", "s") for seed in (0, 1)
    ]
    rows = [
        (source, target, seed, value if (source, seed) == (side, 1) else known) for source, target, seed, known in rows
    ]
    row = cell(compute_matrix(frame(rows)), "s", "t")
    assert row["mean"] == pytest.approx(10)
    assert (row["pairs"], row["dropped"]) == (1, 1)


def test_a_baseline_of_0_has_no_percent() -> None:
    rows: list[Row] = [("baseline", "t", 0, 0.0), ("s", "t", 0, 1.0), ("baseline", "t", 1, 1.0), ("s", "t", 1, 1.5)]
    row = cell(compute_matrix(frame(rows, "minimize")), "s", "t")
    assert (row["mean"], row["pairs"], row["dropped"]) == (50, 1, 1)


def test_cells_that_were_not_tried_are_null_and_in_the_matrix() -> None:
    rows: list[Row] = [*BY_HAND, ("baseline", "mano", 0, 0.5), ("mano", "mano", 0, 0.6), ("copy", "lone", 0, 0.5)]
    matrix = compute_matrix(frame(rows))
    assert matrix.cells.height == 2 * 3
    missing = cell(matrix, "copy", "mano")
    assert (missing["mean"], missing["pairs"], missing["dropped"]) == (None, 0, 0)
    alone = cell(matrix, "copy", "lone")  # no baseline on this target
    assert (alone["mean"], alone["pairs"], alone["dropped"]) == (None, 0, 1)


def test_changes_that_are_all_0_are_no_evidence() -> None:
    for seeds, end in ((4, None), (6, 0)):
        rows: list[Row] = [(source, "t", seed, 0.5) for source in ("baseline", "s") for seed in range(seeds)]
        row = cell(compute_matrix(frame(rows)), "s", "t")
        assert (row["mean"], row["low"], row["high"], row["p"]) == (0, end, end, 1)


def test_changes_that_are_all_equal_are_as_much_evidence_as_their_signs() -> None:
    for seeds, p, verdict in ((3, None, None), (5, 2 / 2**5, UNDECIDED), (8, 2 / 2**8, BETTER)):
        rows: list[Row] = [
            (source, "t", seed, 0.5 + seed / 64 + (source == "s") / 16)
            for source in ("baseline", "s")
            for seed in range(seeds)
        ]
        row = cell(compute_matrix(frame(rows)), "s", "t")
        assert (row["p"], row["verdict"]) == (p, verdict)


@pytest.mark.long
def test_the_order_of_the_results_does_not_matter() -> None:
    random = random_results(7)
    for interval in (Student(), Bootstrap(resamples=200)):
        matrix = compute_matrix(random, interval=interval)
        for seed in range(5):
            other = compute_matrix(random.sample(fraction=1, shuffle=True, seed=seed), interval=interval)
            assert other.cells.write_csv() == matrix.cells.write_csv()  # to the last digit
            assert other.pairs.write_csv() == matrix.pairs.write_csv()


def test_another_baseline_turns_the_changes_round() -> None:
    rows: list[Row] = [("a", "t", seed, 0.1 * seed) for seed in range(4)] + [("b", "t", seed, 0.3) for seed in range(4)]
    row, other = cell(compute_matrix(frame(rows), "a"), "b", "t"), cell(compute_matrix(frame(rows), "b"), "a", "t")
    assert row["mean"] == pytest.approx(-other["mean"])
    assert (row["low"], row["p"]) == pytest.approx((-other["high"], other["p"]))


def test_q_is_p_adjusted_over_the_cells_that_have_one() -> None:
    cells = compute_matrix(random_results(5)).cells.drop_nulls("p")
    assert cells["q"].to_list() == pytest.approx(scipy.stats.false_discovery_control(cells["p"].to_numpy()))


# -- intervals -------------------------------------------------------------------------------------------------------


def test_a_bootstrap_interval_has_numpy_s_percentiles_further_out_by_student_s_quantile() -> None:
    matrix = compute_matrix(figure_5(), interval=Bootstrap())
    pairs = matrix.pairs.filter((pl.col("source") == "mano") & (pl.col("target") == "copy"))
    changes = pairs["change"].to_numpy()
    level = scipy.stats.norm.cdf((6 / 5) ** 0.5 * scipy.stats.t.ppf(0.975, 5))
    drawn = np.random.default_rng(5).choice(changes, (200_000, len(changes))).mean(axis=1)
    row = cell(matrix, "mano", "copy")
    assert (row["low"], row["high"]) == pytest.approx(np.quantile(drawn, [1 - level, level]), abs=0.02)
    assert row["low"] < row["mean"] < row["high"]


def test_of_a_few_pairs_there_is_no_bootstrap_interval_and_no_verdict() -> None:
    cells = compute_matrix(figure_5(seeds=5), interval=Bootstrap()).cells
    assert cells["low"].count() == cells["high"].count() == 0
    assert cells["q"].count() == cells.height
    assert set(cells["verdict"]) == {UNDECIDED}


def test_a_bootstrap_interval_depends_on_its_own_cell_and_the_seed_alone() -> None:
    def bounds(results: pl.DataFrame, seed: int) -> tuple[float, float]:
        row = cell(compute_matrix(results, interval=Bootstrap(seed=seed, resamples=300)), "x", "a")
        return row["low"], row["high"]

    whole = random_results(1)
    part = whole.filter((pl.col("target") == "a") & pl.col("source").is_in(["x", "baseline"]))
    assert bounds(whole, 4) == bounds(part, 4)
    assert bounds(whole, 4) != bounds(whole, 5)


@pytest.mark.parametrize("interval", [Student(confidence=0.5), Bootstrap(confidence=0.5, resamples=2000)])
def test_less_confidence_is_a_narrower_interval(interval: Interval) -> None:
    wide, narrow = (
        cell(compute_matrix(random_results(2), interval=method), "y", "b") for method in (type(interval)(), interval)
    )
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]


# -- what a matrix says ----------------------------------------------------------------------------------------------


def test_the_diagonal_of_figure_5_wins_four_of_eight_columns() -> None:
    by_target = {row["target"]: row for row in best_sources(compute_matrix(figure_5())).to_dicts()}
    assert {target: row["best"] for target, row in by_target.items()} == {
        "memorize": "memorize",
        "add_mod": "add_mod",
        "add": "add",
        "add_reversed": "add_mod",
        "mano": by_target["mano"]["best"],  # add and add_reversed are as good
        "haystack": "mano",
        "copy": "copy",
        "parentheses": "add_reversed",
    }
    assert by_target["mano"]["best"] in ("add", "add_reversed")
    # Seeds are nearly the same luck for all sources here, so that the smallest difference is beyond chance.
    assert [row["own_against_rest"] for row in by_target.values()].count(BETTER) == 4
    assert [row["own_against_rest"] for row in by_target.values()].count(WORSE) == 4
    assert by_target["haystack"]["own"] == pytest.approx(12)
    assert by_target["haystack"]["others"] == pytest.approx((-10 - 9 + 7 + 6 + 13 + 11 + 11) / 7)


def noisy(means: dict[str, float], seeds: int = 6, noise: float = 0.02) -> pl.DataFrame:
    """Accuracies on target `t` of a baseline at 0.5 and of sources that differ from it in the mean."""
    random = np.random.default_rng(0)
    return frame(
        [
            (source, "t", seed, 0.5 + mean + float(random.normal(0, noise)))
            for source, mean in {"baseline": 0.0, **means}.items()
            for seed in range(seeds)
        ]
    )


def test_where_less_is_better_the_best_source_is_the_lowest() -> None:
    rows = noisy({"a": 0.3, "t": -0.2, "b": 0.01}).with_columns(direction=pl.lit("minimize"))
    matrix = compute_matrix(rows)
    (row,) = best_sources(matrix).to_dicts()
    assert (row["leading"], row["best"], row["own_against_rest"]) == ("t", "t", BETTER)
    assert row["own"] < 0 < row["others"]
    verdicts = {row["source"]: (row["better"], row["worse"]) for row in generality(matrix).to_dicts()}
    assert verdicts == {"a": (0, 1), "t": (1, 0), "b": (0, 0)}


def test_nothing_is_best_whose_interval_holds_zero() -> None:
    (row,) = best_sources(compute_matrix(noisy({"a": 0.004, "t": 0.002}))).to_dicts()
    assert row["best"] is None
    assert row["own_against_rest"] == UNDECIDED
    (untested,) = best_sources(compute_matrix(frame([("baseline", "t", 0, 0.5), ("t", "t", 0, 0.9)]))).to_dicts()
    assert (untested["leading"], untested["best"], untested["own_against_rest"]) == ("t", None, None)


@pytest.mark.parametrize("finished", [0, 3, 6])
def test_the_diagonal_is_not_better_than_a_source_that_too_few_pairs_test(finished: int) -> None:
    has_result = (pl.col("source") != "b") | (pl.col("seed") < finished)
    results = noisy({"a": 0.02, "t": 0.1, "b": -0.1}, noise=0.001)
    results = results.with_columns(value=pl.when(has_result).then("value"))
    (row,) = best_sources(compute_matrix(results)).to_dicts()
    assert row["own_against_rest"] == (BETTER if finished == 6 else UNDECIDED)
    (untested,) = best_sources(compute_matrix(results.filter(pl.col("seed") < 3))).to_dicts()
    assert untested["own_against_rest"] is None


def test_ties_are_no_wins_of_the_diagonal() -> None:
    rows: list[Row] = [(source, "t", seed, 1 / 3) for source in ("baseline", "a", "t") for seed in range(6)]
    (row,) = best_sources(compute_matrix(frame(rows))).to_dicts()
    assert (row["leading"], row["best"], row["own_against_rest"]) == ("t", None, UNDECIDED)


@pytest.mark.long
def test_matrices_without_an_effect_seldom_name_a_best_source() -> None:
    random, named, diagonals = np.random.default_rng(0), 0, 0
    for _ in range(50):
        rows: list[Row] = [
            (source, target, seed, float(random.normal()))
            for source in ("baseline", "a", "b", "c")
            for target in ("a", "b", "c")
            for seed in range(6)
        ]
        sources = best_sources(compute_matrix(frame(rows)))
        named += sources["best"].count() > 0
        diagonals += (sources["own_against_rest"] != UNDECIDED).any()
    # Five in a hundred are expected at most; eight of fifty have a chance below 1 %.
    assert named <= 7
    assert diagonals <= 7


def test_generality_is_the_mean_of_a_row() -> None:
    by_source = {row["source"]: row for row in generality(compute_matrix(figure_5())).to_dicts()}
    for source, row in FIGURE_5.items():
        diagonal = row[list(FIGURE_5).index(source)]
        assert by_source[source]["mean"] == pytest.approx(sum(row) / 8)
        assert by_source[source]["elsewhere"] == pytest.approx((sum(row) - diagonal) / 7)
        assert by_source[source]["targets"] == 8


def test_all_targets_together_are_the_interquartile_mean_and_mann_and_whitney_s_share() -> None:
    random = np.random.default_rng(3)
    rows: list[Row] = [
        (source, target, seed, float(random.uniform(0.2, 0.4) + 0.1 * (source == "good")))
        for source in ("baseline", "good", "even")
        for target in "abcdef"
        for seed in range(5)
    ]
    matrix = compute_matrix(frame(rows))
    by_source = {row["source"]: row for row in generality(matrix).to_dicts()}
    for source, row in by_source.items():
        pairs = matrix.pairs.filter(pl.col("source") == source)
        assert row["middle"] == pytest.approx(scipy.stats.trim_mean(pairs["change"].to_numpy(), 0.25))
        shares = [
            scipy.stats.mannwhitneyu(group["value"].to_numpy(), group["against"].to_numpy()).statistic / group.height**2
            for _, group in pairs.group_by("target")
        ]
        assert row["improvement"] == pytest.approx(np.mean(shares))
        assert row["middle_low"] < row["middle"] < row["middle_high"]
    assert by_source["good"]["middle_low"] > 0
    assert by_source["even"]["middle_low"] < 0 < by_source["even"]["middle_high"]
    few = generality(compute_matrix(frame([row for row in rows if row[1] in "abcd"])))
    assert few["middle"].count() == 2
    assert few["middle_low"].count() == 0


def test_similarity_is_the_correlation_of_rows() -> None:
    correlations = similarity(compute_matrix(figure_5()))
    for row in correlations.to_dicts():
        expected = np.corrcoef(FIGURE_5[row["one"]], FIGURE_5[row["other"]])[0, 1]
        assert row["r"] == pytest.approx(expected)
        assert row["shared"] == 8


def test_similarity_needs_five_cells_that_vary() -> None:
    rows: list[Row] = [("baseline", target, 0, 0.5) for target in "abcde"]
    rows += [("x", target, 0, 0.5 + index / 10) for index, target in enumerate("abcde")]
    rows += [("y", target, 0, 0.5 + index / 10) for index, target in enumerate("abcd")]
    rows += [("z", target, 0, 0.5) for target in "abcde"]
    by_pair = {(row["one"], row["other"]): row["r"] for row in similarity(compute_matrix(frame(rows))).to_dicts()}
    assert by_pair["x", "x"] == pytest.approx(1)
    assert [by_pair["x", "y"], by_pair["y", "y"], by_pair["x", "z"], by_pair["z", "z"]] == [None] * 4


def test_the_interval_of_a_correlation_is_scipys() -> None:
    for row in similarity(compute_matrix(figure_5())).filter(pl.col("one") < pl.col("other")).to_dicts():
        expected = scipy.stats.pearsonr(FIGURE_5[row["one"]], FIGURE_5[row["other"]]).confidence_interval(0.95)
        assert (row["low"], row["high"]) == pytest.approx((expected.low, expected.high))


def test_like_rows_stand_side_by_side() -> None:
    matrix = by_similarity(compute_matrix(figure_5()))
    assert matrix.sources == matrix.targets
    index = {source: matrix.sources.index(source) for source in FIGURE_5}
    assert abs(index["add"] - index["add_reversed"]) == 1
    assert abs(index["haystack"] - index["copy"]) == 1
    names = sorted(FIGURE_5)
    distance = 1 - np.corrcoef([FIGURE_5[name] for name in names])
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    assert [names[leaf] for leaf in leaves_list(tree)] in (list(matrix.sources), list(matrix.sources)[::-1])


def test_the_order_changes_no_cell() -> None:
    plain = compute_matrix(random_results(3))
    ordered = by_similarity(plain)
    assert set(ordered.sources) == {"x", "y", "z"}
    assert ordered.cells["source"].unique(maintain_order=True).to_list() == list(ordered.sources)
    assert ordered.cells.head(4)["target"].to_list() == list(ordered.targets)
    assert_frame_equal(plain.cells, ordered.cells, check_row_order=False)


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            [("x", "t", 0, 0.5), ("y", "t", 0, 0.5)],
            "no result has the source 'baseline', the baseline; the sources are x, y",
        ),
        ([], "the sources are none"),
        ([("baseline", "t", 0, 0.5)], "there is nothing to compare"),
        ([("baseline", "t", 0, 0.5), ("x", "t", 1, 0.5)], "no seed has results of both 'baseline', the baseline, and"),
        ([("baseline", "t", 0, None), ("x", "t", 0, 0.5)], "no seed has results of both"),
    ],
)
def test_results_without_a_matrix_are_refused(rows: list[Row], words: str) -> None:
    with pytest.raises(TransferError) as error:
        compute_matrix(frame(rows))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_target_has_one_direction() -> None:
    torn = pl.concat([frame(BY_HAND), frame(BY_HAND[:1], "minimize")])
    with pytest.raises(TransferError, match="results on 'copy' are both minimised and maximised"):
        compute_matrix(torn)


# -- from trials -----------------------------------------------------------------------------------------------------


def stored(
    number: int, params: dict[str, Any], config: dict[str, Any], objective: float | None = 0.5
) -> dict[str, Any]:
    columns = {"group_number": number // 2, "model": "transformer", "scorer": "softmax", "seed": number, "task": "copy"}
    texts = {"params": json.dumps(params), "config": json.dumps(config)}
    return {"number": number, **columns, "objective": objective, **texts}


def trials(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), infer_schema_length=None).select(READ)


def test_results_come_from_the_configuration_and_the_params() -> None:
    frame = trials(
        stored(0, {"pair": 3}, {"task": {"name": "copy"}, "architecture": {"source": "baseline"}}),
        stored(1, {"pair": 4}, {"task": {"name": "mano"}, "architecture": {"source": "add"}}, None),
    )
    assert results(frame, "maximize").to_dicts() == [
        {"number": 0, "source": "baseline", "target": "copy", "seed": 3, "value": 0.5, "direction": "maximize"},
        {"number": 1, "source": "add", "target": "mano", "seed": 4, "value": None, "direction": "maximize"},
    ]


def test_a_path_may_be_a_column_a_parameter_or_a_plug_in() -> None:
    frame = trials(
        stored(
            0, {"model.scorer": "ssa"}, {"model": {"scorer": {"name": "other"}}, "task": {"name": "copy", "size": 1}}
        ),
        stored(1, {}, {"model": {"scorer": {"name": "softmax"}}, "task": {"name": "mano", "size": 2}}),
    )
    rows = results(frame, "minimize", source="model.scorer", target="task", seed="group_number")
    assert rows["source"].to_list() == ["ssa", "softmax"]
    assert rows["target"].to_list() == ["copy", "copy"]  # the column
    assert rows["seed"].to_list() == [0, 0]
    assert results(frame, "minimize", source="task.size", target="model", seed="seed")["source"].to_list() == ["1", "2"]


def test_trials_without_a_path_are_left_out() -> None:
    config = {"task": {"name": "copy"}, "architecture": {"source": "add"}}
    frame = trials(stored(0, {"pair": 1}, config), stored(1, {}, config))
    assert results(frame, "minimize")["number"].to_list() == [0]


@pytest.mark.parametrize("path", ["task.nmae", "task.name.more", "", "a b", '"]', "$", "task..name"])
def test_an_unknown_path_names_what_differs(path: str) -> None:
    frame = trials(
        stored(0, {"pair": 1}, {"task": {"name": "copy"}, "width": 4}),
        stored(1, {"pair": 2}, {"task": {"name": "mano"}, "width": 4}),
    )
    with pytest.raises(TransferError) as error:
        results(frame, "minimize", source=path)
    assert str(error.value) == f"no trial has {path!r}; what differs between trials is pair, task.name"


def test_pairs_are_integers() -> None:
    frame = trials(stored(0, {"pair": 0.25}, {"task": {"name": "copy"}, "architecture": {"source": "add"}}))
    with pytest.raises(TransferError, match=r"^pair pairs trials and must be an integer, but one of them has '0\.25'$"):
        results(frame, "minimize")


def test_a_study_without_trials_is_refused() -> None:
    with pytest.raises(TransferError, match="no trial yet"):
        results(trials(stored(0, {}, {})).clear(), "minimize")


def test_the_benchmark_times_a_matrix(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["transfer", "--results", "500", "--runs", "1"])
    benchmarks.transfer.main()
    assert re.match(
        r"504 results, 64 cells, .*\nmatrix +[\d.]+ s, .*\nconclusions +[\d.]+ s, .* time\n$", capsys.readouterr().out
    )
