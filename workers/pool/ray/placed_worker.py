"""The actor on a device of a cluster that is a pack worker of one study of a service."""

from __future__ import annotations

import threading
from typing import Any, final

from spaces.plugins.active import install
from spaces.plugins.files import place_contents
from workers.engine.machine.process import prepare
from workers.pool.logs import begin_log, last_line
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
            work(
                task.slot,
                task.width,
                task.saving,
                attach=lambda name: self._exchanges.ask("attach", name),
                exchange=lambda reports, offer: self._exchanges.ask("exchange", list(reports), offer),
                renew=lambda name: self._renewals.ask("renew", name),
            )
        except BaseException as error:
            reason = last_line(error)
        self._exchanges.end(reason)
