"""The plain loop: a process per core takes one trial after the other; results go into one SQLite file.

python -m benchmarks.peers.loop_peer PLAN FOLDER
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sqlite3
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import torch

from benchmarks.peers.catalogue import PROBLEMS
from benchmarks.peers.plain import PlainTrial
from benchmarks.peers.plan import Peer, Plan, Trained, module_command, values

TABLES = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE trials (number INTEGER PRIMARY KEY, params TEXT, steps INTEGER, started REAL, finished REAL,
                         objective REAL);
    CREATE TABLE metrics (number INTEGER, step INTEGER, name TEXT, value REAL, PRIMARY KEY (number, step, name));
"""


class Loop(Peer):
    """A plain loop in one process per core."""

    def command(self, plan: Plan, folder: Path) -> list[str]:
        return module_command("benchmarks.peers.loop_peer", plan, folder)

    def results(self, folder: Path) -> list[Trained]:
        with closing(sqlite3.connect(database(folder))) as connection:
            rows = connection.execute("SELECT steps, started, finished, objective FROM trials WHERE finished > 0")
            return [Trained(*row) for row in rows]


def database(folder: Path) -> Path:
    return folder / "results.db"


def connect(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(database(folder), timeout=60)


def run_trial(plan: Plan, folder: Path, number: int) -> None:
    """Draw, train and record one trial; each validation is a transaction of its own."""
    problem = PROBLEMS[plan.task]
    draws = problem.draws(plan.dropout)
    random_numbers = random.Random(f"{plan.seed}/{number}")
    knobs = values(draws, {path: random_numbers.uniform(draw.low, draw.high) for path, draw in draws.items()})
    with closing(connect(folder)) as connection:
        with connection:
            row = (number, json.dumps(knobs), time.time())
            connection.execute("INSERT INTO trials (number, params, started) VALUES (?, ?, ?)", row)
        trial = PlainTrial(problem, knobs, seed=number, steps=plan.steps, device="cpu")
        for step, metrics in trial.reports(plan.validate_every, plan.validation_batch):
            with connection:
                rows = [(number, step, name, value) for name, value in metrics.items()]
                connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)
                connection.execute(
                    "UPDATE trials SET steps = ?, finished = ?, objective = ? WHERE number = ?",
                    (step, time.time(), metrics[problem.objective], number),
                )


def main() -> None:
    """Run all trials of the plan."""
    plan, folder = Plan.from_arguments()
    with closing(connect(folder)) as connection:
        connection.executescript(TABLES)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        plan.processes, mp_context=spawn, initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        trials = [pool.submit(run_trial, plan, folder, number) for number in range(plan.trials)]
        for trial in trials:
            trial.result()


if __name__ == "__main__":
    main()
