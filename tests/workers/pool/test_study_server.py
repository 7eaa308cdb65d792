"""What is decided of the workers of a study on a Ray cluster, on a pretended cluster that says what the test says."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial

import pytest

from spaces.errors import ClusterError, StorageError, StudyError
from spaces.records import Directives, Offer, Report
from tests.support.launches import wait_until
from workers.pool.controller_proxy import ControllerProxy
from workers.pool.ray import ray_pool
from workers.pool.ray.questions import Line, Question, WorkerEnded
from workers.pool.ray.ray_pool import RayPool, StudyServer

pytestmark = pytest.mark.fast

REPORT = Report(number=3, step=20, metrics=())


def offer(worker: str) -> Offer:
    return Offer(worker=worker, lanes=1, structure=None, host="here", device="cpu", steps=0, room=0)


class Controller:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answer = Directives()
        self.error: Exception | None = None

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self.told.append(f"exchange {offer.worker}")
        return self.answer

    def handle_crash(self, worker: str) -> None:
        self.told.append(f"crash {worker}")

    def handle_departure(self, worker: str) -> None:
        self.told.append(f"departure {worker}")

    def renew(self, worker: str) -> bool:
        return True

    def sweep(self) -> None:
        if self.error:
            raise self.error

    def request_stop(self) -> None:
        self.answer = Directives(done=True)

    def progress(self) -> int:
        return 7

    def close(self) -> None: ...


class PretendedCluster:
    """Writes down which workers it is asked for."""

    def __init__(self, slots: tuple[int, ...]) -> None:
        self.slots = slots
        self.sharing = 4
        self.employed: list[int] = []
        """Slots, by worker."""
        self.dismissed: list[int] = []
        self.answers: list[tuple[int, object]] = []
        self.failure: ClusterError | None = None
        self.sent: list[tuple[object, ...]] = []
        self._numbers = itertools.count()

    def send(self, message: tuple[object, ...]) -> None:
        self.sent.append(message)

    def employ(self, server: StudyServer, slot: int) -> int:
        self.employed.append(slot)
        return len(self.employed) - 1

    def dismiss(self, worker: int) -> None:
        self.dismissed.append(worker)

    def answer(self, worker: int, line: str, answer: object) -> None:
        self.answers.append((worker, answer))

    def check(self) -> None:
        if self.failure:
            raise self.failure


@contextmanager
def served(cluster: PretendedCluster, controller: Controller) -> Generator[tuple[StudyServer, Callable[..., None]]]:
    """Yield a server in a thread, and what a worker says to it; at the end of the block it has ended."""
    server = StudyServer(cluster, ControllerProxy(controller), 0)  # pyright: ignore[reportArgumentType]
    thread = threading.Thread(target=server.serve)
    thread.start()

    def say(worker: int, kind: str, *arguments: object) -> None:
        server.inbox.put((worker, WorkerEnded(*arguments) if kind == "end" else Question(kind, arguments)))

    try:
        yield server, say
        thread.join(60)
        assert not thread.is_alive()
    finally:
        cluster.failure = cluster.failure or ClusterError("closed by the test")


def test_each_slot_has_a_worker_and_slots_that_come_have_one_too():
    cluster, controller = PretendedCluster((0, 2)), Controller()
    with served(cluster, controller) as (server, say):
        wait_until(lambda: len(cluster.employed) == 2)
        cluster.slots = (0, 2, 5)
        wait_until(lambda: len(cluster.employed) == 3)
        for worker, name in enumerate("abc"):
            say(worker, "attach", name)
            say(worker, "exchange", [], offer(name))
        controller.answer = Directives(done=True)
        for worker, name in enumerate("abc"):
            say(worker, "exchange", [REPORT], offer(name))
            say(worker, "end", None)
    assert sorted(cluster.employed) == [0, 2, 5]
    assert server.failure is None
    assert {message.split()[0] for message in controller.told} == {"exchange"}
    assert [worker for worker, _ in cluster.answers] == [0, 0, 1, 1, 2, 2, 0, 1, 2]


def test_a_worker_that_crashes_is_followed_and_one_that_left_with_its_node_is_no_crash():
    cluster, controller = PretendedCluster((0,)), Controller()
    with served(cluster, controller) as (server, say):
        for worker in range(8):
            wait_until(lambda worker=worker: len(cluster.employed) > worker or server.failure is not None)
            say(worker, "attach", f"w{worker}")
            if worker % 2:
                say(worker, "exchange", [REPORT], offer(f"w{worker}"))
            say(worker, "end", "killed", worker == 3)
        wait_until(lambda: len(cluster.employed) == 9 or server.failure is not None)
        server.is_stopping = True
    assert server.failure is None
    lost = [message for message in controller.told if not message.startswith("exchange")]
    assert lost == [f"{'departure' if worker == 3 else 'crash'} w{worker}" for worker in range(8)]
    assert cluster.dismissed == [8], "one that was never heard of is not waited for"


def test_a_slot_in_which_workers_only_crash_is_given_up_and_the_last_one_ends_the_study():
    cluster, controller = PretendedCluster((0, 1)), Controller()
    with served(cluster, controller) as (server, say):
        for worker in range(8):
            wait_until(lambda worker=worker: len(cluster.employed) > worker)
            say(worker, "end", f"reason {worker}")
    assert len(cluster.employed) == 8
    assert isinstance(server.failure, StudyError)
    assert "every worker crashed 4 times, the last one with: reason 7" in str(server.failure)


def test_a_cluster_that_is_gone_ends_the_study_with_what_it_trained_queued_again():
    cluster, controller = PretendedCluster((0,)), Controller()
    with served(cluster, controller) as (server, say):
        wait_until(lambda: len(cluster.employed) == 1)
        say(0, "attach", "a")
        wait_until(lambda: len(cluster.answers) == 1)
        cluster.failure = ClusterError("it is gone")
    assert server.failure is cluster.failure
    assert controller.told == ["departure a"]


def test_a_question_of_a_worker_whose_cluster_went_after_the_end_of_the_study_is_no_failure():
    cluster, controller = PretendedCluster((0, 1)), Controller()
    controller.answer = Directives(done=True)
    server = StudyServer(cluster, ControllerProxy(controller), 0)  # pyright: ignore[reportArgumentType]
    check = cluster.check

    def go_after_the_end() -> None:
        if len(cluster.answers) == 3:  # both have begun, and one was told that the study has ended
            cluster.failure = ClusterError("it is gone")
        check()

    cluster.check = go_after_the_end
    for worker, name in enumerate("ab"):
        server.inbox.put((worker, Question("attach", (name,))))
    server.inbox.put((0, Question("exchange", ([REPORT], offer("a")))))
    server.inbox.put((1, Question("exchange", ([], offer("b")))))
    server.serve()
    assert server.failure is None


def test_what_ends_the_run_is_heard_where_no_worker_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_pool, "SWEEP_CALL_SECONDS", 0.0)
    cluster, controller = PretendedCluster(()), Controller()
    with served(cluster, controller) as (server, _):
        controller.error = StorageError("the disk is full")
    assert server.failure is controller.error


def test_workers_that_do_not_notice_the_end_are_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ray_pool, "GRACE_SECONDS", 0.0)
    cluster, controller = PretendedCluster((0, 1)), Controller()
    with served(cluster, controller) as (server, say):
        wait_until(lambda: len(cluster.employed) == 2)
        controller.answer = Directives(done=True)
        say(0, "attach", "a")
        say(1, "attach", "b")
        say(0, "exchange", [REPORT], offer("a"))
    assert server.failure is None
    assert sorted(cluster.dismissed) == [0, 1]


def test_a_study_whose_watch_raises_is_closed_and_employs_nobody_more():
    cluster, before = PretendedCluster(()), {*threading.enumerate()}

    def watch(progress: object) -> bool:
        raise StudyError("no")

    run = partial(RayPool.run, cluster, Controller())  # pyright: ignore[reportArgumentType]
    with pytest.raises(StudyError, match="no"):
        run(width=None, saving=None, watch=watch, outside={})  # pyright: ignore[reportArgumentType]
    assert [kind for kind, *_ in cluster.sent] == ["open", "close"]
    assert cluster.sent[0][2].sharing == 4, "workers of the study on each device"  # pyright: ignore[reportAttributeAccessIssue]
    cluster.slots = (0,)
    wait_until(lambda: {*threading.enumerate()} <= before)
    assert not cluster.employed


def test_a_line_carries_one_question_at_a_time():
    answers = list[object]()

    async def fetch() -> None:
        line = Line(asyncio.get_running_loop())
        asking = [threading.Thread(target=lambda: answers.append(line.ask("renew", "a"))) for _ in range(2)]
        for thread in asking:
            thread.start()
        assert await line.fetch() == Question("renew", ("a",))
        assert await line.fetch(True) == Question("renew", ("a",))
        line.end("tired")
        assert await line.fetch(False) == WorkerEnded("tired")
        for thread in asking:
            thread.join(60)

    asyncio.run(fetch())
    assert answers == [True, False]
