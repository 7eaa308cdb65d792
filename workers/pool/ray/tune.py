"""The slots of a launch: a Tune experiment of long-lived pack workers, one per device or share.

Tune places workers, notices dead ones and logs their aggregates. It never sees our trials:
`exchange` steers lanes, since Tune's searchers and schedulers act on whole actors, cost a fraction
of a second each time, and forget what they knew on restore. The searcher here asks for a worker on
request.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, final

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.search import Searcher

from workers.pool.ray.cluster_slots import ClusterSlots
from workers.pool.ray.placed_worker import PlacedWorker
from workers.pool.ray.questions import Question, StudyInstructions, WorkerEnded
from workers.pool.slots import Reservation

Started = Future[tuple[Any, str]]
"""A worker's actor and its node's id, once Tune has placed it."""


@final
class TunedSlots(ClusterSlots):
    """Slots of one study, in which Tune places workers where there is room."""

    def __init__(self, workers: int | None, folder: str) -> None:
        """`folder`: Tune's files are written there."""
        super().__init__(workers)
        self._folder = folder
        self._held: set[int] = set()
        """Slots with a worker, which may still wait for its place."""
        self._placing = _Placing(self.reservation)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, daemon=True)

    def update(self) -> tuple[int, ...]:
        """Return slots with a worker, and others that have room; raises what ended Tune."""
        if self._failure:
            raise self._failure
        slots, wanted = {*self._held}, self.count()
        slots.update([slot for slot in range(wanted) if slot not in slots][: max(0, wanted - len(slots))])
        return tuple(sorted(slots))

    async def start(self, slot: int) -> tuple[Any, str]:
        self._held.add(slot)
        if self._thread.ident is None:  # Tune, which has nothing to do, would sleep now
            self._thread.start()
        return await asyncio.wrap_future(self._placing.ask_for(slot))

    def stop(self, slot: int, actor: Any, reason: str | None) -> None:
        self._held.discard(slot)
        if actor is not None:
            actor.finish.remote(reason)

    def _fit(self) -> None:
        os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
        # A trial whose node was taken away has ended; Tune would start it again, unasked.
        os.environ["RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE"] = "1"
        os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", "200")  # as for its own; else one at a time
        try:
            tune.Tuner(
                PackTrial,
                tune_config=tune.TuneConfig(search_alg=self._placing, num_samples=-1),
                run_config=tune.RunConfig(
                    name="packs",
                    storage_path=self._folder,
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=0),  # another worker follows
                    callbacks=[_Notices(self._placing)],
                ),
            ).fit()
        except BaseException as error:
            self._failure = error


@final
class PackTrial(tune.Trainable):
    """A worker as a trial of Tune, whose results are its totals after exchanges with reports."""

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([config["reservation"]])

    def setup(self, config: dict[str, Any]) -> None:
        context = ray.get_runtime_context()
        self._worker = PlacedWorker()
        self._totals: dict[str, Any] = {"node": context.get_node_id(), "reports": 0, "free_lanes": 0}
        self._results: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._results.put_nowait({**self._totals, "actor": context.current_actor})

    async def begin(self, slot: int, instructions: StudyInstructions) -> None:
        """Begin as `PlacedWorker` does."""
        await self._worker.begin(slot, instructions)

    async def fetch(self, line: str, *answer: object) -> Question | WorkerEnded:
        """Fetch as from a `PlacedWorker`."""
        question = await self._worker.fetch(line, *answer)
        if isinstance(question, Question) and question.kind == "exchange" and question.arguments[0]:
            reports, offer = question.arguments
            self._totals["reports"] += len(reports)
            self._totals["free_lanes"] = offer.lanes
            self._results.put_nowait({**self._totals})
        return question

    async def finish(self, reason: str | None) -> None:
        """End the trial, with the reason of a crash unless it was done."""
        self._results.put_nowait({**self._totals, "done": True, "reason": reason})

    async def train(self) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the next result, in the actor's event loop, where questions are fetched, too."""
        self._result = await self._results.get()
        while not self._results.empty():  # Tune was slower than the worker
            self._result |= self._results.get_nowait()
        return super().train()

    def step(self) -> dict[str, Any]:
        if reason := self._result.pop("reason", None):
            raise RuntimeError(reason)
        return self._result


@final
class _Placing(Searcher):
    """The experiment's searcher: Tune asks for trials, and gets a worker for each free slot."""

    def __init__(self, reservation: Reservation) -> None:
        super().__init__()
        self._reservation = reservation
        self._wanted: queue.SimpleQueue[tuple[int, Started]] = queue.SimpleQueue()
        self._asked: dict[str, Started] = {}
        """Tune's name of a trial -> the worker that it has not started yet."""

    def ask_for(self, slot: int) -> Started:
        started = Started()
        self._wanted.put((slot, started))
        return started

    def suggest(self, trial_id: str) -> Any:
        try:
            slot, started = self._wanted.get_nowait()
        except queue.Empty:
            return None
        if not started.set_running_or_notify_cancel():  # it is not wanted any more
            return None
        self._asked[trial_id] = started
        return {"slot": slot, "reservation": {**self._reservation}}

    def take(self, trial_id: str) -> Started | None:
        """Return the worker that waits for a trial's start; None if it has started."""
        return self._asked.pop(trial_id, None)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: what a study needs to resume is in its database."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # as `save`


@final
class _Notices(tune.Callback):
    """Hears from Tune which workers have started, before its loggers do, and which failed."""

    def __init__(self, placing: _Placing) -> None:
        self._placing = placing

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        actor = result.pop("actor", None)
        if started := self._placing.take(trial.trial_id):
            started.set_result((actor, result["node"]))

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if started := self._placing.take(trial.trial_id):
            # Tune's `get_error` looks where this file is copied to later.
            reason = Path(trial.error_file).read_text() if trial.error_file else "it could not be started"
            started.set_exception(RuntimeError(reason))
