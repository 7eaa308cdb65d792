"""The process that speaks to a Ray cluster for a service: `main` is its program.

Ray ends a process whose cluster has gone, and writes what it likes to its terminal; a service is to outlive that with
its database in order. This process holds nothing: it reserves devices, starts workers on them, and carries questions to
the service and answers back. When the service ends so does it, and with it the Ray job and all its workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, final

import ray
from ray.exceptions import RuntimeEnvSetupError

from workers.pool.logs import last_line
from workers.pool.ray.connecting import SWIFT, connect, swift
from workers.pool.ray.device_slots import DeviceSlots
from workers.pool.ray.placed_worker import PlacedWorker
from workers.pool.ray.questions import Question, Task

UPDATE_SECONDS = 1.0
"""The seconds between two looks at the cluster's nodes."""


def main() -> None:
    """Serve the service at the other end of the pipe that the command line names."""
    pipe = Connection(int(sys.argv[1]))
    try:
        cluster = pipe.recv()
        connect(cluster)
        slots = DeviceSlots(cluster.workers)
        asyncio.run(_Agent(pipe, slots).run())
    except BaseException as error:
        _fail(pipe, last_line(error))


def _fail(pipe: Connection, reason: str) -> None:
    """Send the service the reason why there is no cluster, and end the process."""
    pipe.send(("fail", reason))
    os._exit(1)  # threads may wait for a cluster that is gone


@final
class _Agent:
    """The carrier of messages between the service and its workers; each worker has a number."""

    def __init__(self, pipe: Connection, slots: DeviceSlots) -> None:
        self._pipe, self._slots = pipe, slots
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[tuple[int, str], asyncio.Future[Any]] = {}
        """(worker, line) -> the answer that it waits for."""

    async def run(self) -> None:
        """Report slots and carry messages until the service, or the cluster, ends."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        slots = await asyncio.to_thread(self._slots.reserve_first)
        while True:
            self._pipe.send(("slots", self._slots.device, slots))
            before = slots
            while slots == before:
                await asyncio.sleep(UPDATE_SECONDS)
                slots = await asyncio.to_thread(self._slots.update)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the service's messages, until it ends."""
        try:
            while True:
                kind, *arguments = self._pipe.recv()
                if kind == "close":
                    break
                loop.call_soon_threadsafe(getattr(self, f"_on_{kind}"), *arguments)
        except (EOFError, OSError):
            pass  # it was killed
        os._exit(0)

    def _on_employ(self, worker: int, task: Task) -> None:
        self._workers[worker] = asyncio.create_task(self._employ(worker, task))

    def _on_answer(self, worker: int, line: str, answer: Any) -> None:
        asked = self._asked.pop((worker, line), None)
        if asked and not asked.done():
            asked.set_result(answer)

    def _on_dismiss(self, worker: int) -> None:
        if worker in self._workers:
            self._workers[worker].cancel()

    async def _employ(self, worker: int, task: Task) -> None:
        """Start an actor for a worker and carry its questions until it ends."""
        node, actor = self._slots.node_of(task.slot), None
        renewals: asyncio.Task[str | None] | None = None
        try:
            remote: Any = ray.remote
            place = self._slots.options(task.slot)
            actor = remote(concurrency_groups={SWIFT: 1}, **place)(PlacedWorker).remote(task)
            renewals = asyncio.create_task(self._carry(worker, "renewal", swift(actor.fetch_renewal)))
            reason = await self._carry(worker, "exchange", actor.fetch_exchange.remote)
            self._pipe.send(("end", worker, reason, False))
        except RuntimeEnvSetupError as error:
            _fail(self._pipe, f"--ray-env: the cluster cannot prepare it: {last_line(error)}")
        except Exception as error:
            gone = actor is None or await asyncio.to_thread(self._slots.has_left, node)
            self._pipe.send(("end", worker, last_line(error), gone))
        finally:
            del self._workers[worker]
            if renewals:
                renewals.cancel()
            if actor is not None:
                ray.kill(actor)

    async def _carry(self, worker: int, line: str, fetch: Callable[..., Any]) -> str | None:
        """Carry the questions of one line, and return why the worker ended."""
        question: Question = await fetch()
        while question.kind != "end":
            answer = asyncio.get_running_loop().create_future()
            self._asked[worker, line] = answer
            self._pipe.send(("ask", worker, line, question))
            question = await fetch(await answer)
        return question.arguments[0]
