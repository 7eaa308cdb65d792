"""A queue in the database, and a study that is taken from it."""

from __future__ import annotations

import functools
import json
import operator
import threading
from collections.abc import Generator
from contextlib import contextmanager

from spaces.plugins.bundles import Bundle, Member, Source
from spaces.settings import Objective
from storage import NewStudy, QueueEntry, Store, StoreRequest, Terms
from storage.store_request import Action

STUDY = NewStudy(
    "one",
    space="study: one",
    space_hash="hash",
    objective=Objective(direction="minimize", metric="tvd", variant="raw"),
    seed=3,
    trials=8,
    version="0.2.0",
    numerics=3,
    bundles=(
        Bundle(
            sources=(Source(module="mine", path="/a/mine.py", text="x = 'é'\n"),),
            members=(Member(family="scorer", name="mine", module="mine", line=1, origin="./mine.py"),),
        ),
    ),
)
TERMS = Terms(owner="ann", priority=2, weight=0.5, max_lanes=7)


def submit(store: Store, study: NewStudy = STUDY, terms: Terms = TERMS) -> QueueEntry:
    """Queue a study."""
    return store.queue.apply(StoreRequest.of_study(study, terms))


def ask(store: Store, action: Action, study: str, *, priority: int = 0) -> QueueEntry:
    """Have a study paused, resumed, cancelled or reprioritised."""
    return store.queue.apply(StoreRequest(action=action, study=study, terms=Terms(priority=priority)))


@contextmanager
def taking(store: Store) -> Generator[None]:
    """Inside, requests are taken in, as a service does."""
    ended = threading.Event()

    def take() -> None:
        while not ended.wait(0.02):
            store.take_requests()

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def with_value(value: object, *path: str | int) -> str:
    """Return a submission with another value in a place."""
    whole = json.loads(StoreRequest.of_study(STUDY, TERMS).to_json())
    *outer, last = path
    functools.reduce(operator.getitem, outer, whole)[last] = value
    return json.dumps(whole)
