"""The papers' claims trained again: comparisons of made trials against scipy, and a small plan trained and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

from benchmarks.papers.plan import Plan, Row, StudyPlan, read_plan
from benchmarks.papers.table import table
from benchmarks.papers.trials import collect, compare, replay, train

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
    assert {row.study for row in plan.rows} <= plan.studies.keys()
    for study in plan.studies.values():
        with study.as_space().load() as space:
            assert space.name == study.study
            arms = {arm.name for arm in getattr(space, "arms", ())}
        for row in plan.rows:
            if row.study == study.name and row.arm:
                assert {row.arm, row.against} <= arms


@pytest.mark.long
def test_a_small_plan_is_trained_kept_and_trained_again_to_the_bit(tmp_path: Path) -> None:
    sizes = {"training.steps": 6, "training.validate_every": 3, "training.batch": 4, "training.validation_batch": 8}
    study = StudyPlan(name="made", space="quick/affine", set={"seeds": 2, "search.seed": 5, **sizes})
    plan = Plan(studies={"made": study}, rows=(ARMS, replace(ARMS, condition="functions=10 inputs=1")))
    url = f"sqlite:///{tmp_path}/papers.db"
    assert collect(plan, _train(plan, url)).height == 2 * 2 * 2
    kept = collect(plan, url)
    assert sorted(kept["arm"].unique()) == ["softmax", "ssa"]
    found = replay(kept, "made", 2)
    assert (found.equal, found.values) == (2, 2)
    text = table(plan, kept, compare(plan, kept))
    assert "search launch quick/affine --set seeds=2 --set search.seed=5" in text
    assert text.count("| 000/table-1 |") == 2


def _train(plan: Plan, url: str) -> str:
    train(plan.studies.values(), url)
    train(plan.studies.values(), url)  # nothing is left
    return url
