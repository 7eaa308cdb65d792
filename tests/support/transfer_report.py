"""A transfer with known gains, written to a database."""

from __future__ import annotations

import random

from search.analysis.transfer.compatibility_matrix import BASELINE
from spaces.records import Trial, TrialResult
from spaces.settings import Objective
from storage.store import NewStudy, open_store

TASKS = ("add", "copy", "mano", "memorize")
GAINED = {"add": 12.0, "copy": -6.0, "mano": 3.0, "memorize": 0.0}
"""Points that a source gains on other tasks; on its own it gains 25."""


def value(source: str, target: str, pair: int) -> float:
    noise = random.Random(f"{source} {target} {pair}").uniform(-0.003, 0.003)
    gained = 0.0 if source == BASELINE else 25.0 if source == target else GAINED[source]
    return 0.4 + 0.01 * pair + gained / 100 + noise


def trial(number: int, source: str, target: str, pair: int) -> Trial:
    config = {"task": {"name": target}, "model": {"name": "transformer", "scorer": {"name": "softmax"}}}
    return Trial(
        number=number,
        group=number // 5,
        seed=number,
        draws={},
        params={"architecture.source": source, "pair": pair},
        config=config | {"architecture": {"source": source}},
        structure="{}",
    )


def write(url: str, name: str, pairs: int = 6) -> int:
    """Return the id of a study of all sources on all targets but copy on mano, where one trial diverged."""
    objective = Objective(direction="maximize", metric="accuracy", variant="raw")
    with open_store(url) as store:
        study_id = store.create_study(
            NewStudy(
                name, space="", space_hash="", objective=objective, seed=0, trials=200, version="0.2.0", numerics=1
            )
        )
        study = store.take_control(study_id, policy="full", objective=objective)
        keys = [(source, target, pair) for target in TASKS for pair in range(pairs) for source in (BASELINE, *TASKS)]
        keys = [key for key in keys if key[:2] != ("copy", "mano")]
        started = [trial(number, *key) for number, key in enumerate(keys)]
        study.start(started, "worker")
        lost = keys.index(("add", "memorize", pairs - 1))
        ended = [
            TrialResult(number=number, fence=1, state="finished", objective=value(*key))
            if number != lost
            else TrialResult(number=number, fence=1, state="diverged", objective=None, error="loss is not finite")
            for number, key in enumerate(keys)
        ]
        study.end(ended)
    return study_id
