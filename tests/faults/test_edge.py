"""The edge of the service: no message ends its reader, no person changes another's study or keeps others waiting."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import sqlite3
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import anyio
import pytest

from graft.launching.enrolling import check_seconds
from graft.web.events import Follower
from graft.web.security.access import COOKIE, find_holder, make_token
from graft.web.security.guard import Counts, Turns
from graft.web.security.refusals import RefusalError
from graft.web.settings import AddressError, Quotas, Settings
from spaces import cache as cache_module
from spaces.errors import AccessError, MessageError, StorageError, StudyError
from spaces.records import TrialResult
from storage import Store, StoreRequest, Terms, open_reader, open_store, request_queue, revoke_token
from storage.databases import mailbox as mailboxes
from storage.databases.mailbox import Mailbox
from storage.queue_entries import OPEN
from storage.store_request import Action
from tests.support.databases import OBJECTIVE, controlled, make_trial, raw
from tests.support.edge import POISON
from tests.support.inside import called
from tests.support.queue import STUDY, TERMS, ask, taking
from tests.support.servers import serving
from tests.support.web import client_of
from workers.numerics import native

pytestmark = pytest.mark.fast

GOOD = replace(STUDY, name="good")


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    return url


@pytest.fixture
def box(tmp_path: Path) -> Mailbox:
    return Mailbox(tmp_path / "graft.db.queue")


# ------------------------------------------------------------------------------------------------ messages that kill


@pytest.mark.parametrize("kind", POISON)
def test_a_message_that_cannot_be_done_is_moved_aside_and_the_next_one_is_done(
    database: str, box: Mailbox, kind: str
) -> None:
    box.post(StoreRequest.of_study(STUDY, TERMS).to_json())
    poison = box.post("")
    path = next(Path(database.removeprefix("sqlite:///") + ".queue").glob(f"{poison}.json"))
    path.unlink()
    POISON[kind](path)
    box.post(StoreRequest.of_study(GOOD, TERMS).to_json())
    for _ in range(2):  # the second one as after a restart
        with open_store(database) as store:
            store.take_requests()
    assert raw(database, "SELECT name FROM studies ORDER BY id") == [("one",), ("good",)]
    [refused] = box.refused()
    assert (refused.name, box.names()) == (poison, [])
    assert refused.reason
    assert "\n" not in refused.reason
    assert box.refusal(poison) == refused.reason


def test_any_error_in_a_message_is_the_messages_own(
    database: str, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that nobody thought of: it would end the service, and each one after it."""
    carry_out = Store.carry_out

    def fail(store: Store, request: StoreRequest) -> Any:
        return 1 / 0 if request.study == "one" else carry_out(store, request)

    monkeypatch.setattr(Store, "carry_out", fail)
    for study in (STUDY, GOOD):
        box.post(StoreRequest.of_study(study, TERMS).to_json())
    with open_store(database) as store:
        assert [entry.study for entry in store.take_requests()] == ["good"]
    assert [message.reason for message in box.refused()] == ["ZeroDivisionError: division by zero"]


def test_an_error_of_the_database_is_no_fault_of_a_message(
    database: str, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full ends the service, and what was asked is done by the next one."""
    box.post(StoreRequest.of_study(STUDY, TERMS).to_json())

    def fail(*arguments: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")

    with open_store(database) as store, monkeypatch.context() as patched:
        patched.setattr("storage.queue.insert_study", fail)
        with pytest.raises(StorageError, match="no space left"):
            store.take_requests()
    assert (len(box.names()), box.refused()) == (1, [])
    with open_store(database) as store:
        assert [entry.study for entry in store.take_requests()] == ["one"]


def test_a_message_that_is_withdrawn_while_the_folder_is_read_is_no_error(
    database: str, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [box.post(StoreRequest.of_study(study, TERMS).to_json()) for study in (STUDY, GOOD)]
    box.settle(names[0])
    monkeypatch.setattr(Mailbox, "names", lambda self: names)
    with open_store(database) as store:
        assert [entry.study for entry in store.take_requests()] == ["good"]
    assert box.refused() == []


def test_requests_are_done_in_the_order_in_which_they_were_made_whatever_the_clock_says(
    database: str, box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = iter(range(10, 0, -1))
    monkeypatch.setattr("time.time_ns", lambda: next(hours) * 3600 * 10**9)
    box.post(StoreRequest.of_study(STUDY, TERMS).to_json())
    for action in ("pause", "resume", "cancel", "resume"):
        box.post(StoreRequest(action=action, study="one").to_json())
    with open_store(database) as store:
        assert [entry.state for entry in store.take_requests()] == [
            "waiting",
            "paused",
            "waiting",
            "cancelled",
            "waiting",
        ]


def test_a_request_that_was_done_does_not_come_back_with_the_power(
    box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is on the disk without it before anything else is done; see `test_power_cuts`, too."""
    name, left = box.post("x"), list[list[str]]()
    monkeypatch.setattr(mailboxes, "synchronise", lambda folder: left.append(box.names()))
    box.settle(name)
    assert left == [[]]


def test_a_token_is_made_and_revoked_once_though_it_is_asked_for_twice(database: str, box: Mailbox) -> None:
    """As a service leaves requests that is killed between a commit and the removal of the request."""
    made = StoreRequest(action="make_token", study="ada", row={"role": "read", "digest": "d", "seconds": None})
    other = replace(made, row={**made.row, "digest": "another"})
    revoked = StoreRequest(action="revoke_token", study="ada")
    names = [box.post(message.to_json()) for message in (made, made, revoked, revoked, made, other)]
    with open_store(database) as store:
        store.take_requests()
    assert raw(database, "SELECT name, digest, revoked_at IS NULL FROM tokens") == [("ada", "d", 0)]
    assert [bool(box.refusal(name)) for name in names] == [False] * 5 + [True]


def test_a_message_that_is_too_large_is_not_read(database: str, box: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "LARGEST_REQUEST", 100)
    box.post(StoreRequest.of_study(STUDY, TERMS).to_json())
    with open_store(database) as store:
        assert store.take_requests() == []
    assert "more than 100 bytes" in box.refused()[0].reason


def test_few_messages_are_kept_aside(box: Mailbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "_MOST_REFUSED", 3)
    names = [box.post("x") for _ in range(5)]
    for name in names:
        box.put_aside(name, "no")
    assert [message.name for message in box.refused()] == names[2:]


def test_a_reason_for_which_the_disk_has_no_room_leaves_the_message_aside(
    box: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = box.post("x")

    def fail(*arguments: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(Mailbox, "_write", fail)
    box.put_aside(name, "no")
    assert box.names() == []
    assert box.refusal(name) == "the reason was not kept"


def test_the_command_line_says_what_is_no_number_and_no_character_and_what_was_moved_aside(
    database: str, box: Mailbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEARCH_STORAGE", database)
    with open_store(database) as store:
        store.create_study(STUDY)
    for arguments in (("note", "one", "caf\udce9"), ("submit", "quick/add", "--max-lanes", 10**20)):
        status, out, error = called(monkeypatch, capsys, *arguments)
        assert (status, out, error.count("\n")) == (2, "", 1), error
    box.put_aside(box.post("x"), "it holds\x1b[2J a thing")
    status, _, error = called(monkeypatch, capsys, "queue")
    assert status == 0
    assert "moved aside" in error
    assert "\x1b" not in error


# ----------------------------------------------------------------------------------------------------------- owners


def check_owners(url: str, seed: int, actions: int) -> int:
    """Random actions of two owners, a reader and an admin, each by its text; how many were refused as another's.

    A model says what each entry must be afterwards: its owner, its state, its class.
    """
    draw = random.Random(seed)
    model = dict[str, tuple[str, str, int]]()
    launched = {f"launched-{seed}"}
    refused = 0
    with open_store(url) as store:
        store.create_study(replace(STUDY, name=f"launched-{seed}"))
        for _ in range(actions):
            by = draw.choice(["ada", "ben", "eve", None])
            name = draw.choice([f"x-{seed}", f"y-{seed}", *launched])
            action = draw.choice(["submit", "submit", "pause", "resume", "cancel", "reprioritise", "end"])
            if action == "end":
                if name in model and model[name][1] == "waiting":
                    ids = {entry.study: entry.study_id for entry in store.queue.sound_entries()[0]}
                    store.queue.note_end(ids[name], "done")
                    model[name] = (model[name][0], "done", model[name][2])
                continue
            priority = draw.randint(-5, 5)
            terms = Terms(owner=by or "root", priority=priority)
            if action == "submit":
                asked = replace(StoreRequest.of_study(replace(STUDY, name=name), terms), by=by)
            else:
                asked = StoreRequest(action=action, study=name, by=by, terms=Terms(priority=priority))
            owner = model[name][0] if name in model else None
            is_anothers = by == "eve" or (by is not None and (owner != by if name in model else name in launched))
            try:
                store.carry_out(StoreRequest.from_json(asked.to_json()))
            except AccessError:
                assert is_anothers or (name not in model and action != "submit")
                refused += 1
            except StudyError:
                assert not (is_anothers and name in model)
            else:
                assert not is_anothers, (asked, model)
                state = {"pause": "paused", "cancel": "cancelled"}.get(action, "waiting")
                _, before, level = model.get(name, ("", "done", priority))
                if action != "submit" or before not in OPEN:  # one that is in the queue stays as it is
                    model[name] = {
                        "submit": (terms.owner, "waiting", priority),
                        "reprioritise": (owner or "", before, priority),
                    }.get(action, (owner or "", state, level))
            rows = {row.study: (row.owner, row.state, row.priority) for row in store.queue.sound_entries()[0]}
            assert {name: rows[name] for name in model} == model
            assert not {f"launched-{seed}"} & (rows.keys() - model.keys())
    return refused


def make_people(url: str) -> None:
    """Make the tokens of two who submit and of one who only looks."""
    for name, role in (("ada", "submit"), ("ben", "submit"), ("eve", "read")):
        make_token(url, name, role)


@pytest.mark.sampled(1)
def test_no_action_on_anothers_study_takes_effect(url: str) -> None:
    make_people(url)
    assert sum(check_owners(url, seed, 60) for seed in range(5)) > 50


@pytest.mark.slow
def test_no_action_on_anothers_study_takes_effect_in_500_runs(tmp_path: Path) -> None:
    """Each run in a copy of a database: in one that is shared all runs would read the entries of all."""
    make_people(f"sqlite:///{tmp_path}/empty.db")
    refused = 0
    for seed in range(500):
        shutil.copy(tmp_path / "empty.db", tmp_path / "graft.db")
        refused += check_owners(f"sqlite:///{tmp_path}/graft.db", seed, 200)
        (tmp_path / "graft.db").unlink()
    assert refused > 10_000


def test_what_is_pending_is_its_owners_when_it_is_done(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a launch holds the file another person cancels, over HTTP, a submission that is not in the queue yet."""
    monkeypatch.setattr("storage.requests._ANSWER_SECONDS", 0.1)
    tokens = {name: make_token(database, name, "submit") for name in ("ada", "ben")}
    submitted = replace(StoreRequest.of_study(STUDY, Terms(owner="ada")), by="ada")
    with open_store(database), client_of(database, needs_token=True) as client:
        assert request_queue(database, submitted) is None
        headers = {"Authorization": f"Bearer {tokens['ben']}"}
        assert client.post("/api/queue/one/cancel", headers=headers).status_code == 202
    with open_store(database) as store:
        store.take_requests()
    assert raw(database, "SELECT owner, state FROM submissions") == [("ada", "waiting")]


def test_a_person_has_so_many_studies_in_the_queue(url: str) -> None:
    make_token(url, "ada", "submit")
    with open_store(url) as store:

        def submit(name: str) -> None:
            asked = StoreRequest.of_study(replace(STUDY, name=name), Terms(owner="ada"))
            store.carry_out(replace(asked, by="ada", most_open=2))

        submit("a")
        submit("b")
        with pytest.raises(StudyError, match="ada has 2 studies in the queue, as many as a person may have"):
            submit("c")
        ask(store, "cancel", "a")
        submit("c")
        with pytest.raises(StudyError, match="as many as a person may have"):
            store.carry_out(StoreRequest(action="resume", study="a", by="ada", most_open=2))


def test_a_request_of_a_token_that_was_revoked_meanwhile_is_not_done(url: str) -> None:
    make_token(url, "ada", "submit")
    asked = replace(StoreRequest.of_study(STUDY, Terms(owner="ada")), by="ada")
    with open_store(url) as store:
        store.carry_out(StoreRequest(action="revoke_token", study="ada"))
        with pytest.raises(AccessError, match="the token 'ada' was revoked, or has expired"):
            store.carry_out(asked)


@pytest.mark.parametrize("action", get_args(Action))
def test_each_action_checks_its_row(action: Any) -> None:
    with pytest.raises(MessageError):
        StoreRequest(action=action, study="one", row={"x": 1}).check()


# ----------------------------------------------------------------------------------------------------------- tokens


def test_a_token_is_revoked_at_once_whoever_writes_the_file(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch takes in no requests: that one was made is enough, and the next process writes it down."""
    monkeypatch.setattr("storage.requests._ANSWER_SECONDS", 0.1)
    token = make_token(database, "ada", "admin")
    with open_store(database):
        assert find_holder(database, token)
        assert not revoke_token(database, "ada")
        assert find_holder(database, token) is None
        with pytest.raises(StudyError, match="is being written by process"):
            make_token(database, "bob", "admin")
    with open_store(database) as store:
        store.take_requests()
    assert find_holder(database, token) is None
    assert raw(database, "SELECT revoked_at IS NULL FROM tokens") == [(0,)]


def test_a_service_makes_and_revokes_tokens(database: str) -> None:
    with open_store(database) as store:
        store.lock_service()
        with taking(store):
            token = make_token(database, "ada", "read", 3600)
            assert find_holder(database, token)
            with pytest.raises(StudyError, match="exists already"):
                make_token(database, "ada", "read")
            assert revoke_token(database, "ada")
            assert find_holder(database, token) is None
            with pytest.raises(StudyError, match="is no token"):
                revoke_token(database, "ada")


def test_a_token_expires(url: str) -> None:
    token = make_token(url, "ada", "submit", 3600)
    assert find_holder(url, token)
    [(created, expires)] = raw(url, "SELECT created_at, expires_at FROM tokens")
    parsed = [datetime.fromisoformat(moment) if isinstance(moment, str) else moment for moment in (created, expires)]
    assert parsed[1] - parsed[0] == timedelta(hours=1)
    raw(url, "UPDATE tokens SET created_at = '2020-01-01 00:00:00.000000', expires_at = '2020-01-02 00:00:00.000000'")
    assert find_holder(url, token) is None
    with open_store(url) as store, pytest.raises(AccessError, match="has expired"):
        store.carry_out(StoreRequest(action="cancel", study="one", by="ada"))
    for seconds in (0.0, -1.0, float("inf"), 1e12):
        with pytest.raises(StudyError):
            make_token(url, "bob", "read", seconds)


def test_a_stream_ends_when_its_token_is_revoked(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graft.web.routes.events._SECONDS", 0.02)
    look, looks = Follower.look, list[Follower]()

    def count_look(follower: Follower) -> Any:
        looks.append(follower)
        return look(follower)

    monkeypatch.setattr(Follower, "look", count_look)
    token = make_token(database, "ada", "read")
    with open_store(database) as store:
        store.create_study(STUDY)
    with serving(Settings(database=database, needs_token=True)) as address:
        with closing(connect(address)) as client:
            client.sendall(request("/api/studies/one/events", token))
            seen = client.recv(1 << 16)
            while b"event: change" not in seen:
                seen += client.recv(1 << 16)
            revoke_token(database, "ada")
            before = len(looks)
            while client.recv(1 << 16):
                pass  # it ends, as each stream does after some hundred looks
            assert len(looks) - before <= 1, "one may have been under way"
        with closing(connect(address)) as client:
            client.sendall(request("/api/studies/one/events", token))
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 401")


def test_who_follows_a_study_is_told_of_the_new_end_of_a_trial_that_was_retried(database: str) -> None:
    with controlled(database) as study:
        study.start([make_trial(0), make_trial(1)], "w")
        for number, state in ((0, "finished"), (1, "failed")):
            reason = "disk full" if state == "failed" else None
            study.end([TrialResult(number=number, state=state, objective=None, error=reason, fence=1)])
        number = study.id
    with open_reader(database) as reader:
        follower = Follower(reader, reader.study("study"), None)
        assert follower.cursor == 2
    with open_store(database) as store:
        assert store.retry(number) == [1]
    with open_reader(database) as reader:
        assert Follower(reader, reader.study("study"), None).cursor == 2
        waiting = Follower(reader, reader.study("study"), 0).look()
        assert waiting
        assert [trial.number for trial in waiting.ended] == [0], "the other one waits again"
    with open_store(database) as store:
        again = store.take_control(number, policy="thin", objective=OBJECTIVE)
        again.start([make_trial(1)], "w")
        again.end([TrialResult(number=1, state="finished", objective=0.1, fence=2)])
    with open_reader(database) as reader:
        change = Follower(reader, reader.study("study"), 2).look()
        assert change
        assert [(trial.number, trial.state) for trial in change.ended] == [(1, "finished")]


def test_a_person_logs_out(database: str) -> None:
    token = make_token(database, "ada", "read")
    with client_of(database, needs_token=True) as client:
        client.post("/login", data={"token": token}, follow_redirects=False)
        assert client.cookies[COOKIE] == token
        assert "log out" in client.get("/queue").text
        client.post("/logout", follow_redirects=False)
        assert COOKIE not in client.cookies
        assert client.get("/api/studies").status_code == 401


# ---------------------------------------------------------------------------------------------------------- limits


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), 240, (source, 0))


def request(path: str, token: str = "", **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"Authorization: Bearer {token}"] if token else []
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_an_address_that_takes_all_connections_and_streams_leaves_the_others_theirs(database: str) -> None:
    with open_store(database) as store:
        store.create_study(STUDY)
    settings = Settings(database=database, streams_each=4, connections_each=20, burst=10_000)
    with serving(settings) as address, ExitStack() as opened:
        for number in range(60):
            client = opened.enter_context(closing(connect(address)))
            if number < 8:
                client.sendall(request("/api/studies/one/events"))
        other = opened.enter_context(closing(connect(address, "127.0.0.2")))
        other.sendall(request("/api/studies"))
        assert other.recv(100).startswith(b"HTTP/1.1 200")
        stream = opened.enter_context(closing(connect(address, "127.0.0.2")))
        stream.sendall(request("/api/studies/one/events"))
        assert stream.recv(100).startswith(b"HTTP/1.1 200")


def count_connections(settings: Settings, asked: int) -> int:
    """How many of the connections that one address opens are kept."""
    with serving(settings) as address, ExitStack() as opened:
        clients = [opened.enter_context(closing(connect(address))) for _ in range(asked)]
        kept = 0
        for client in clients:
            with suppress(ConnectionError):
                client.sendall(request("/api/studies"))
                kept += client.recv(100).startswith(b"HTTP/1.1 200")
        return kept


def test_an_address_has_so_many_connections(database: str, caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(database=database, connections_each=5, body_seconds=240)
    assert count_connections(settings, 8) == 5
    assert "Traceback" not in caplog.text, "one that is refused is no error of the server"


def test_a_proxy_may_open_as_many_connections_as_it_likes(database: str) -> None:
    settings = Settings(database=database, connections_each=5, body_seconds=240, proxies=("127.0.0.1",))
    assert count_connections(settings, 8) == 8


def test_each_address_has_a_bucket_of_its_own(database: str) -> None:
    """One that has used up its own leaves the others theirs."""
    with serving(Settings(database=database, rate=1e-6, burst=2)) as address:

        def ask(source: str) -> bytes:
            with closing(connect(address, source)) as client:
                client.sendall(request("/api/studies"))
                return client.recv(100).split(b" ")[1]

        assert [ask("127.0.0.1") for _ in range(3)] == [b"200", b"200", b"429"]
        assert ask("127.0.0.2") == b"200"


def test_no_more_are_open_in_all_and_of_each_key() -> None:
    counts = Counts(3, 2)
    assert [counts.take("a", "x"), counts.take("a", "y"), counts.take("a"), counts.take("b")] == [
        True,
        True,
        False,
        True,
    ]
    assert not counts.take("c")
    counts.give_back("a", "x")
    assert (counts.of("a"), counts.of("x")) == (1, 0)
    assert counts.take("c")


def test_answers_are_made_for_each_client_a_few_at_a_time() -> None:
    async def run() -> tuple[int, list[str]]:
        turns, open_, most, order = Turns(2, 3), 0, 0, list[str]()

        async def ask(client: str) -> None:
            nonlocal open_, most
            try:
                async with turns.turn(client):
                    open_ += client == "a"
                    most = max(most, open_)
                    for _ in range(5):
                        await anyio.sleep(0)
                    open_ -= client == "a"
                    order.append(client)
            except RefusalError as refusal:
                order.append(str(refusal.status))

        async with anyio.create_task_group() as group:
            for client in (*"aaaaaa", "b"):
                group.start_soon(ask, client)
        assert not turns._turns
        return most, order

    most, order = anyio.run(run)
    assert most == 2
    assert order.index("b") < 4
    assert (order.count("a"), order.count("429")) == (5, 1)


@pytest.mark.long
def test_a_proxy_that_is_named_says_for_whom_it_asks_and_whether_over_tls(database: str) -> None:
    token = make_token(database, "ada", "read")
    body = f"token={token}".encode()

    def log_in(address: str) -> bytes:
        head = (
            f"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nX-Forwarded-Proto: https\r\n"
            f"X-Forwarded-For: 10.0.0.7\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        with closing(connect(address)) as client:
            client.sendall(head + body)
            answer = b""
            while part := client.recv(1 << 16):
                answer += part
        return answer

    for proxies, is_secure in (((), False), (("127.0.0.1",), True)):
        with serving(Settings(database=database, needs_token=True, proxies=proxies)) as address:
            answer = log_in(address)
            assert b"303" in answer.split(b"\r\n")[0]
            assert (b"Secure" in answer) == is_secure


def test_what_another_address_than_the_proxy_forwards_is_not_believed(database: str) -> None:
    """A client that names ever other addresses would have ever other buckets."""
    settings = Settings(database=database, rate=1e-6, burst=2, proxies=("127.0.0.9",))
    with serving(settings) as address:
        answers = list[bytes]()
        for number in range(3):
            with closing(connect(address)) as client:
                client.sendall(request("/api/studies", **{"X-Forwarded-For": f"10.0.0.{number}"}))
                answers.append(client.recv(100).split(b" ")[1])
    assert answers == [b"200", b"200", b"429"]


def test_quotas_are_read_and_checked() -> None:
    quotas = Quotas.parse(["trials=5", "priority=-2"])
    assert (quotas.trials, quotas.priority, quotas.steps) == (5, -2, 1_000_000)
    quotas.check("trials", 5)
    with pytest.raises(Exception, match=re.escape("trials: 6 are asked for, and a person may have 5 here")):
        quotas.check("trials", 6)
    for setting in ("trials", "x=1", "trials=nan", "trials=1e40", "trials=x"):
        with pytest.raises(AddressError, match="write NAME=NUMBER"):
            Quotas.parse([setting])


# ------------------------------------------------------------------------------------------- shared temporary folders


def test_a_rescue_among_temporary_files_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "shared"))
    with open_store(f"sqlite:///{tmp_path}/home/graft.db") as store:
        shutil.move(tmp_path / "home", tmp_path / "moved")
        with pytest.raises(StorageError, match="move it to where the database is to be") as caught:
            store.create_study(STUDY)
    [folder] = (tmp_path / "shared").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert str(folder / "graft.db.rescue") in str(caught.value)
    assert raw(f"sqlite:///{folder}/graft.db.rescue", "SELECT name FROM studies") == [("one",)]


@pytest.mark.parametrize("kind", ["missing", "own", "open to others", "a link", "another's"])
def test_native_code_is_loaded_from_a_folder_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where there is no home it lies among temporary files, by a name that another user can guess."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    shared = tmp_path / f"graft-cache-{os.getuid()}"
    if kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        shared.symlink_to(tmp_path / "elsewhere")
    elif kind != "missing":
        shared.mkdir(0o700)
        shared.chmod(0o777 if kind == "open to others" else 0o700)
    if kind == "another's":
        os.chown(shared, 12345, 12345)
    cache_module._make_folder.cache_clear()
    folder = native.cache_folder()
    assert (folder == shared) == (kind in ("missing", "own"))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert native.cache_folder() == folder


# ------------------------------------------------------------------------------------- what several numbers must obey


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("search.steering.leases.LEASE_SECONDS", 12.0),
        ("workers.pool.heartbeat.SELF_STOP_SECONDS", 55.0),
        ("workers.pool.heartbeat.BEAT_SECONDS", 30.0),
        ("search.steering.leases.SWEEP_SECONDS", 40.0),
    ],
)
def test_a_worker_stops_before_its_trials_are_given_to_others(
    monkeypatch: pytest.MonkeyPatch, name: str, seconds: float
) -> None:
    """The constants as they are pass; others are noticed before anything is run."""
    check_seconds()
    monkeypatch.setattr(name, seconds)
    with pytest.raises(AssertionError):
        check_seconds()
