"""The actor on a device of a cluster that is a pack worker of one study of a service."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, final

from spaces.plugins.active import install
from spaces.plugins.files import place_contents
from spaces.records import Directives, Offer, Report
from workers.engine.machine.process import prepare
from workers.pool.logs import begin_log
from workers.pool.ray.questions import Line, Question, Task
from workers.pool.ray.working import work


@final
class PlacedWorker:
    """Trains in a thread of its own. Its methods wait for what that thread asks, each in a concurrency group."""

    def __init__(self, task: Task) -> None:
        self._exchanges, self._renewals = Line(), Line()
        threading.Thread(target=self._work, args=(task,), daemon=True).start()

    def fetch_exchange(self, *answer: Any) -> Question:
        """Return the worker's next question, which may have to wait for the database; `answer`: to the one before."""
        return self._exchanges.fetch(*answer)

    def fetch_renewal(self, *answer: Any) -> Question:
        """Fetch the next question that is answered at once, as `fetch_exchange` does for the others."""
        return self._renewals.fetch(*answer)

    def _work(self, task: Task) -> None:
        reason = None
        try:
            install(place_contents(task.outside))
            prepare()
            begin_log()
            work(task.slot, task.width, task.saving, self._attach, self._exchange, self._renew)
        except BaseException as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        self._exchanges.end(reason)

    def _attach(self, name: str) -> None:
        self._exchanges.ask("attach", name)

    def _exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        return self._exchanges.ask("exchange", list(reports), offer)

    def _renew(self, name: str) -> bool:
        return self._renewals.ask("renew", name)
