"""A study of arms for the pages, and their client."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from spaces.records import Metric, Report, Trial, TrialResult
from spaces.settings import Objective
from storage import NewStudy, open_store
from tests.support.web import client_of

ARMS, SEEDS = ("softmax", "warm", "ssa"), 6
CONFIG = {"task": {"name": "copying"}, "model": {"name": "minimal", "scorer": {"name": "softmax"}}}
OBJECTIVE = Objective(direction="maximize", metric="accuracy", variant="raw")


def accuracy(arm: int, seed: int) -> float:
    """`ssa` is better by .3, `warm` is not told apart from the baseline."""
    return 0.5 + 0.01 * seed + (0.3 + 0.005 * seed * seed if arm == 2 else 0.011 * (-1) ** seed * arm)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    url = f"sqlite:///{tmp_path_factory.mktemp('arms')}/graft.db"
    keys = [(arm, seed) for arm in range(len(ARMS)) for seed in range(SEEDS)]
    with open_store(url) as store:
        for name, has_arms in (("arms", True), ("plain", False)):
            new = NewStudy(
                name,
                space=f"study: {name}\n",
                space_hash="",
                objective=OBJECTIVE,
                seed=0,
                trials=len(keys),
                version="0.2.0",
                numerics=1,
            )
            study = store.take_control(store.create_study(new), policy="full", objective=OBJECTIVE)
            params = [
                {"arm": ARMS[arm], "configuration": 0, "seed": seed} if has_arms else {"rate": accuracy(arm, seed)}
                for arm, seed in keys
            ]
            trials = [
                Trial(number=number, group=0, seed=number, draws={}, params=values, config=CONFIG, structure="")
                for number, values in enumerate(params)
            ]
            study.start(trials, "worker")
            for step in (1, 2):
                study.record(
                    [
                        Report(
                            number=number,
                            fence=1,
                            step=step,
                            metrics=tuple(
                                Metric("accuracy", "raw", condition, accuracy(arm, seed) * step / 2)
                                for condition in ("", "length=8")
                            ),
                        )
                        for number, (arm, seed) in enumerate(keys)
                    ]
                )
            study.end(
                [
                    TrialResult(number=number, fence=1, state="finished", objective=accuracy(arm, seed))
                    for number, (arm, seed) in enumerate(keys)
                ]
            )
    return client_of(url)
