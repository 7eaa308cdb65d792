"""A database with a study of each kind, as a laboratory has them: a search, arms, a transfer, and what waits."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import log10
from random import Random
from typing import Any

import spaces
from graft.launching.enrolling import new_study
from graft.plugins.families import families
from spaces.records import Metric, Report, Trial, TrialResult
from spaces.settings import Direction, Objective
from spaces.transfer import TransferSpace
from storage import ControlledStudy, NewStudy, Store, Terms, open_store
from tests.support.databases import heard
from tests.support.queue import ask, submit

ARMS = ("softmax", "ssa-1.5", "ssa-2", "entmax")
EFFECTS = {"softmax": 0.0, "ssa-1.5": 0.06, "ssa-2": 0.005, "entmax": -0.04}
SEEDS = 8
CONDITIONS = ("", "length=8", "length=16")
STEPS = 1000
SEARCHED, SEARCH_RUNNING, SEARCH_PLANNED = 220, 16, 300
SCORERS = ("softmax", "ssa", "entmax", "cosformer")
COPYING = {
    "task": {"name": "copying"},
    "model": {"name": "minimal"},
    "optimizer": {"name": "adamw", "learning_rate": 0.001},
    "training": {"steps": STEPS, "validation_batch": 256},
}
SPACE = """study: rate-or-dropout
task: {name: set_complement, length: 4}
"""


def plan(name: str, metric: str, direction: Direction, trials: int, space: str | None = None) -> NewStudy:
    """Return a study that is not stored yet."""
    objective = Objective(direction=direction, metric=metric, variant="raw")
    return NewStudy(
        name,
        objective=objective,
        seed=0,
        trials=trials,
        numerics=1,
        space=space or f"study: {name}\n",
        space_hash=name,
        version="0.2.0",
    )


def control(store: Store, study: NewStudy) -> ControlledStudy:
    """Return a study that this process runs from now on."""
    controlled = store.take_control(store.create_study(study), policy="full", objective=study.objective)
    controlled.set_state("running")
    return controlled


def make_trial(number: int, params: dict[str, Any], config: dict[str, Any], group: int = 0) -> Trial:
    return Trial(number=number, group=group, seed=number, draws={}, params=params, config=config, structure="")


def write_search(store: Store, ended: int = SEARCHED) -> ControlledStudy:
    """Return a running study whose objective follows the learning rate and, less, the width, but not dropout."""
    random = Random(7)
    study = control(store, plan("rate-or-dropout", "tvd", "minimize", SEARCH_PLANNED, SPACE))
    drawn: list[Trial] = []
    levels: list[float] = []
    for number in range(ended + SEARCH_RUNNING):
        rate, width = 10 ** random.uniform(-4.5, -1), random.choice([8, 16, 32, 64])
        dropout, scorer = random.uniform(0, 0.5), random.choice(SCORERS)
        misfit = 0.55 * abs(3 + log10(rate)) - 0.004 * width
        levels.append(10 ** (-1.5 + misfit + random.gauss(0, 0.15)))
        params = {"optimizer.learning_rate": rate, "model.width": width, "model.residual_dropout": dropout}
        config = {
            "task": {"name": "set_complement", "length": 4},
            "model": {"name": "minimal", "width": width, "residual_dropout": dropout, "scorer": {"name": scorer}},
            "optimizer": {"name": "adamw", "learning_rate": rate, "weight_decay": 0.0},
            "training": {"steps": STEPS, "batch": 32},
        }
        drawn.append(make_trial(number, {**params, "model.scorer": scorer}, config, number // 10))
    for worker, trials in (("worker-1", drawn[::2]), ("worker-2", drawn[1::2])):
        study.start(trials, worker)
    for step in (100, 250, 500, 750, 1000):
        share = 1 - step / STEPS
        study.record(
            [
                Report(number=number, fence=1, step=step, metrics=(Metric("tvd", "raw", "", level + share * 0.6),))
                for number, level in enumerate(levels)
                if number < ended or step <= 100 + 60 * (number - ended)
            ]
        )
    study.end([end_of(number, levels[number]) for number in range(ended)])
    workers = [
        heard(name, host=host, device="cpu (16 cores)", steps=90_000, room=100_000)
        for name, host in (("worker-1", "rack-3"), ("worker-2", "rack-4"))
    ]
    study.renew_leases(workers, 6000)
    return study


def end_of(number: int, level: float) -> TrialResult:
    """Return how a trial ended: one in forty diverged or failed."""
    if number % 40 == 13:
        return TrialResult(
            number=number, fence=1, state="diverged", objective=None, error="loss is not finite at step 450"
        )
    if number % 80 == 33:
        return TrialResult(number=number, fence=1, state="failed", objective=None, error="CUDA error: out of memory")
    state = "pruned" if level > 0.3 else "finished"
    return TrialResult(number=number, fence=1, state=state, objective=level)


def write_arms(store: Store, name: str = "scorers", arms: Sequence[str] = ARMS) -> ControlledStudy:
    """Return a study of arms, in which `ssa-1.5` is better, `entmax` worse, and `ssa-2` not told apart."""
    random = Random(3)
    keys = [(arm, seed) for seed in range(SEEDS) for arm in arms]
    study = control(store, plan(name, "accuracy", "maximize", len(keys)))
    trials = [
        make_trial(
            number,
            {"arm": arm, "configuration": 0, "seed": seed, "model.scorer": arm},
            {**COPYING, "model": {"name": "minimal", "scorer": {"name": arm}}},
        )
        for number, (arm, seed) in enumerate(keys)
    ]
    study.start(trials, "worker-1")
    levels = [0.62 + 0.02 * seed + EFFECTS.get(arm, 0.0) + random.gauss(0, 0.012) for arm, seed in keys]
    for step in range(100, STEPS + 1, 100):
        study.record(
            [
                Report(
                    number=number,
                    fence=1,
                    step=step,
                    metrics=tuple(
                        Metric("accuracy", "raw", condition, level * (1 - 0.8 ** (step / 60)) - 0.1 * index)
                        for index, condition in enumerate(CONDITIONS)
                    ),
                )
                for number, level in enumerate(levels)
            ]
        )
    study.end(
        [TrialResult(number=number, fence=1, state="finished", objective=level) for number, level in enumerate(levels)]
    )
    study.set_state("finished")
    return study


def write_transfer(store: Store, missing: int = 12) -> ControlledStudy:
    """Return a running transfer of the space `quick/transfer` whose last trials have not ended."""
    space = spaces.load("quick/transfer", families())
    assert isinstance(space, TransferSpace)
    study = control(store, new_study("quick-transfer", space))
    random = Random(5)
    gains = {"memorize": 0.0, "add": 0.08, "add_mod": -0.05}
    trials = [space.sample(number, lambda _: 0.5) for number in range(space.planned)]
    study.start(trials, "worker-1")
    results: list[TrialResult] = []
    for trial in trials[: -missing or None]:
        source, target = trial.params.get("architecture.source"), trial.params.get("transfer.target")
        gain = 0.0 if source in (None, "baseline") else 0.2 if source == target else gains[str(source)]
        objective = 0.5 + gain + random.gauss(0, 0.01)
        results.append(TrialResult(number=trial.number, fence=1, state="finished", objective=objective))
    study.end(results)
    study.renew_leases([heard("worker-1", host="rack-3", device="cpu (16 cores)", steps=9, room=10)], 6000)
    return study


def write_house(store: Store) -> list[ControlledStudy]:
    """Return the studies that run, of a database with some of each kind."""
    for name, owner in (("next-rates", "ann"), ("long-words", "ben"), ("abandoned", "ann")):
        submit(store, plan(name, "loss", "minimize", 400), Terms(owner=owner, priority=0))
    waiting = store.queue.sound_entries()[0][0].study_id
    reason = "waits for lanes: studies of a higher class have them all"
    store.queue.note_lanes(waiting, lanes=0, share=0.0, reason=reason)
    ask(store, "pause", "long-words")
    ask(store, "cancel", "abandoned")
    kept = [write_search(store), write_arms(store), write_arms(store, "scorers-again", ARMS[:2]), write_transfer(store)]
    store.annotate(kept[0].id, note="Is the learning rate or dropout at fault?", tags=["rates", "thesis"])
    store.annotate_trials(kept[0].id, numbers=[31, 105], starred=True, added=["baseline"])
    store.annotate_trials(kept[0].id, numbers=[17, 31], added=["seen"], note="again with a lower rate")
    store.annotate(kept[1].id, tags=["thesis"])
    failed = control(store, plan("out-of-memory", "loss", "minimize", 3))
    failed.start(
        [make_trial(number, {}, COPYING) for number in range(3)],
        "worker-9",
    )
    error = "CUDA error: out of memory"
    ends = [TrialResult(number=number, fence=1, state="failed", objective=None, error=error) for number in range(3)]
    failed.end(ends)
    failed.set_state("failed")
    control(store, plan("just-begun", "loss", "minimize", 50))
    old = store.create_study(plan("last-year", "loss", "minimize", 10))
    store.annotate(old, archived=True)
    return kept


@contextmanager
def house(url: str) -> Generator[Store]:
    """Yield a new database, whose studies are run by this process until the end of the block."""
    with open_store(url) as store:
        write_house(store)
        yield store
