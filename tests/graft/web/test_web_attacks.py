"""What somebody else's page, program or text tries on the server: refused, in the log in a line, service alive."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
import yaml
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import graft
from graft.launching.process.run_log import RunLog
from graft.web.app import create_app
from graft.web.charts.conditions import LONGEST, check_condition, check_order
from graft.web.reading import refuse
from graft.web.security.access import COOKIE, make_token
from graft.web.security.guard import Rates
from graft.web.settings import Settings
from spaces.errors import StudyError
from storage import revoke_token
from storage.databases import find_database
from storage.schema import trials
from tests.support.databases import raw
from tests.support.servers import serving
from tests.support.studies import running
from tests.support.tools import call
from tests.support.web import client_of

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('web')}/graft.db"
    with running(url):
        pass
    return url


@pytest.fixture(scope="module")
def tokens(database: str) -> dict[str, str]:
    made = {role: make_token(database, role, role) for role in ("read", "submit", "admin")}
    made["revoked"] = make_token(database, "revoked", "admin")
    revoke_token(database, "revoked")
    return made


@pytest.fixture
def client(database: str) -> Iterator[TestClient]:
    with client_of(database) as client:
        yield client


@contextmanager
def refused(caplog: pytest.LogCaptureFixture, *statuses: int) -> Iterator[None]:
    """Exactly these refusals are in the log afterwards, each one line of JSON."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "graft.web"):
        yield
    entries = [json.loads(record.getMessage()) for record in caplog.records if record.name == "graft.web"]
    assert [entry["status"] for entry in entries] == list(statuses)
    assert all("\n" not in record.getMessage() for record in caplog.records)
    assert all(entry["event"] == "refused" and entry["reason"] for entry in entries)


def expect(answer: Any, status: int, reason: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"error"}
    assert reason in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


# ------------------------------------------------------------------------------------------------------------ tokens


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer graft_" + "A" * 43},
        {"Authorization": "Basic YTpi"},
        {"Authorization": "Bearer \xff\xfe' OR 1=1 --"},
        {"Cookie": f"{COOKIE}=x; {COOKIE}=y"},
        {"Cookie": "a b;;=\x01"},
    ],
)
def test_without_a_token_nothing_is_read(
    database: str, tokens: dict[str, str], headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    with client_of(database, needs_token=True) as client, refused(caplog, 401, 401, 401):
        for path in ("/api/studies", "/api/openapi.json", "/api/nothing"):
            expect(client.get(path, headers=encoded), 401)


def test_a_token_opens_until_it_is_revoked(
    database: str, tokens: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with client_of(database, needs_token=True) as client, refused(caplog, 401):
        for role in ("read", "submit", "admin"):
            assert client.get("/api/studies", headers={"Authorization": f"Bearer {tokens[role]}"}).status_code == 200
        assert client.get("/api/studies", headers={"Cookie": f"{COOKIE}={tokens['read']}"}).status_code == 200
        expect(client.get("/api/studies", headers={"Authorization": f"Bearer {tokens['revoked']}"}), 401, "revoked")


@pytest.mark.parametrize("other", ['state={"page": 1}', "a b=1", "flag", "k[1]=2", "graft=\x01"])
def test_a_cookie_of_another_program_locks_nobody_out(database: str, tokens: dict[str, str], other: str) -> None:
    with client_of(database, needs_token=True) as client:
        for cookies in (f"{other}; {COOKIE}={tokens['read']}", f"{COOKIE}={tokens['read']}; {other}"):
            assert client.get("/api/studies", headers={"Cookie": cookies}).status_code == 200


def test_a_token_that_cannot_be_looked_up_is_a_refusal_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite:///{tmp_path / 'graft.db'}"
    with running(url):
        pass
    token = make_token(url, "reads", "read")
    (tmp_path / "graft.db").rename(tmp_path / "moved.db")
    with client_of(url, needs_token=True) as client, refused(caplog, 400):
        expect(client.get("/api/studies", headers={"Authorization": f"Bearer {token}"}), 400, "no such database")


def test_a_remote_study_with_a_token(database: str, tokens: dict[str, str]) -> None:
    with serving(Settings(database=database, needs_token=True)) as address:
        assert graft.connect(address, tokens["read"])["demo"].status().progress.planned == 24
        with pytest.raises(graft.GraftError, match="a token is needed"):
            graft.connect(address)
        assert tokens["read"] not in repr(graft.connect(address, tokens["read"])["demo"].connection)


# ----------------------------------------------------------------------------------------------- other people's pages


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "127.0.0.1@evil", "localhost:8765:1", "[::2]:8765"]
)
def test_a_name_that_leads_here_opens_nothing(client: TestClient, host: str, caplog: pytest.LogCaptureFixture) -> None:
    with refused(caplog, 421):
        expect(client.get("/api/studies", headers={"Host": host}), 421, "this server is not called")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "LOCALHOST:8765", "[::1]:8765"])
def test_its_own_names_do(client: TestClient, host: str) -> None:
    assert client.get("/api/studies", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
def test_a_page_of_another_site_reads_nothing(
    client: TestClient, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with refused(caplog, 403, 403):
        expect(client.get("/api/studies", headers=headers), 403, "another")
        expect(client.post("/api/studies", headers=headers, content=b"{}"), 403, "another")


def test_a_link_from_another_site_may_be_followed(client: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/api/studies", headers=headers).status_code == 200
    expect(client.post("/api/studies", headers=headers), 403)


def test_no_answer_may_be_framed_guessed_or_kept(client: TestClient) -> None:
    for path in ("/api/studies", "/api/studies/none", "/nothing"):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers


# ------------------------------------------------------------------------------------------------------ paths and SQL


@pytest.mark.parametrize(
    "path",
    [
        "/api/studies/..%2f..%2fetc%2fpasswd",
        "/api/studies/demo%00",
        "/api/studies/demo'%20OR%20'1'='1",
        "/api/studies/demo/figures/..%2f..%2f",
        "/api/studies/demo/figures/__init__/1.svg",
        "/api/studies/demo/export/studies.csv",
        "/api/studies/demo/export/trials.db",
        "/api/studies/demo/trials/-1",
        "/api/studies/demo/trials/1e3",
        "/api/studies/<script>alert(1)<%2fscript>",
        "/static/..%2f..%2fsettings.py",
        "/../../etc/passwd",
    ],
)
def test_no_path_leads_out(client: TestClient, path: str, caplog: pytest.LogCaptureFixture) -> None:
    answer = client.get(path)
    assert answer.status_code in (404, 422), answer.text
    assert "root:" not in answer.text
    if path.startswith("/api"):
        expect(answer, answer.status_code)


INJECTIONS = [
    "1=1; DROP TABLE trials",
    "1=1) UNION SELECT digest FROM tokens --",
    "(SELECT count(*) FROM tokens) > 0",
    "number IN (SELECT 1)",
    "load_extension('x') = 1",
    "number(1)",
    "randomblob(1000000000) IS NULL",
    "1 /* x */ = 1",
    "1 -- x",
    "tokens.digest = 'x'",
    "config = 'x'",
    "trials.number = 1",
    "pg_sleep(10) IS NULL",
    "E'\\x41' = 'A'",
    "$$x$$ = 'x'",
    "number::text = '1'",
    '"number" = 1',
    "1 = 1)) OR ((1 = 1",
    "(1 = 1",
    "'unclosed",
    "number = 1 \x00",
    "params.a'b = 1",
    "ﬁrst = 1",
    "x" * (LONGEST + 1),
]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("text", INJECTIONS)
def test_a_condition_says_nothing_but_a_condition(
    client: TestClient, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StudyError) as caught:
        check_condition(text)
    assert "\n" not in str(caught.value)
    with refused(caplog, *[422 if len(text) > LONGEST else 400] * 2):
        for name in ("where", "sort"):
            answer = client.get("/api/studies/demo/trials", params={name: text})
            assert answer.status_code in (400, 422)
    assert client.get("/api/studies").status_code == 200


def test_what_the_database_refuses_does_not_say_where_it_lies(client: TestClient, database: str) -> None:
    answer = client.get("/api/studies/demo/trials", params={"where": "number = = 1"})
    expect(answer, 400, "syntax error")
    assert database.removeprefix("sqlite:///") not in answer.text


def test_a_refusal_names_no_database_and_stays_a_sentence(database: str) -> None:
    name = find_database(database).name
    for error, reason in (
        (f"{name}: no space left", "no space left"),
        (f"the service of {name} does not answer", "the service of the database does not answer"),
    ):
        assert refuse(StudyError(error), database).reason == reason


def _only_trials() -> Callable[[str], None]:
    """Return a function that runs a condition on a database where only trials can be read and no function called."""
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE trials ({', '.join(column.name for column in trials.columns)})")
    connection.execute("CREATE TABLE tokens (digest)")
    allowed = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ}

    def authorize(action: int, first: str | None, second: str | None, *more: Any) -> int:
        fine = action in allowed and (action != sqlite3.SQLITE_READ or first == "trials")
        fine = fine or (action == sqlite3.SQLITE_FUNCTION and second == "like")  # the operator
        return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY

    connection.set_authorizer(authorize)

    def run(sql: str) -> None:
        try:
            connection.execute(sql).fetchall()
        except sqlite3.Error as error:
            refused = [word for word in ("prohibited", "authorized", "one statement") if word in str(error)]
            assert not refused, sql

    return run


_WORDS = st.sampled_from(
    [
        *("SELECT", "FROM", "UNION", "AND", "OR", "NOT", "IN", "LIKE", "NULLS", "DESC"),
        *("tokens", "digest", "number", "state", "abs", "params.x", "1", "0x1"),
        *("(", ")", "'", "''", "--", "-", "/*", "*/", ";", "=", "<", ",", "%", " ", "\n"),
    ]
)


@given(st.lists(_WORDS, max_size=14), st.booleans())
def test_whatever_passes_reads_trials_alone(words: list[str], spaced: bool) -> None:
    text = (" " if spaced else "").join(words)
    for check, sql in (
        (check_condition, "SELECT number FROM trials WHERE study_id = 1 AND ({}\n) ORDER BY id LIMIT 3"),
        (check_order, "SELECT number FROM trials WHERE study_id = 1 ORDER BY {}\nNULLS LAST, id LIMIT 3"),
    ):
        try:
            passed = check(text)
        except StudyError:
            continue
        if passed is not None:
            _only_trials()(sql.format(passed.replace("params.x", "params")))


# ------------------------------------------------------------------------------------------------- too much, too slow


def test_a_large_body_is_not_read(database: str, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(database, largest_body=1000) as client, refused(caplog, 413, 413, 405):
        expect(client.post("/api/studies", content=b"x" * 1001), 413, "more than 1,000 bytes")
        expect(client.post("/api/studies", content=(b"x" * 100 for _ in range(11))), 413)
        expect(client.post("/api/studies", content=b"x" * 1000), 405)


def test_a_body_whose_connection_breaks_is_not_carried_out(database: str) -> None:
    """Half of a note is no note."""
    parts = iter([{"type": "http.request", "body": b"text=the+note", "more_body": True}, {"type": "http.disconnect"}])
    sent = list[Any]()

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/studies/demo/note"
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "scheme": "http", "root_path": ""}
    before = raw(database, "SELECT note FROM studies")
    anyio.run(create_app(Settings(database=database)), scope, receive, send)
    assert sent[0]["status"] == 400
    assert raw(database, "SELECT note FROM studies") == before


@pytest.mark.parametrize(
    ("path", "work"),
    [
        ("/studies", "study_list.archive_study"),
        ("/studies/demo/note", "study_list.write_note"),
        ("/studies/demo/trials/marks", "trial_table.mark_trials"),
        ("/login", "pages.find_holder"),
    ],
)
def test_no_form_keeps_other_requests_waiting(
    client: TestClient, path: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change may wait for a service for seconds, which the thread of all requests must not."""
    loops = list[bool]()

    def look_for_loop(*values: Any, **named: Any) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loops.append(False)
        else:
            loops.append(True)

    monkeypatch.setattr(f"graft.web.routes.{work}", look_for_loop)
    client.post(path, data={"study": "demo", "text": "x", "number": "3", "token": "x"}, follow_redirects=False)
    assert loops == [False]


def test_a_hundred_megabytes_and_a_slow_client(database: str) -> None:
    with serving(Settings(database=database, body_seconds=0.3)) as address:
        server = urlsplit(address)
        for head, body in (
            (b"Content-Length: 104857600", b"x" * (1 << 16)),
            (b"Content-Length: 10", b"x"),
            (b"Transfer-Encoding: chunked", b"1\r\nx\r\n"),
        ):
            with closing(socket.create_connection((server.hostname, server.port), timeout=60)) as slow:
                slow.sendall(b"POST /api/studies HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + b"\r\n\r\n" + body)
                answer = slow.recv(1 << 16)
                assert answer.split()[1] in (b"413", b"408"), answer
        assert list(graft.connect(address)) == ["demo"]


@pytest.mark.parametrize(
    ("sent", "is_second"), [(b"", False), (b"GET /api/studies HTTP/1.1\r\nHost: 127.0.0.1\r\n", False), (b"POST", True)]
)
def test_a_head_that_comes_byte_by_byte_keeps_no_connection(database: str, sent: bytes, is_second: bool) -> None:
    with serving(Settings(database=database, body_seconds=0.5)) as address:
        server = urlsplit(address)
        with closing(socket.create_connection((server.hostname, server.port), timeout=60)) as slow:
            if is_second:
                slow.sendall(b"GET /static/style.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                answer = b""
                while b"@media (max-width" not in answer:
                    answer += slow.recv(1 << 16)
            slow.sendall(sent)
            slow.settimeout(0.1)
            ended = False
            deadline = time.monotonic() + 240
            while not ended:
                assert time.monotonic() < deadline
                try:
                    slow.sendall(b"X")
                    ended = slow.recv(1 << 16) == b""
                except TimeoutError:
                    continue
                except OSError:  # the server has closed it while a byte was on its way
                    ended = True
        assert list(graft.connect(address)) == ["demo"]


@pytest.mark.long
@pytest.mark.parametrize("head", [b"Content-Length: 104857600", b"Transfer-Encoding: chunked"])
def test_a_hundred_megabytes_that_are_sent_are_not_kept(database: str, head: bytes) -> None:
    with serving(Settings(database=database)) as address:
        server = urlsplit(address)
        tracemalloc.start()
        try:
            with closing(socket.create_connection((server.hostname, server.port), timeout=60)) as client:
                client.sendall(b"POST /api/queue HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + b"\r\n\r\n")
                part = b"x" * (1 << 20)
                if b"chunked" in head:
                    part = b"100000\r\n" + part + b"\r\n"
                with suppress(ConnectionError):  # it answers and closes before all is sent
                    for _ in range(100):
                        client.sendall(part)
                with suppress(ConnectionError):
                    assert client.recv(1 << 16).split()[1] == b"413"
            assert list(graft.connect(address)) == ["demo"]
            assert tracemalloc.get_traced_memory()[1] < 30 << 20
        finally:
            tracemalloc.stop()


def test_a_body_that_comes_byte_by_byte_is_given_up(database: str) -> None:
    with serving(Settings(database=database, body_seconds=0.5)) as address:
        server = urlsplit(address)
        with closing(socket.create_connection((server.hostname, server.port), timeout=60)) as slow:
            slow.sendall(b"POST /api/queue HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n")
            slow.settimeout(0.05)
            answer = b""
            deadline = time.monotonic() + 240
            while not answer:
                assert time.monotonic() < deadline
                with suppress(TimeoutError):
                    slow.sendall(b"x")
                    answer = slow.recv(1 << 16)
            assert answer.split()[1] == b"408"


def test_a_client_that_asks_too_often_waits(database: str, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(database, rate=0.001, burst=3) as client, refused(caplog, 429):
        assert [client.get("/api/studies").status_code for _ in range(3)] == [200] * 3
        answer = client.get("/api/studies")
        expect(answer, 429, "too many requests")
        assert int(answer.headers["retry-after"]) >= 900


def test_a_bucket_fills_at_its_rate_and_not_beyond() -> None:
    now = [0.0]
    rates = Rates(2.0, 3, lambda: now[0])
    assert [rates.take("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert rates.take("b") == 0
    now[0] = 0.5
    assert rates.take("a") == 0
    assert rates.take("a") == 0.5
    now[0] = 1000.0
    assert [rates.take("a") for _ in range(4)] == [0, 0, 0, 0.5]


# ---------------------------------------------------------------------------------------------------- code and markup


_TRANSFER = """
study: demo
transfer:
  tasks:
    short: &task
      space:
        study: short
        task: {name: set_complement, length: 4, vocabulary: 8}
        model: {name: minimal, width: 8, key_width: 8, value_width: 8, scorer: softmax}
        optimizer: {name: adamw, learning_rate: 0.01}
        training: {steps: 40, validate_every: 20}
        search: {objective: {minimize: tvd/bema}}
    long: *task
  architecture:
    model.scorer: {choice: [softmax, evil]}
search: {trials: 2, objective: {minimize: tvd/bema}}
"""


def test_no_page_runs_code_that_came_with_a_study(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    url, trace = f"sqlite:///{tmp_path}/graft.db", tmp_path / "ran"
    with running(url):
        pass
    code = f'open("{trace}", "w").close()'
    member = {"family": "scorer", "line": 1, "name": "evil", "origin": "./evil.py"}
    raw(
        url,
        "INSERT INTO sources (study_id, bundle, module, path, is_package, sha256, text, plugins) VALUES (1, 0, 'evil',"
        f" 'evil.py', 0, '{sha256(code.encode()).hexdigest()}', '{code}', '{json.dumps([member])}')",
    )
    raw(url, f"UPDATE studies SET space = '{yaml.safe_dump(yaml.safe_load(_TRANSFER))}'")
    with client_of(url) as client, refused(caplog, 403, 403):
        for page in ("matrix", "nonlinearities"):
            answer = client.get(f"/studies/demo/{page}")
            assert answer.status_code == 403
            assert "has plug-ins of its own, whose code does not run here" in answer.text
        assert "distribution" in client.get("/api/studies/demo/figures").json()
        assert client.get("/api/studies/demo/figures/distribution").json()
        for page in ("", "/live", "/figures", "/trials", "/trials/3", "/workers"):
            assert client.get(f"/studies/demo{page}").status_code == 200, page
    assert call(url, "advise", task="set_complement").is_error
    assert not trace.exists()


EVIL = "<script>alert('evil')</script>\"'&{{ 7 * 7 }}"


def test_markup_in_whatever_others_write_is_text(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(url) as store:
        store.annotate(1, note=EVIL, tags=("a",))
    text = EVIL.replace("'", "''")
    params = json.dumps({EVIL: EVIL, "model.scorer": EVIL, "x": 1}).replace("'", "''")
    for sql in (
        f"UPDATE studies SET objective = 'tvd/{text}', tags = json_array('{text}')",
        f"UPDATE studies SET second_objective = 'minimize {text}'",
        f"UPDATE trials SET worker = '{text}', step_kind = '{text}', error = '{text}', params = '{params}'",
        "UPDATE trials SET params = json_set(params, '$.x', number), second_objective = number",
        "UPDATE trials SET params = json_set(params, '$.\"model.scorer\"', 'other') WHERE number % 2 = 1",
        f"UPDATE trials SET config = json_object('{text}', '{text}'), constraints = json_object('{text}', 1.0)",
        f"UPDATE metrics SET variant = '{text}', condition = '{text}' WHERE variant = 'bema'",
        f"UPDATE workers SET host = '{text}', device = '{text}', log = '{text}'",
    ):
        raw(url, sql)
    RunLog.of(url).write("demo", EVIL)
    with client_of(url) as client:
        for path in (
            "",
            "studies/demo",
            "studies/demo/trials/3",
            "studies/demo/workers",
            "compare?study=demo&study=demo",
            "queue",
        ):
            answer = client.get(f"/{path}")
            assert answer.status_code == 200, (path, answer.text)
            assert "<script>alert" not in answer.text
            assert "&lt;script" not in answer.text or "{{ 7 * 7 }}" in answer.text
        assert client.get("/studies/demo").text.count("&lt;script&gt;alert") > 5
