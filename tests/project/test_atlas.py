"""The atlas of inductive biases: its statistics on made trials, its page, and a small one trained and replayed."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from benchmarks.atlas.__main__ import FOLDER, KEPT, read_earlier, read_trial
from benchmarks.atlas.effects import compare_atlases, detectable, find_effects, find_gaps, find_power
from benchmarks.atlas.page import sentences, write_page
from benchmarks.atlas.plan import TaskPlan, read_plan
from benchmarks.atlas.trials import collect, replay, train
from search.analysis.statistics.verdicts import BETTER, UNDECIDED
from workers.numerics.version import NUMERICS

SEEDS = 8


def made_trials(effects: np.ndarray, random: np.random.Generator) -> pl.DataFrame:
    """Accuracies of made trials; `effects` [tasks, arms], in deviations of the paired difference; no diverged trial.

    Arms share the seed's part, so that pairing matters; the baseline's noise is in all differences of a task.
    """
    tasks, arms = effects.shape
    task, arm, seed = (axis.ravel() for axis in np.meshgrid(range(tasks), range(arms + 1), range(SEEDS), indexing="ij"))
    shared = random.normal(size=(tasks, SEEDS))[task, seed]
    noise = random.normal(size=len(task)) / np.sqrt(2)  # so that a difference of two has a deviation of 1
    shift = np.concatenate([np.zeros((tasks, 1)), effects], axis=1)[task, arm]
    return pl.DataFrame(
        {
            "task": [f"task {number}" for number in task],
            "number": np.arange(len(task)),
            "arm": ["baseline" if number == 0 else f"arm {number}" for number in arm],
            "seed": seed,
            "state": "finished",
            "endpoint": "in",
            "metric": "accuracy",
            "direction": "maximize",
            "value": (50 + 3 * shared + noise + shift) / 100,
            "floor": 0.1,
        }
    )


@pytest.fixture(scope="module")
def made() -> pl.DataFrame:
    """Four tasks; the second arm is 4 deviations better on all of them."""
    return made_trials(np.tile([0.0, 4.0, 0.0], (4, 1)), np.random.default_rng(1))


def test_effects_are_those_of_the_paired_t_test(made: pl.DataFrame) -> None:
    atlas, oracle = find_effects(made), []
    for row in atlas.cells.iter_rows(named=True):
        scores, base = (
            made.filter((pl.col("task") == row["task"]) & (pl.col("arm") == arm)).sort("seed")["value"].to_numpy() * 100
            for arm in (row["arm"], "baseline")
        )
        test = stats.ttest_rel(scores, base)
        interval = test.confidence_interval(0.95)
        assert row["mean"] == pytest.approx(np.mean(scores - base))
        assert (row["low"], row["high"]) == pytest.approx((interval.low, interval.high))
        assert row["p"] == pytest.approx(test.pvalue)
        oracle.append((scores, base, test.pvalue))
    adjusted = stats.false_discovery_control([p for *_, p in oracle])
    assert atlas.cells["q"].to_list() == pytest.approx(adjusted.tolist())
    level = 1 - 0.05 * int((adjusted < 0.05).sum()) / len(adjusted)
    wide = [stats.ttest_rel(scores, base).confidence_interval(level) for scores, base, _ in oracle]
    assert atlas.cells["wide_low"].to_list() == pytest.approx([limits.low for limits in wide])
    assert atlas.cells["wide_high"].to_list() == pytest.approx([limits.high for limits in wide])


def test_a_corrected_interval_excludes_zero_just_where_an_effect_is_claimed(made: pl.DataFrame) -> None:
    cells = find_effects(made).cells
    excludes = (pl.col("wide_low") > 0) | (pl.col("wide_high") < 0)
    assert cells.filter(excludes != (pl.col("verdict") != UNDECIDED)).is_empty()
    assert set(cells.filter(pl.col("arm") == "arm 2")["verdict"]) == {BETTER}


def test_sentences_are_of_claimed_cells_on_what_was_learned(made: pl.DataFrame) -> None:
    said = sentences(find_effects(made))
    assert len(said) == 1
    assert "`arm 2` raises accuracy" in said[0]
    assert sentences(find_effects(made.with_columns(floor=0.9))) == []  # nothing is learned


def test_errors_count_by_their_logarithm_with_less_as_better(made: pl.DataFrame) -> None:
    halved = pl.when(pl.col("arm") == "arm 1").then(pl.col("seed") + 1).otherwise(2 * pl.col("seed") + 2)
    errors = made.with_columns(value=halved.cast(pl.Float64), direction=pl.lit("minimize"), floor=100.0)
    cells = find_effects(errors).cells.filter(pl.col("arm") == "arm 1")
    assert cells["mean"].to_list() == pytest.approx([100 * np.log(2)] * 4)


def test_a_diverged_trial_has_the_score_of_the_floor(made: pl.DataFrame) -> None:
    lost = (pl.col("arm") == "arm 2") & (pl.col("seed") < 4)
    some = made.with_columns(
        value=pl.when(lost).then(None).otherwise("value"),
        state=pl.when(lost).then(pl.lit("diverged")).otherwise("state"),
    )
    cells = find_effects(some).cells.filter(pl.col("arm") == "arm 2")
    assert cells["diverged"].to_list() == [4] * 4
    assert cells["pairs"].to_list() == [SEEDS] * 4
    assert all(mean < -10 for mean in cells["mean"])  # half of them 40 points lower


def test_atlases_are_compared_cell_by_cell(made: pl.DataFrame) -> None:
    fewer = made.filter(pl.col("arm") != "arm 3", pl.col("task") != "task 0")
    turned = fewer.with_columns(value=pl.when(pl.col("arm") == "arm 2").then(1 - pl.col("value")).otherwise("value"))
    both = compare_atlases(find_effects(fewer), find_effects(pl.concat([turned, made.filter(task="task 0")])))
    assert both.height == 6  # three tasks, two arms
    assert set(both.filter(arm="arm 1")["again_verdict"]) == {UNDECIDED}
    cells = both.filter(arm="arm 2")
    assert set(cells["verdict"]) == {BETTER}
    assert all(again < 0 < mean for mean, again in cells.select("mean", "again_mean").rows())


def test_a_gap_is_the_difference_of_the_two_sets(made: pl.DataFrame) -> None:
    shifted = made.with_columns(
        endpoint=pl.lit("out"), value=pl.col("value") - pl.when(pl.col("arm") == "arm 1").then(0.1).otherwise(0.3)
    )
    gaps = find_gaps(pl.concat([made, shifted]), "arm 1")
    assert gaps["mean"].to_list() == pytest.approx([20] * 4)
    assert gaps["task"].n_unique() == 4
    assert find_gaps(made, "arm 1").is_empty()  # no shifted set


def test_the_detectable_effect_is_detected_four_times_in_five() -> None:
    random, effect = np.random.default_rng(2), detectable(2.0, SEEDS)
    changes = effect + 2 * random.normal(size=(4000, SEEDS))
    assert np.mean(stats.ttest_1samp(changes, 0, axis=1).pvalue < 0.05) == pytest.approx(0.8, abs=0.03)


def test_the_power_is_that_of_many_tests() -> None:
    changes = np.random.default_rng(5).normal(1, 1, size=(20_000, SEEDS))
    p = stats.ttest_1samp(changes, 0, axis=1).pvalue
    for level in (0.05, 0.01):
        assert find_power(1, SEEDS, level) == pytest.approx(np.mean(p < level), abs=0.01)


@pytest.mark.long
def test_without_effects_few_atlases_claim_any() -> None:
    """Of 300, at most 5 % by right; chance gives more than 25 once in two hundred."""
    random = np.random.default_rng(3)
    claims = sum(find_effects(made_trials(np.zeros((8, 11)), random)).found.height > 0 for _ in range(300))
    assert claims <= 25


@pytest.mark.long
def test_few_of_the_claims_are_false_and_few_corrected_intervals_miss() -> None:
    random, false, missed, atlases = np.random.default_rng(4), 0.0, 0.0, 150
    for _ in range(atlases):
        effects = np.where(random.random((8, 11)) < 0.2, random.choice([-2.0, 2.0], (8, 11)), 0.0)
        claims = find_effects(made_trials(effects, random)).found
        truth = np.array(
            [effects[int(task[5:]), int(arm[4:]) - 1] for task, arm in claims.select("task", "arm").iter_rows()]
        )
        if len(truth):
            false += np.mean(truth == 0)
            missed += np.mean((truth < claims["wide_low"].to_numpy()) | (truth > claims["wide_high"].to_numpy()))
    assert false / atlases < 0.065
    assert missed / atlases < 0.065


def test_the_kept_page_is_the_one_made_from_the_kept_trials(tmp_path: Path) -> None:
    write_page(read_plan(), pl.read_parquet(KEPT), read_earlier(), tmp_path)
    for name in ("results.md", "matrix.svg"):
        assert (tmp_path / name).read_text() == (FOLDER / name).read_text(), name


def test_no_sentence_of_the_kept_atlas_has_an_interval_with_zero() -> None:
    atlas = find_effects(pl.read_parquet(KEPT))
    said = sentences(atlas)
    assert 1 <= len(said) <= 10
    assert all(float(text.rpartition("(")[2].split(" to ")[0]) > 0 for text in said)
    assert KEPT.stat().st_size < 1_000_000


SMALL = """
seeds: 2
arms:
  baseline: {}
  alibi: {model.position: alibi}
  bema: {averaging: bema}
model: {name: transformer, depth: 1, heads: 2, width: 8}
tasks:
  copying:
    task: {name: copying, length: 3, validation_length: 3, test_length: 4}
    training: {steps: 20, batch: 8, rate: 0.01}
    metric: {maximize: accuracy}
    in: {condition: "", floor: 0.02}
    out: {condition: length=4, floor: 0.02}
  affine:
    model: {name: regressor}
    task: {name: affine, points: 4, curriculum_start: 4, test_functions: 2, test_inputs: 1, deviants: 1}
    training: {steps: 20, batch: 8, rate: 0.01}
    metric: {minimize: mse}
    in: {condition: "", floor: zero_mse}
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, TaskPlan], pl.DataFrame]:
    """Return a small atlas, trained twice: the second time nothing is left."""
    folder = tmp_path_factory.mktemp("atlas")
    (folder / "plan.yaml").write_text(SMALL)
    plan, database = dict(read_plan(folder / "plan.yaml")), str(folder / "atlas.db")
    for _ in range(2):
        train(plan.values(), database)
    return plan, collect(plan.values(), [database])


@pytest.mark.long
def test_a_small_atlas_is_trained_kept_and_replayed(small: tuple[dict[str, TaskPlan], pl.DataFrame]) -> None:
    plan, kept = small
    assert kept.group_by("task", maintain_order=True).len().rows() == [("copying", 12), ("affine", 6)]
    assert kept.select(pl.col("value", "floor").null_count()).row(0) == (0, 0)
    assert kept.filter(pl.col("arm") == "bema")["variant"].unique().to_list() == ["bema"]
    for task, number in (("copying", 3), ("affine", 5)):
        again = replay(kept, task, number)
        assert [comparison.agrees for comparison in again] == [True] * len(plan[task].endpoints)
    assert kept["numerics"].unique().to_list() == [NUMERICS]
    assert all(kind.split()[0] in ("native", "traced") for kind in kept["step_kind"])
    wrong = kept.with_columns(value=pl.col("value") + 0.5)
    assert not any(comparison.agrees for comparison in replay(wrong, "copying", 3))


@pytest.mark.parametrize(("text", "choices"), [("copying:999", "0 to 103"), ("nothing:1", "tasks copying, ")])
def test_a_trial_that_is_not_kept_is_refused_with_the_choices(text: str, choices: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"{text}.*{choices}"):
        read_trial(text)
