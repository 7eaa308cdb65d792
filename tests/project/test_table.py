"""The public table of trials: its plan's spaces are spaces, and a small one is trained, kept and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from benchmarks.table.__main__ import read, write
from benchmarks.table.plan import TaskPlan, read_plan
from benchmarks.table.trials import collect, replay, train

PLAN = read_plan()
SMALL = {"slices": 2, "trials_of_slice": 3, "validations": 2, "validation_batch": 8}


def small(name: str) -> TaskPlan:
    """Return a task of the plan with two slices of three short trials."""
    return replace(PLAN[name], steps=4, plan=SMALL, knobs={**PLAN[name].knobs, "optimizer.schedule.warmup": 1})


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) for name in PLAN])
def test_the_slices_of_a_task_are_spaces(name: str) -> None:
    for number in (0, 1, 79):
        with PLAN[name].as_space(number).load() as space:
            space.check(8)
            assert space.name == PLAN[name].study(number)


def test_slices_have_structures_of_their_own_which_the_name_and_the_number_determine() -> None:
    assert PLAN["copying"].choose(3) == read_plan()["copying"].choose(3)
    assert len({str(PLAN[name].choose(number)) for name in ("copying", "add") for number in range(20)}) == 40


@pytest.mark.long
def test_a_small_table_is_trained_kept_and_replayed(tmp_path: Path) -> None:
    tasks = [small("set_complement"), small("copying")]
    train(tasks, str(tmp_path / "table.db"))
    train(tasks, str(tmp_path / "table.db"))  # nothing is left
    table = collect(tasks, str(tmp_path / "table.db"))
    assert table.trials.select("task", "slice", "number").rows() == [
        (task.name, number, trial) for task in tasks for number in range(2) for trial in range(3)
    ]
    assert set(table.trials["state"]) == {"finished"}
    assert table.trials["model.scorer"].null_count() == table.trials["optimizer.learning_rate"].null_count() == 0
    write(table, tmp_path / "parts" / "1")
    elsewhere = str(tmp_path / "elsewhere.db")
    more = [small("add"), *tasks]
    train(more, elsewhere, table.slices)
    rest = collect(more, elsewhere, table.slices)
    assert rest.slices == {("add", 0), ("add", 1)}
    write(rest, tmp_path / "parts" / "2")
    whole = read(tmp_path / "parts")
    assert whole.slices == {(task.name, number) for task in more for number in range(2)}
    assert whole.metrics.height == table.metrics.height + rest.metrics.height

    again = replay(whole, "copying", 1, 2)
    assert again.equal == again.values > 0
    wrong = replace(table, metrics=table.metrics.with_columns(pl.col("value") + 1))
    assert replay(wrong, "copying", 1, 2).equal == 0
