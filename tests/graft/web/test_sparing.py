"""Answers beside training: a budget of the processor, and what is answered again."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from graft.web.app import create_app
from graft.web.routes.events import _forget_answers
from graft.web.security.access import LOCAL, Holder
from graft.web.settings import Settings
from graft.web.sparing import spare
from graft.web.sparing.answers import Answers
from graft.web.sparing.budget import Bucket, Budget
from tests.support.databases import raw
from tests.support.studies import running

pytestmark = pytest.mark.fast


class Machine:
    """A clock and a processor that go as the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spent = 0.0
        self.stands = False

    def bucket(self, rate: float = 0.2, burst: float = 2.0, is_needed: Callable[[], bool] = lambda: True) -> Bucket:
        return Bucket(rate, burst, is_needed=is_needed, clock=lambda: self.now, used=lambda: self.spent)

    async def sleep(self, seconds: float) -> None:
        """In place of a real one; others come to their turn."""
        self.now += 0 if self.stands else seconds
        await anyio.lowlevel.checkpoint()


def test_a_bucket_fills_at_its_rate_and_holds_no_more_than_its_burst():
    machine = Machine()
    bucket = machine.bucket()
    machine.now = 100.0
    assert bucket.level() == 2.0
    machine.spent = 1.5
    assert bucket.level() == pytest.approx(0.5)
    assert bucket.is_low
    machine.now = 105.0
    assert bucket.level() == pytest.approx(1.5)
    assert not bucket.is_low


def test_a_debt_is_bounded_and_is_forgiven_where_nothing_trains():
    machine, trains = Machine(), [True]
    bucket = machine.bucket(is_needed=lambda: trains[0])
    machine.spent = 60.0
    assert bucket.level() == -2.0
    trains[0] = False
    assert bucket.level() == 2.0
    machine.spent = 120.0
    assert bucket.level() == 2.0
    trains[0] = True
    assert bucket.level() == 2.0


def scope_of(path: str, method: str = "GET", *headers: tuple[bytes, bytes], holder: Holder | None = LOCAL) -> Scope:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": headers,
        "state": {"holder": holder, "token": None},
        "client": ("127.0.0.1", 1),
    }


async def no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def ask(app: Callable[[Scope, Receive, Send], object], scope: Scope) -> tuple[int, bytes]:
    """Status and body of the answer."""
    messages = list[Message]()

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, no_body, send)  # type: ignore[misc]
    return messages[0]["status"], b"".join(message.get("body", b"") for message in messages[1:])


class Costly:
    """An application each of whose answers takes so many seconds of the processor."""

    def __init__(self, machine: Machine, cost: float) -> None:
        self.machine, self.cost, self.made = machine, cost, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.machine.spent += self.cost
        self.machine.now += self.cost
        self.made += 1
        headers = [(b"content-type", b"text/plain")]
        if scope["path"].endswith("/cookie"):
            headers.append((b"set-cookie", b"a=b"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": f"{self.made}".encode()})


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr("graft.web.sparing.budget.anyio.sleep", made.sleep)
    return made


def test_who_asks_in_a_loop_has_the_processor_for_the_part_that_is_left_to_answers(machine: Machine):
    budget = Budget(Costly(machine, 0.05), machine.bucket(), clock=lambda: machine.now)

    async def loop() -> None:
        for _ in range(400):
            assert (await ask(budget, scope_of("/")))[0] == 200

    anyio.run(loop)
    assert machine.spent == pytest.approx(20.0)
    # 2 seconds at once, and the other 18 at a fifth of a core.
    assert machine.now == pytest.approx(90.0, rel=0.05)
    assert budget.waits.answers == pytest.approx(360, abs=20)
    assert budget.waits.seconds == pytest.approx(machine.now - 20.0, rel=0.05)


def test_answers_that_are_being_made_count_before_they_are_paid(machine: Machine):
    """Or all who wait would be let through together, once a little is there."""
    begun, release = [0], anyio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        begun[0] += 1
        await release.wait()

    machine.stands = True
    bucket = machine.bucket(rate=1.0, burst=0.1)
    budget = Budget(slow, bucket, clock=lambda: machine.now)
    begun_at_once = list[int]()

    async def crowd() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(budget, scope_of("/"), no_body, no_body)
            for _ in range(100):
                await anyio.lowlevel.checkpoint()
            begun_at_once.append(begun[0])
            release.set()

    anyio.run(crowd)
    assert 1 <= begun_at_once[0] <= 4  # .1 s for answers of .03 s each
    assert begun[0] == 20


def test_pages_that_a_person_opens_and_event_streams_come_at_once(machine: Machine):
    app = Costly(machine, 0.01)
    budget = Budget(app, machine.bucket(), clock=lambda: machine.now)
    machine.spent += 100.0

    async def open_page() -> None:
        await ask(budget, scope_of("/", "GET", (b"sec-fetch-dest", b"document")))
        await ask(budget, scope_of("/static/page.js"))
        await ask(budget, scope_of("/api/studies/demo/events"))

    anyio.run(open_page)
    assert budget.waits.answers == 0
    assert app.made == 3

    async def pretend() -> None:
        for _ in range(100):
            await ask(budget, scope_of("/", "GET", (b"sec-fetch-dest", b"document")))

    anyio.run(pretend)
    assert budget.waits.answers > 20, "a loop that says it is a person waits"


def test_nobody_waits_where_nothing_trains(machine: Machine):
    budget = Budget(Costly(machine, 10.0), machine.bucket(is_needed=lambda: False), clock=lambda: machine.now)

    async def loop() -> None:
        for _ in range(20):
            await ask(budget, scope_of("/"))

    anyio.run(loop)
    assert machine.now == pytest.approx(200.0)
    assert budget.waits.answers == 0


def test_who_would_wait_too_long_is_refused_and_told_when_to_ask_again(machine: Machine):
    app = Costly(machine, 0.01)
    budget = Budget(app, machine.bucket(rate=0.01), clock=lambda: machine.now)
    machine.spent += 100.0
    status, body = anyio.run(ask, budget, scope_of("/api/studies"))
    assert status == 503
    assert b"studies train, and what answers may take of the processor is used up" in body
    assert budget.waits.refused == 1
    assert app.made == 0


# -- what is answered again --------------------------------------------------------------------------------------------


def test_an_answer_is_given_again_for_its_lifetime_to_who_may_do_the_same(machine: Machine):
    app, lifetime = Costly(machine, 0.0), [1.0]
    answers = Answers(app, lambda: lifetime[0], clock=lambda: machine.now)
    reader = Holder("reader", "read")

    def body(path: str = "/", holder: Holder = LOCAL, method: str = "GET") -> bytes:
        return anyio.run(ask, answers, scope_of(path, method, holder=holder))[1]

    assert [body(), body(), body("/other"), body(holder=reader), body(holder=reader)] == [b"1", b"1", b"2", b"3", b"3"]
    machine.now = 1.5
    assert body() == b"4"
    lifetime[0] = 10.0
    machine.now = 9.0
    assert body() == b"4"
    assert answers.given == 3
    assert body(method="POST") == b"5"
    assert body() == b"6", "what was asked for has changed something"
    lifetime[0] = 0.0
    assert [body(), body()] == [b"7", b"8"]


@pytest.mark.parametrize("path", ["/static/page.js", "/cookie"])
def test_what_is_for_one_alone_or_cheap_is_not_kept(machine: Machine, path: str):
    answers = Answers(Costly(machine, 0.0), lambda: 10.0, clock=lambda: machine.now)
    assert [anyio.run(ask, answers, scope_of(path))[1] for _ in range(2)] == [b"1", b"2"]


def test_what_was_begun_before_a_change_is_not_kept(machine: Machine):
    made = [0]

    async def change_meanwhile(scope: Scope, receive: Receive, send: Send) -> None:
        made[0] += 1
        if made[0] == 1:
            answers.forget()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": f"{made[0]}".encode()})

    answers = Answers(change_meanwhile, lambda: 10.0, clock=lambda: machine.now)
    assert [anyio.run(ask, answers, scope_of("/"))[1] for _ in range(3)] == [b"1", b"2", b"2"]


def test_a_large_answer_is_passed_on_and_not_kept(machine: Machine):
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        machine.spent += 1.0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(8):
            await send({"type": "http.response.body", "body": b"x" * (1 << 16), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    answers = Answers(large, lambda: 10.0, clock=lambda: machine.now)
    assert len(anyio.run(ask, answers, scope_of("/"))[1]) == 1 << 19
    anyio.run(ask, answers, scope_of("/"))
    assert machine.spent == 2.0


# -- in the application ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    address = f"sqlite:///{tmp_path_factory.mktemp('sparing')}/graft.db"
    with running(address):
        pass
    return address


@pytest.mark.long
def test_an_answer_is_kept_until_somebody_writes(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("graft.web.sparing.FRESH_SECONDS", 1000.0)
    app = create_app(Settings(database=url, processor=0.2, processor_burst=100.0, hosts=frozenset({"testserver"})))
    with TestClient(app) as client:  # type: ignore[arg-type]
        before = client.get("/api/studies/demo").json()
        raw(url, "UPDATE studies SET state = 'stopped'")
        assert client.get("/api/studies/demo").json() == before
        text = client.get("/api/prometheus").text
        assert "\ngraft_http_answers_again 1\n" in text
        assert 'graft_study_state{study="demo",state="stopped"} 1.0' in text
        assert client.post("/api/queue", json={"space": "x"}).status_code in (400, 422)
        assert client.get("/api/studies/demo").json() != before


def test_a_change_that_is_told_makes_all_answers_new(url: str):
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sparing = spare(app, Settings(database=url, processor=0.2), lambda: True)
    assert sparing
    anyio.run(ask, sparing.app, scope_of("/"))
    assert sparing.answers._kept

    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(sparing=sparing)))
    _forget_answers(request)
    assert not sparing.answers._kept


def test_a_dashboard_of_its_own_keeps_nothing_and_waits_for_nothing(url: str):
    assert spare(Costly(Machine(), 0.0), Settings(database=url), lambda: True) is None
    with TestClient(create_app(Settings(database=url, hosts=frozenset({"testserver"})))) as client:  # type: ignore[arg-type]
        assert "graft_http" not in client.get("/api/prometheus").text
