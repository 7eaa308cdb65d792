"""The process that speaks to Ray: what it carries between controllers and workers, with pretended slots and actors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Pipe
from typing import Any

import pytest

from workers.pool.ray import agent
from workers.pool.ray.agent import _Agent  # pyright: ignore[reportPrivateUsage]
from workers.pool.ray.questions import Question, WorkerEnded

pytestmark = pytest.mark.fast

DONE = WorkerEnded(None)


class Remote:
    """A method of an actor."""

    def __init__(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = call


class Actor:
    """Asks the questions of the line `exchange` in turn, and never one of `renew`; an exception is raised."""

    def __init__(self, *questions: Question | WorkerEnded | Exception) -> None:
        self.heard: list[Any] = []
        self._questions = iter(questions)
        self.begin, self.fetch = Remote(self._begin), Remote(self._fetch)

    async def _begin(self, slot: int, instructions: object) -> None:
        self.heard.append((slot, instructions))

    async def _fetch(self, line: str, *answer: object) -> Question | WorkerEnded:
        self.heard.extend(answer)
        question = next(self._questions, None) if line == "exchange" else None
        if question is None:
            await asyncio.Event().wait()
        if isinstance(question, Exception):
            raise question
        assert question
        return question


class Slots:
    """Two slots, in which these actors start."""

    device, sharing = "cpu", 3

    def __init__(self, *actors: Actor) -> None:
        self.slots = (0, 1)
        self.gone: set[str] = set()
        self.stopped: list[tuple[int, Actor | None, str | None]] = []
        self._actors = iter(actors)

    def update(self) -> tuple[int, ...]:
        return self.slots

    def has_left(self, node: str) -> bool:
        return node in self.gone

    async def start(self, slot: int) -> tuple[Actor, str]:
        return next(self._actors), f"node {slot}"

    def stop(self, slot: int, actor: Actor | None, reason: str | None) -> None:
        self.stopped.append((slot, actor, reason))


@contextmanager
def running(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> Generator[Connection]:
    """Yield the other end's pipe, which has been told the slots; at the end of the block the agent has ended."""
    monkeypatch.setattr(agent.threading, "Timer", lambda *_: threading.Thread())  # would end this process
    ours, theirs = Pipe()

    async def run() -> None:
        await _Agent(theirs, slots).run()  # pyright: ignore[reportArgumentType]

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ours.recv() == ("slots", "cpu", 3, (0, 1))
        yield ours
        ours.send(("exit",))
    finally:
        ours.close()
        thread.join(60)
        assert not thread.is_alive()


def open_study(pipe: Connection, monkeypatch: pytest.MonkeyPatch, put: Callable[[object], object] = str.upper) -> None:
    monkeypatch.setattr(agent.ray, "put", put)
    pipe.send(("open", 7, "instructions"))


def test_questions_go_out_and_answers_come_back_until_a_worker_is_done(monkeypatch: pytest.MonkeyPatch):
    actor = Actor(Question("attach", ("a",)), Question("exchange", ("reports", "offer")), DONE)
    slots = Slots(actor)
    with running(slots, monkeypatch) as pipe:
        open_study(pipe, monkeypatch)
        pipe.send(("employ", 3, 7, 1))
        assert pipe.recv() == ("ask", 3, "exchange", Question("attach", ("a",)))
        pipe.send(("answer", 4, "exchange", "another's"))
        pipe.send(("answer", 3, "renew", "to no question"))
        pipe.send(("answer", 3, "exchange", "welcome"))
        assert pipe.recv() == ("ask", 3, "exchange", Question("exchange", ("reports", "offer")))
        pipe.send(("answer", 3, "exchange", "go on"))
        assert pipe.recv() == ("end", 3, None, False)
        pipe.send(("close", 7))
    assert actor.heard == [(1, "INSTRUCTIONS"), "welcome", "go on"]
    assert slots.stopped == [(1, actor, None)]


@pytest.mark.parametrize("has_left", [False, True])
def test_a_worker_that_crashes_says_why_and_whether_its_node_has_left(has_left: bool, monkeypatch: pytest.MonkeyPatch):
    actor = Actor(RuntimeError("first\nthe last line"))
    slots = Slots(actor)
    slots.gone = {"node 0"} if has_left else set()
    with running(slots, monkeypatch) as pipe:
        open_study(pipe, monkeypatch)
        pipe.send(("employ", 3, 7, 0))
        assert pipe.recv() == ("end", 3, "the last line", has_left)
    assert slots.stopped == [(0, actor, "the last line")]


def test_a_worker_that_is_dismissed_is_ended_without_a_word(monkeypatch: pytest.MonkeyPatch):
    first, second = Actor(Question("attach", ("a",))), Actor(DONE)
    slots = Slots(first, second)
    with running(slots, monkeypatch) as pipe:
        open_study(pipe, monkeypatch)
        pipe.send(("employ", 3, 7, 0))
        assert pipe.recv()[0] == "ask"
        pipe.send(("dismiss", 3))
        pipe.send(("dismiss", 9))
        pipe.send(("employ", 4, 7, 0))
        assert pipe.recv() == ("end", 4, None, False)
    assert slots.stopped == [(0, first, None), (0, second, None)]


def test_instructions_for_which_there_is_no_room_end_each_worker(monkeypatch: pytest.MonkeyPatch):
    def put(instructions: object) -> object:
        raise MemoryError("no room")

    slots = Slots()
    with running(slots, monkeypatch) as pipe:
        open_study(pipe, monkeypatch, put)
        pipe.send(("employ", 3, 7, 0))
        assert pipe.recv() == ("end", 3, "no room", False)
        slots.slots = (0,)
        pipe.send(("employ", 4, 7, 1))
        assert pipe.recv() == ("slots", "cpu", 3, (0,))
        assert pipe.recv() == ("end", 4, "no room", True)
    assert slots.stopped == [(0, None, "no room"), (1, None, "no room")]


def test_it_ends_with_the_other_end(monkeypatch: pytest.MonkeyPatch):
    with running(Slots(), monkeypatch) as pipe:
        pipe.close()
        monkeypatch.setattr(pipe, "send", lambda _: None)
