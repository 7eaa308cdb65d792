"""The pack worker of one study on a device of a cluster; its questions are fetched."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import final

import ray

from spaces.plugins.active import install
from spaces.plugins.files import place_contents
from workers.engine.machine.devices import default_device, default_workers, describe_unused_gpu, device_name
from workers.engine.machine.process import prepare
from workers.pool.logs import begin_log, last_line, log_exchange, log_file
from workers.pool.ray.questions import Line, Question, StudyInstructions, WorkerEnded
from workers.pool.slots import name_worker
from workers.pool.worker_settings import WorkerSettings, make_worker

_LOG = logging.getLogger("graft.pool")


@final
class PlacedWorker:
    """Trains in a thread of its own, whose questions an actor's event loop fetches."""

    _lines: Mapping[str, Line]

    async def begin(self, slot: int, instructions: StudyInstructions) -> None:
        """Start to train in a slot; called once, before anything is fetched."""
        loop = asyncio.get_running_loop()
        self._lines = {"exchange": Line(loop), "renew": Line(loop)}
        threading.Thread(target=self._work, args=(slot, instructions), daemon=True).start()

    async def fetch(self, line: str, *answer: object) -> Question | WorkerEnded:
        """Return the next question of a line, `exchange` or `renew`, and answer the last one."""
        return await self._lines[line].fetch(*answer)

    def _work(self, slot: int, instructions: StudyInstructions) -> None:
        reason = None
        try:
            install(place_contents(instructions.outside))
            prepare()
            begin_log()
            self._train(slot, instructions)
        except BaseException as error:
            _LOG.exception("the worker of slot %d crashed", slot)
            reason = last_line(error)
        self._lines["exchange"].end(reason)

    def _train(self, slot: int, instructions: StudyInstructions) -> None:
        """Run workers in turn, as leases run out, until the study is done."""
        exchanges, renewals = self._lines["exchange"], self._lines["renew"]
        exchange = log_exchange(partial(exchanges.ask, "exchange"))
        node, code = ray.get_runtime_context().get_node_id(), Path(__file__).parents[3]
        done = False
        while not done:
            name, device = name_worker("ray", slot), default_device()
            exchanges.ask("attach", name)
            _LOG.info("%s begins on node %s: %s; code in %s", name, node, device_name(device), code)
            if unused := describe_unused_gpu():
                _LOG.warning(unused)
            width, saving = instructions.width, instructions.saving
            sharing = instructions.sharing * default_workers(device)  # cores share the memory of their node
            settings = WorkerSettings(device=device, width=width, saving=saving, sharing=sharing, log=log_file())
            renew = partial(renewals.ask, "renew", name)
            done = make_worker(name, settings, exchange, renew).run()
            _LOG.info("%s %s", name, "is done" if done else "lost its lease; what it held is trained again")
