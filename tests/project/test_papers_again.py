"""The papers' claims trained again: comparisons of made trials against scipy, and a small plan trained and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from benchmarks.papers.plan import Level, Plan, Row, StudyPlan, read_plan
from benchmarks.papers.table import table
from benchmarks.papers.trials import collect, compare, reach, replay, train
from search.steering.strategies import begin

ARMS = Row(
    study="made", item="000/table-1", claim="less", metric="mse", condition="", arm="ssa", against="softmax",
    expected="less", paper="1 against 2",
)  # fmt: skip
WITHIN = Row(
    study="made", item="004/figure-6", claim="no difference", metric="mse", condition="hot", against="cold",
    expected="open", paper="",
)  # fmt: skip


def made(values: dict[tuple[str, str], np.ndarray]) -> pl.DataFrame:
    """Kept trials of a study, by arm and condition."""
    return pl.concat(
        [
            pl.DataFrame({"seed": np.arange(len(numbers)), "value": numbers}).with_columns(
                study=pl.lit("made"), metric=pl.lit("mse"), arm=pl.lit(arm), condition=pl.lit(condition)
            )
            for (arm, condition), numbers in values.items()
        ]
    )


def test_rows_are_compared_by_the_paired_t_test_and_corrected_together() -> None:
    random = np.random.default_rng(3)
    shared, noise = random.normal(5, 2, 12), random.normal(0, 0.3, (3, 12))
    values = {
        ("softmax", ""): shared + 1,
        ("ssa", ""): shared + noise[0],
        ("", "hot"): noise[1],
        ("", "cold"): noise[2],
    }
    plan = Plan(studies={}, rows=(ARMS, WITHIN))
    first, second = compare(plan, made(values))
    expected = [
        stats.ttest_rel(values["ssa", ""], values["softmax", ""]).pvalue,
        stats.ttest_rel(noise[1], noise[2]).pvalue,
    ]
    assert first.adjusted_p == pytest.approx(2 * expected[0])
    assert second.adjusted_p == pytest.approx(expected[1])
    assert first.verdict == "less, as planned"
    assert second.verdict == "not told apart"
    assert first.difference.mean == pytest.approx(float((values["ssa", ""] - values["softmax", ""]).mean()))
    swapped = {("softmax", ""): values["ssa", ""], ("ssa", ""): values["softmax", ""]}
    assert compare(Plan(studies={}, rows=(ARMS,)), made(swapped))[0].verdict == "more, not as planned"


def test_the_plan_names_spaces_arms_and_paths_that_there_are() -> None:
    plan = read_plan()
    assert {row.study for row in (*plan.rows, *plan.levels)} <= plan.studies.keys()
    assert not {row.study for row in plan.rows} & {level.study for level in plan.levels}
    for study in plan.studies.values():
        with study.as_space().load() as space:
            assert space.name == study.study
            arms = {arm.name for arm in getattr(space, "arms", ())}
            [trial] = begin(space, []).ask(range(1))
        ends = range(0, trial.config["training"]["steps"] + 1, trial.config["training"]["validate_every"])
        assert all({*level.steps} <= {*ends} for level in plan.levels if level.study == study.name)
        for row in plan.rows:
            if row.study == study.name and row.arm:
                assert {row.arm, row.against} <= arms


def test_a_level_is_the_mean_over_seeds_with_students_interval() -> None:
    values = np.array([0.2, 0.4, 0.9, np.nan])
    kept = made({("", ""): values}).with_columns(pl.col("value").fill_nan(None), step=pl.lit(3))
    level = Level(study="made", item="002/table-4", metric="mse", steps=(3, 6), paper="a curve")
    assert reach(Plan(studies={}, rows=(), levels=(level,)), kept.drop("step")) == []
    [point] = reach(Plan(studies={}, rows=(), levels=(level,)), kept)
    assert (point.step, point.mean, point.seeds) == (3, pytest.approx(0.5), 3)
    expected = stats.t.interval(0.95, 2, loc=0.5, scale=stats.sem(values[:3]))
    assert point.interval == pytest.approx(expected)


@pytest.mark.long
def test_a_small_plan_is_trained_kept_and_trained_again_to_the_bit(tmp_path: Path) -> None:
    sizes = {"training.steps": 6, "training.validate_every": 3, "training.batch": 4, "training.validation_batch": 8}
    study = StudyPlan(name="made", space="quick/affine", set={"seeds": 2, "search.seed": 5, **sizes})
    alike = {"search.trials": 2, "search.group": 2, **sizes}
    seeds = StudyPlan(name="seeds", space="algorithmic/memorize", set=alike)
    plan = Plan(
        studies={"made": study, "seeds": seeds},
        rows=(ARMS, replace(ARMS, condition="functions=10 inputs=1")),
        levels=(Level(study="seeds", item="002/table-4", metric="accuracy", steps=(3, 6), paper="a curve"),),
    )
    url = f"sqlite:///{tmp_path}/papers.db"
    assert collect(plan, _train(plan, url)).height == 2 * 2 * 2 + 2 * 2
    kept = collect(plan, url)
    assert sorted(kept.filter(study="made")["arm"].unique()) == ["softmax", "ssa"]
    assert kept.filter(study="made")["step"].unique().to_list() == [6]
    comparison = replay(kept, "made", 2)
    assert (comparison.equal, comparison.values) == (2, 2)
    comparison = replay(kept, "seeds", 1)
    assert str(comparison) == "seeds:1: 2 of 2 values equal to the bit"
    assert str(replace(comparison, now="made up")).endswith(
        f", trained by {comparison.before} before and by made up now"
    )
    text = table(plan, kept, compare(plan, kept), reach(plan, kept))
    assert "search launch quick/affine --set seeds=2 --set search.seed=5" in text
    assert text.count("| 000/table-1 |") == 2
    assert "| 002/table-4 | seeds | accuracy | 3 | a curve |" in text


def _train(plan: Plan, url: str) -> str:
    train(plan.studies.values(), url)
    train(plan.studies.values(), url)  # nothing is left
    return url
