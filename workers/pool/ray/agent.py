"""The process that speaks to a Ray cluster for a launch or a service: `main` is its program.

Ray ends a process whose cluster has gone, and writes to its terminal; a launch and a service must
outlive that with their database in order. This process keeps nothing: it starts workers on devices,
and carries their questions to the controllers and answers back. With the launch or the service it
ends, and with it the Ray job and all its workers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, final

import ray

from workers.pool.logs import last_line
from workers.pool.ray.cluster import Cluster
from workers.pool.ray.cluster_slots import ClusterSlots
from workers.pool.ray.connecting import connect
from workers.pool.ray.questions import Question, StudyInstructions, WorkerEnded

UPDATE_SECONDS = 1.0
"""Seconds between two looks at the cluster's nodes."""
EXIT_SECONDS = 8.0
"""Most seconds for leaving the cluster; less than the other end waits."""


def main() -> None:
    """Serve the process at the other end of the pipe that the command line names."""
    pipe = Connection(int(sys.argv[1]))
    try:
        cluster, folder = pipe.recv()
        connect(cluster)
        asyncio.run(_Agent(pipe, _slots_of(cluster, folder)).run())
    except BaseException as error:
        _fail(pipe, last_line(error))
    ray.shutdown()  # which ends a cluster that was started here
    os._exit(0)


def _slots_of(cluster: Cluster, folder: str) -> ClusterSlots:
    """Return the slots of a service's devices, or of a launch, in which Tune places workers."""
    if cluster.shared:
        from workers.pool.ray.device_slots import DeviceSlots

        return DeviceSlots(cluster.workers)
    from workers.pool.ray.tune import TunedSlots  # takes a second, which a service does without

    return TunedSlots(cluster.workers, folder)


def _fail(pipe: Connection, reason: str) -> None:
    """Send the reason why there is no cluster, and end the process."""
    with suppress(OSError):
        pipe.send(("fail", reason))
    os._exit(1)  # threads may wait for a cluster that is gone


@final
class _Agent:
    """Carries messages between controllers and their workers; studies and workers have numbers."""

    def __init__(self, pipe: Connection, slots: ClusterSlots) -> None:
        self._pipe, self._slots = pipe, slots
        self._is_over = asyncio.Event()
        self._reported: tuple[int, ...] | None = None
        """The slots that were reported last."""
        self._turn = asyncio.Lock()
        """Held while the slots are looked at."""
        self._instructions: dict[int, ray.ObjectRef[StudyInstructions] | Exception] = {}
        """Study -> its workers' instructions, or the error if the cluster has no room for them."""
        self._has_begun = False
        """True once any worker has begun, so that the cluster can prepare its environment."""
        self._workers: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[tuple[int, str], asyncio.Future[Any]] = {}
        """(worker, line) -> the answer that it waits for."""

    async def run(self) -> None:
        """Report slots and carry messages until the other end, or the cluster, ends."""
        threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), daemon=True).start()
        while not self._is_over.is_set():
            await self._report_slots()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_over.wait(), UPDATE_SECONDS)

    async def _report_slots(self) -> tuple[int, ...]:
        async with self._turn:
            slots = await asyncio.to_thread(self._slots.update)
        if slots != self._reported:
            self._reported = slots
            self._send("slots", self._slots.device, self._slots.sharing, slots)
        return slots

    def _send(self, *message: Any) -> None:
        with suppress(OSError):  # the other end was killed, which `_read` hears, too
            self._pipe.send(message)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take messages until the other end says that it ends, or was killed."""
        try:
            while True:
                kind, *arguments = self._pipe.recv()
                if kind == "exit":
                    break
                loop.call_soon_threadsafe(getattr(self, f"_on_{kind}"), *arguments)
        except (EOFError, OSError):
            pass  # it was killed
        finally:  # also where a message could not be read: nobody hears this process any more
            threading.Timer(EXIT_SECONDS, os._exit, [1]).start()  # Ray may wait for ever
            loop.call_soon_threadsafe(self._is_over.set)

    def _on_open(self, study: int, instructions: StudyInstructions) -> None:
        try:
            self._instructions[study] = ray.put(instructions)  # its data are sent to each node once
        except Exception as error:  # each worker that should begin says so
            self._instructions[study] = error

    def _on_close(self, study: int) -> None:
        del self._instructions[study]

    def _on_employ(self, worker: int, study: int, slot: int) -> None:
        self._workers[worker] = asyncio.create_task(self._employ(worker, study, slot))

    def _on_answer(self, worker: int, line: str, answer: Any) -> None:
        asked = self._asked.pop((worker, line), None)
        if asked and not asked.done():
            asked.set_result(answer)

    def _on_dismiss(self, worker: int) -> None:
        if worker in self._workers:
            self._workers[worker].cancel()

    async def _employ(self, worker: int, study: int, slot: int) -> None:
        """Start an actor for a worker and carry its questions until it ends."""
        actor: Any = None
        node = reason = renewals = None
        try:
            if isinstance(instructions := self._instructions[study], Exception):
                raise instructions
            actor, node = await self._slots.start(slot)
            await actor.begin.remote(slot, instructions)
            self._has_begun = True
            renewals = asyncio.create_task(self._carry(worker, "renew", actor))
            reason = await self._carry(worker, "exchange", actor)
        except Exception as error:
            # RuntimeEnvSetupError, of which Tune keeps the text; later it is one node's fault.
            if "set up runtime environment" in str(error) and not self._has_begun:
                _fail(self._pipe, f"--ray-env: the cluster cannot prepare it: {last_line(error)}")
            reason = last_line(error)
        finally:
            del self._workers[worker]
            if renewals:
                renewals.cancel()
            self._slots.stop(slot, actor, reason)
        has_left = False
        try:
            if reason is not None:
                slots = await self._report_slots()  # so that no worker is asked for without room
                has_left = await asyncio.to_thread(self._slots.has_left, node) if node else slot not in slots
        finally:
            self._send("end", worker, reason, has_left)

    async def _carry(self, worker: int, line: str, actor: Any) -> str | None:
        """Carry the questions of one line, and return why the worker ended."""
        question: Question | WorkerEnded = await actor.fetch.remote(line)
        while isinstance(question, Question):
            answer = asyncio.get_running_loop().create_future()
            self._asked[worker, line] = answer
            self._send("ask", worker, line, question)
            question = await actor.fetch.remote(line, await answer)
        return question.reason
