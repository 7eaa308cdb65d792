"""The queue over HTTP: submitted, changed by who may, and no file or code of the server's opened for it."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest
import yaml
from fastapi.testclient import TestClient

import graft
from graft.launching.planning.reading import read_space
from graft.plugins.families import FAMILIES, family_of
from graft.web.security.access import make_token
from graft.web.server import serving
from graft.web.settings import Settings
from spaces import plugins
from spaces.plugins import resources
from storage import QueueEntry, Terms, open_store
from storage.frames import open_reader
from tests.support.inside import called
from tests.support.launches import SPACE, running, search, wait_until
from tests.support.web import client_of

TEXT = Path(SPACE).read_text()
OUTSIDE = Path(__file__).parents[2] / "data" / "outside"

Ask = Callable[..., Any]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/graft.db"
    open_store(url).close()
    return url


@pytest.fixture
def client(database: str) -> Iterator[TestClient]:
    with client_of(database) as client:
        yield client


def queue(database: str) -> dict[str, QueueEntry]:
    with open_reader(database) as reader:
        return {entry.study: entry for entry in reader.queue()}


def post(client: TestClient, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.post(f"/api/queue{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def changed(path: str, value: Any) -> str:
    """Return the space with another value."""
    space = yaml.safe_load(TEXT)
    *sections, last = path.split(".")
    inner = space
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[last] = value
    return yaml.safe_dump(space)


@pytest.mark.long
def test_a_submission_is_in_the_queue_on_its_terms(client: TestClient, database: str) -> None:
    answer = post(client, "", space=TEXT, study="mine", priority=3, weight=2, max_lanes=5, owner="ada")
    entry = queue(database)["mine"]
    assert (entry.owner, entry.priority, entry.weight, entry.max_lanes, entry.state) == ("ada", 3, 2.0, 5, "waiting")
    assert answer["entry"]["study"] == "mine"
    with open_reader(database) as reader:
        assert reader.study("mine").row["space_hash"] == read_space(SPACE, {}).hash
        assert reader.study("mine").row["space"] == TEXT
    shown = client.get("/api/queue").json()
    assert shown["service"] is None
    assert [row["study"] for row in shown["entries"]] == ["mine"]


@pytest.mark.long
def test_an_entry_is_paused_resumed_reprioritised_and_cancelled(client: TestClient, database: str) -> None:
    post(client, "", space=TEXT)
    for action, state in (("pause", "paused"), ("resume", "waiting"), ("cancel", "cancelled"), ("resume", "waiting")):
        assert post(client, f"/tiny/{action}")["entry"]["state"] == state
    answer = client.put("/api/queue/tiny/priority", json={"priority": -7})
    assert answer.json()["entry"]["priority"] == queue(database)["tiny"].priority == -7
    assert client.post("/api/studies/tiny/stop").status_code == 202


def test_the_buttons_of_the_page_change_an_entry(client: TestClient, database: str) -> None:
    post(client, "", space=TEXT)
    for action, state in (("pause", "paused"), ("resume", "waiting"), ("cancel", "cancelled")):
        answer = client.post(f"/queue/tiny/{action}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/queue")
        assert queue(database)["tiny"].state == state


@pytest.mark.long
def test_what_another_process_writes_is_taken_later(
    client: TestClient, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.requests._ANSWER_SECONDS", 0.3)
    with open_store(database):
        assert post(client, "", 202, space=TEXT)["entry"] is None
    assert queue(database) == {}
    with open_store(database) as store:
        store.take_requests()
    assert queue(database)["tiny"].state == "waiting"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 422, "body.space: Field required"),
        ({"space": TEXT, "priority": 101}, 422, "body.priority"),
        ({"space": TEXT, "weight": "inf"}, 422, "body.weight"),
        ({"space": TEXT, "steps": 1}, 422, "body.steps"),
        ({"space": TEXT, "study": "a b"}, 400, "must be a word"),
        ({"space": TEXT, "study": ""}, 400, "must be a word"),
        ({"space": "study: ["}, 400, "broken YAML"),
        ({"space": changed("modle", {})}, 400, "'modle' is no section"),
        ({"space": "a: &a [1, 1]\nb: &b [*a, *a]\nc: [*b, *b]\n"}, 400, "the space"),
        ({"space": "!!python/object/apply:os.system ['true']"}, 400, "tags are not part of a space"),
        ({"space": changed("search.trials", "uniform(1")}, 400, "search.trials"),
    ],
)
def test_what_is_no_submission_is_one_line(
    client: TestClient, database: str, body: dict[str, Any], status: int, reason: str
) -> None:
    error = post(client, "", status, **body)["error"]
    assert reason in error
    assert "\n" not in error
    assert queue(database) == {}


RESOURCES = {
    "task.corpus.path": ("task", {"language": {"corpus": {"file": {"path": "VALUE"}}}}),
    "task.tokenizer.path": ("task", {"language": {"tokenizer": {"bpe_file": {"path": "VALUE"}}}}),
    "task.corpus.dataset": (
        "task",
        {"language": {"corpus": {"choice": ["python", {"huggingface": {"dataset": "VALUE"}}]}}},
    ),
    "search.sampler.registry": ("search.sampler", {"optunahub": {"package": "VALUE", "registry": "VALUE"}}),
}
"""Path of a field that may name a resource -> where it stands in a space, and how."""


@pytest.mark.long
@pytest.mark.parametrize("value", ["here.txt", ""])
@pytest.mark.parametrize("field", RESOURCES)
def test_a_submission_names_no_resource(
    client: TestClient, database: str, tmp_path: Path, value: str, field: str
) -> None:
    Path(tmp_path, "here.txt").write_text("secret\n" * 1000)
    path, written = RESOURCES[field]
    space = changed(path, json.loads(json.dumps(written).replace("VALUE", value)))
    error = post(client, "", 403, space=space)["error"]
    assert "may lead to a file, a data set or code of the server" in error
    assert "fields that may here: none; submit it on the server's machine" in error
    assert "secret" not in error
    assert queue(database) == {}


@pytest.mark.long
def test_a_transfer_names_no_file(client: TestClient, database: str, tmp_path: Path) -> None:
    Path(tmp_path, "here.txt").write_text("secret\n" * 1000)
    for value in ("here.txt", str(tmp_path), "x" * 300):
        transfer = yaml.safe_dump({"study": "t", "transfer": {"tasks": {"x": value}}})
        error = post(client, "", 400, space=transfer)["error"]
        assert "no such file, and" in error
        assert "secret" not in error
        assert "others" in error  # not the whole catalogue


@pytest.mark.long
def test_a_resource_may_be_named_where_the_owner_allows_it(database: str, tmp_path: Path) -> None:
    """The field is read then, and what is wrong with it is told."""
    with client_of(database, resources=frozenset({"task.corpus.path"})) as client:
        for value in ("none.txt", ""):
            space = changed("task", {"language": {"corpus": {"file": {"path": value}}}})
            error = post(client, "", 400, space=space)["error"]
            assert f"task.corpus.path: {value!r} must be a file or a folder" in error
            assert str(tmp_path) not in error


def test_every_text_field_is_refused_or_leads_nowhere() -> None:
    """A file, and a text field that is not said to be plain, is refused in every plug-in; the plain ones are these."""
    plain = set[str]()
    with resources.only(()):
        for family in map(family_of, FAMILIES):
            for name in plugins.names(family):
                for key, rule in plugins.rules(plugins.load(family, name)).items():
                    if rule.kind == "text" and rule.plain:
                        plain.add(f"{name}.{key}")
                        assert rule.check("here", "/etc/passwd") == "/etc/passwd"
                    elif rule.kind in ("text", "file"):
                        with pytest.raises(resources.ResourceError):
                            rule.check("here", "x")
    names = {"shifts", "candidates", "box", "column", "ending", "temperatures"}
    assert {field.partition(".")[2] for field in plain} == names


@pytest.mark.long
def test_a_plug_in_runs_only_if_it_is_allowed(database: str, tmp_path: Path) -> None:
    """The plug-in leaves a file where it is imported."""
    source = (OUTSIDE / "lukewarm.py").read_text() + f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n"
    Path(tmp_path, "lukewarm.py").write_text(source)
    space = yaml.safe_load(changed("model.scorer", "lukewarm"))
    file, module = (yaml.safe_dump(space | {"plugins": [entry]}) for entry in ("./lukewarm.py", "lukewarm"))
    with client_of(database) as client:
        assert "'./lukewarm.py' is not allowed here (none)" in post(client, "", 403, space=file)["error"]
        assert "'lukewarm' is not allowed here (none)" in post(client, "", 403, space=module)["error"]
        assert "lukewarm" in post(client, "", 400, space=yaml.safe_dump(space))["error"]
    assert not Path(tmp_path, "ran").exists()
    assert queue(database) == {}
    with client_of(database, plugins=frozenset({"./lukewarm.py"})) as client:
        post(client, "", space=file)
    assert Path(tmp_path, "ran").exists()
    assert len(queue(database)) == 1


def test_a_body_that_is_refused_is_refused_in_one_line(database: str) -> None:
    with client_of(database) as client:
        answer = client.post("/api/queue", json={"space": "x", "a\nb": 1})
        assert (answer.status_code, answer.json()["error"]) == (422, "body.a b: Extra inputs are not permitted")
        answer = client.post("/api/queue", content=b'{"space": "x"}', headers={"Content-Type": "text/plain"})
        assert answer.json()["error"] == "the body must be a JSON object, sent as Content-Type: application/json"


def test_roles_and_owners(database: str) -> None:
    tokens = {name: make_token(database, name, role) for name, role in
              (("ada", "submit"), ("ben", "submit"), ("eve", "read"), ("root", "admin"))}  # fmt: skip
    with client_of(database, needs_token=True) as client:

        def ask(who: str, method: str, path: str, status: int, **body: Any) -> str:
            headers = {"Authorization": f"Bearer {tokens[who]}"}
            answer = client.request(method, f"/api{path}", json=body, headers=headers)
            assert answer.status_code == status, answer.text
            return str(answer.json() and answer.json().get("error"))

        assert "this needs submit" in ask("eve", "POST", "/queue", 403, space=TEXT)
        ask("ada", "POST", "/queue", 200, space=TEXT, owner="ben")
        assert queue(database)["tiny"].owner == "ada"
        for method, path, body in (
            ("POST", "/queue/tiny/pause", {}),
            ("POST", "/queue/tiny/cancel", {}),
            ("PUT", "/queue/tiny/priority", {"priority": -1}),
            ("POST", "/studies/tiny/stop", {}),
        ):
            assert "this needs submit" in ask("eve", method, path, 403, **body)
            assert "study tiny is ada's; to change it needs the role admin" in ask("ben", method, path, 403, **body)
        ask("ada", "POST", "/queue/tiny/cancel", 200)
        assert "is ada's" in ask("ben", "POST", "/queue", 403, space=TEXT)
        ask("root", "POST", "/queue/tiny/resume", 200)
        assert queue(database)["tiny"].owner == "ada"
        ask("ada", "GET", "/queue", 200)


GREEDY: dict[str, dict[str, Any]] = {
    "trials: 999,999,999": {"space": changed("search.trials", 999_999_999)},
    "steps: ": {"space": changed("training.steps", "1 + floor(uniform(0, 1000000000))")},
    "parameters: ": {"space": changed("model.width", 10**7)},
    "memory: one trial needs": {"space": changed("training.batch", 2**30)},
    "lanes: 2,000": {"space": TEXT, "max_lanes": 2000},
    "priority: 1": {"space": TEXT, "priority": 1},
    "weight: 2": {"space": TEXT, "weight": 2},
}


@pytest.mark.long
@pytest.mark.parametrize("message", GREEDY)
def test_who_submits_may_ask_for_so_much(database: str, message: str) -> None:
    token = make_token(database, "ada", "submit")
    with client_of(database, needs_token=True) as client:
        answer = client.post("/api/queue", json=GREEDY[message], headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403, answer.text
    assert message in answer.json()["error"]
    assert queue(database) == {}


WITHOUT_END = changed("task", {"language": {"corpus": {"stories": {"words": 10**9}}, "length": 8}})


@pytest.mark.long
def test_a_check_without_end_is_ended(database: str) -> None:
    """After so many seconds, of the clock or of the processor; the next submission is checked as if nothing were."""
    with client_of(database, check_seconds=1) as client:
        assert "to check" in post(client, "", 400, space=WITHOUT_END)["error"]
    with client_of(database) as client:
        post(client, "", space=TEXT)


def test_a_study_that_was_launched_is_stopped_by_an_admin_alone(database: str) -> None:
    tokens = {role: make_token(database, role, role) for role in ("submit", "admin")}
    with open_store(database) as store:
        from tests.support.databases import new_study

        new_study(store, "launched")
    with client_of(database, needs_token=True) as client:
        for role, status in (("submit", 403), ("admin", 202)):
            headers = {"Authorization": f"Bearer {tokens[role]}"}
            assert client.post("/api/studies/launched/stop", headers=headers).status_code == status
    assert list(Path.cwd().glob("graft.db.stop-*"))
    assert Terms().owner == ""


@pytest.mark.long
def test_the_service_answers_over_http_beside_its_studies(tmp_path: Path) -> None:
    """A space that is sent over HTTP is trained by the process that took it, and is read there."""
    search(tmp_path, "submit", SPACE, "--name", "first", "--trials", "4", "--set", "search.group=4")
    with running(tmp_path, "serve", "--workers", "1", "--pack", "8", "--http", "127.0.0.1:0") as process:
        address = next(line for line in process.stderr if "shows it at" in line).split()[-1]
        body = json.dumps({"space": changed("search", {**yaml.safe_load(TEXT)["search"], "trials": 4, "group": 4})})
        request = Request(f"{address}api/queue", body.encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=240) as answer:
            assert json.load(answer)["entry"]["state"] in ("waiting", "running", "done")
        studies = graft.connect(address)
        wait_until(lambda: studies["tiny"].status().progress.ended == studies["first"].status().progress.ended == 4)
        assert studies["tiny"].trials().height == 4
        answering = answering_process(process.pid)
        # Of the same session: Linux shares the processor out among sessions before it looks at priorities.
        assert (answering.nice(), os.getsid(answering.pid)) == (19, os.getsid(process.pid))
        process.terminate()
        assert process.wait(240) == 130
        wait_until(lambda: not answering.is_running())


class Asleep:
    """A process that has been given its socket, and does not answer yet."""

    made: list[Asleep]

    def __init__(self, target: object, args: tuple[Settings, socket.socket], name: str) -> None:
        self._given, self.name = args[1], name
        self._kept: socket.socket | None = None
        self.sentinel, self._end = os.pipe()
        self.made.append(self)

    def start(self) -> None:
        self._kept = self._given.dup()

    def terminate(self) -> None:
        assert self._kept
        self._kept.close()
        if self._end >= 0:
            os.close(self._end)
        self._end = -1

    def join(self, seconds: float) -> None:
        pass

    kill = terminate


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> list[Asleep]:
    """Return the processes that were to answer."""
    Asleep.made = []
    monkeypatch.setattr(multiprocessing.get_context("spawn"), "Process", Asleep)
    return Asleep.made


def test_a_process_that_does_not_answer_any_more_is_told(database: str, asleep: list[Asleep]) -> None:
    said = list[str]()
    with serving(Settings(database=database), "127.0.0.1", 0, said.append):
        asleep[0].terminate()
        wait_until(lambda: bool(said))
    assert said == ["the process of HTTP has ended, and nothing answers over HTTP any more; studies go on"]


@pytest.mark.usefixtures("asleep")
def test_who_asks_before_the_process_answers_waits(database: str) -> None:
    """The address is said at once: the connection is made then, and is answered when the process is there."""
    with (
        serving(Settings(database=database), "127.0.0.1", 0, print) as address,
        socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), timeout=240) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(address).port or 0), timeout=240)


@pytest.mark.slow
def test_what_answers_ends_with_a_service_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, "serve", "--workers", "1", "--pack", "8", "--http", "127.0.0.1:0") as process:
        address = next(line for line in process.stderr if "shows it at" in line).split()[-1]
        assert list(graft.connect(address)) == []
        answering = answering_process(process.pid)
        process.kill()
        wait_until(lambda: not answering.is_running())


def answering_process(service: int) -> psutil.Process:
    """Return the process that answers requests for a service."""
    [process] = [child for child in psutil.Process(service).children() if "spawn_main" in " ".join(child.cmdline())]
    return process


@pytest.mark.parametrize("address", ["8765", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "0.0.0.0:0"])
def test_where_a_service_cannot_answer_is_one_line(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{tmp_path}/graft.db"
    arguments = ("serve", "--storage", url, "--device", "cpu", "--until-empty", "--http", address)
    code, _, error = called(monkeypatch, capsys, *arguments)
    assert code == 2
    assert error.splitlines()[-1].startswith(("error: --http", "error: --host 0.0.0.0: other machines reach it"))
