"""Launches that train, compared with random searches from a table's trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks import launched
from benchmarks.stopping import Curves
from benchmarks.table.plan import read_plan

SMALL = {"slices": 2, "trials_of_slice": 3, "validations": 2, "validation_batch": 8}


@pytest.mark.fast
def test_the_tasks_are_those_that_chance_drew_of_the_eleven() -> None:
    import random

    eleven = {
        "max_retrieval", "add_reversed", "memorize", "haystack", "some", "interleaved_regression", "affine", "othello",
        "masked_language", "clrs_bfs", "clrs_minimum",
    }  # fmt: skip
    assert random.Random(0).sample(sorted(eleven), 6) == list(launched.TASKS)
    assert eleven <= read_plan().keys()


@pytest.mark.fast
def test_a_random_search_counts_the_trials_and_steps_to_the_level() -> None:
    """One trial of 96 reaches the level; each makes three validations of 10 steps."""
    costs = np.ones((96, 3))
    costs[17, -1] = 0.0
    searches = launched.random_searches(Curves(task="made", costs=costs, steps=10), 0.5, stops=False)
    assert searches.height == launched.ORDERS
    for seed, trials, steps, best in searches.select("seed", "trials", "steps", "best_of_64").rows():
        index = np.random.default_rng(int(seed)).permutation(96).tolist().index(17)
        expected = (index + 1, 30 * (index + 1), 0) if index < 64 else (65, 30 * 64, 1)
        assert (trials, steps, best) == expected


@pytest.mark.fast
def test_a_random_search_that_stops_trials_makes_fewer_steps() -> None:
    final = np.random.default_rng(0).random(96)
    curves = Curves(task="made", costs=np.repeat(final[:, None], 8, axis=1), steps=10)
    level = float(np.sort(final)[1])
    whole, stopped = (launched.random_searches(curves, level, stops=stops) for stops in (False, True))
    assert stopped["trials"].equals(whole["trials"])  # curves that never cross: the best is never stopped
    assert stopped["steps"].mean() < 0.6 * whole["steps"].mean()  # type: ignore[operator]


@pytest.mark.long
def test_launches_are_trained_kept_in_the_order_of_their_ends_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(read_plan()["some"], steps=4, plan=SMALL)
    task = replace(task, knobs={**task.knobs, "optimizer.schedule.warmup": 1})
    monkeypatch.setattr(launched, "read_plan", lambda: {"some": task})
    monkeypatch.setattr(launched, "TASKS", ("some",))
    monkeypatch.setattr(launched, "SEEDS", 1)
    monkeypatch.setattr(launched, "COLD", 3)
    monkeypatch.setattr(launched, "KEPT", tmp_path / "launches.parquet")
    no_table: Any = object()
    monkeypatch.setattr(launched, "sources_of_table", lambda _: [])
    monkeypatch.setattr(launched, "learn_prior", list[Any])
    monkeypatch.setattr(launched, "write_prior", lambda _, path: path.touch())
    for sampler in ("tpe", "random"):
        monkeypatch.setattr(launched, "SAMPLERS", {sampler: sampler})
        for _ in range(2):  # the second time nothing is left
            launched.train(no_table, str(tmp_path / f"{sampler}.db"), tmp_path / "priors", ["some"], 1)
    monkeypatch.setattr(launched, "SAMPLERS", {"tpe": "tpe", "random": "random"})
    kept = launched.collect([str(tmp_path / f"{name}.db") for name in ("random", "tpe")])
    assert kept.columns == ["task", "search", "seed", "number", "state", "objective", "steps", "made", "curve"]
    assert kept["made"].to_list() == [4, 8, 12, 4, 8, 12]
    assert kept["curve"].list.len().to_list() == [2] * 6
    assert kept["curve"].list.last().equals(kept["objective"], check_names=False)

    kept.write_parquet(launched.KEPT)  # what is kept is neither trained nor read again
    launched.train(no_table, str(tmp_path / "none.db"), tmp_path / "priors", ["some"], 1)
    assert not (tmp_path / "none.db").exists()
    assert launched.collect([]).equals(kept)

    # 100 random trials, one of which is as good as can be, and a search that finds as good a one at its second
    random = pl.concat([kept.filter(search="random").head(1)] * 100).with_columns(
        curve=pl.Series([[0.5, 1.0 if number == 17 else 0.001 * number] for number in range(100)])
    )
    tpe = kept.filter(search="tpe").with_columns(objective=pl.Series([0.01, 1.0, 0.3]))
    searches = launched.measure(pl.concat([random, tpe]))
    assert searches["search"].unique().sort().to_list() == ["random", "random + asha", "tpe"]
    [row] = searches.filter(search="tpe").to_dicts()
    assert row == {
        "task": "some", "search": "tpe", "seed": 0, "trials": 2.0, "steps": 8.0, "best_of_64": -1.0, "is_easy": False,
    }  # fmt: skip
