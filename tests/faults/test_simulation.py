"""A simulated study: workers that come, go, freeze, thaw and stutter, trials that kill them, databases that forget to
answer, controllers that die at any write; time is a number. Whatever happens, every trial ends once, with its numbers.

The database is a dict that is as strict as storage, or SQLite itself, with a clock of the simulation's.

`python -m tests.faults.test_simulation 20000` tries so many seeds, `--store sqlite` on SQLite; a seed that fails
becomes an `@example` below.
"""

from __future__ import annotations

import argparse

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from tests.support.simulation import MANY, Simulation, SqliteSimulation


@pytest.mark.fast
class TestSimulation(Simulation.TestCase):
    settings = settings(MANY, max_examples=60)


@pytest.mark.slow
class TestManySimulations(Simulation.TestCase):
    settings = MANY


class TestSqliteSimulation(SqliteSimulation.TestCase):
    settings = settings(MANY, max_examples=3)


@pytest.mark.slow
class TestManySqliteSimulations(SqliteSimulation.TestCase):
    settings = settings(MANY, max_examples=30)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Simulated studies: whatever happens, every trial ends once.")
    parser.add_argument("seeds", type=int, nargs="?", default=20_000)
    parser.add_argument("--store", choices=("dict", "sqlite"), default="dict")
    options = parser.parse_args()
    machine = SqliteSimulation if options.store == "sqlite" else Simulation
    run_state_machine_as_test(machine, settings=settings(MANY, max_examples=options.seeds))
    print(f"{options.seeds:,} simulated studies on {options.store}, each trial of each ended once with its numbers")
