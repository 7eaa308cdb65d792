"""The server: what programs read over HTTP is what the database has, and an event tells what changes in it."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from fastapi.testclient import TestClient
from polars.testing import assert_frame_equal

import graft
from graft.stored.export import export_study, metrics_file
from graft.web.routes.events import read_cursor
from graft.web.security.refusals import RefusalError
from graft.web.settings import Settings
from spaces.errors import StudyError
from storage import open_store
from storage.frames import open_reader
from tests.support.inside import called
from tests.support.servers import serving
from tests.support.studies import ENDED, RUNNING, running, write_study
from tests.support.web import address, client_of, database, events

__all__ = ["address", "database"]


@pytest.fixture
def client(database: str) -> Iterator[TestClient]:
    with client_of(database) as client:
        yield client


def read(client: TestClient, path: str, status: int = 200, **query: Any) -> Any:
    answer = client.get(f"/api{path}", params=query)
    assert answer.status_code == status, answer.text
    return answer.json()


def pages(client: TestClient, path: str, rows: str, **query: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of page after page."""
    cursor: int | None = -1
    while cursor is not None:
        page = read(client, path, cursor=cursor, **query)
        yield page[rows]
        cursor = page["next"]


def test_studies_and_their_status(client: TestClient, database: str) -> None:
    local = graft.open(database)
    [row] = read(client, "/studies")
    [expected] = local.studies().to_dicts()
    assert {name: row[name] for name in ("name", "state", "ended", "trials", "objective", "best", "best_number")} == {
        name: expected[name] for name in ("name", "state", "ended", "trials", "objective", "best", "best_number")
    }
    assert row["tags"] == []
    status = read(client, "/studies/demo")["status"]
    assert status["running"] == list(RUNNING)
    assert status["progress"]["counts"] == dict(local["demo"].status().progress.counts)
    assert read(client, "/studies", tag="none") == []


@pytest.mark.parametrize("limit", [1, 3, 16, 20, 1000])
def test_pages_of_trials_are_all_trials_once(client: TestClient, limit: int) -> None:
    batches = list(pages(client, "/studies/demo/trials", "trials", limit=limit))
    assert [row["number"] for page in batches for row in page] == list(range(20))
    assert all(len(page) == limit for page in batches[:-1])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("where", "sort"),
    [
        ("optimizer.learning_rate > 0.0055", None),
        ("state = 'finished' AND NOT number IN (1, 2)", "objective DESC"),
        (None, "params.optimizer.learning_rate DESC, number"),
        ("error LIKE '%memory%' OR objective BETWEEN 0.1 AND 0.15", "steps DESC NULLS LAST"),
        ("params.model.scorer = 'ssa'", "model.scorer.n"),
    ],
)
def test_conditions_and_orders_are_those_of_the_commands(
    url: str, where: str | None, sort: str | None, tmp_path: Path
) -> None:
    with running(url), client_of(url) as client:
        query = {name: text for name, text in (("where", where), ("sort", sort)) if text}
        numbers = [
            row["number"] for page in pages(client, "/studies/demo/trials", "trials", limit=3, **query) for row in page
        ]
    expected = graft.open(url)["demo"].trials(where, sort)
    assert numbers == expected["number"].to_list()
    assert numbers


def test_a_trial_is_whole(client: TestClient, database: str) -> None:
    answer = read(client, "/studies/demo/trials/3")
    local = graft.open(database)["demo"].show(3)
    assert answer["config"] == local.config
    assert answer["draws"] == local.draws
    assert answer["trial"]["params"] == local.params
    assert answer["metrics"] == local.metrics.to_dicts()
    assert answer["replay"] == "search replay demo 3"


def test_pages_of_metrics_are_all_metrics_once(client: TestClient, database: str) -> None:
    rows = [row for page in pages(client, "/studies/demo/metrics", "metrics", trials=7) for row in page]
    assert rows == graft.open(database)["demo"].metrics().to_dicts()
    distances = [row for page in pages(client, "/studies/demo/metrics", "metrics", name="tvd") for row in page]
    assert distances == graft.open(database)["demo"].metrics(["tvd"]).to_dicts()
    assert read(client, "/studies/demo/metrics", cursor=19) == {"metrics": [], "next": None}


def test_workers(client: TestClient) -> None:
    [worker] = read(client, "/studies/demo/workers")
    assert (worker["id"], worker["host"], worker["state"]) == ("worker-1", "here", "running")


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_an_export_is_that_of_the_command(client: TestClient, database: str, form: str, tmp_path: Path) -> None:
    output = tmp_path / f"demo.{form}"
    with open_reader(database) as reader:
        export_study(reader, "demo", output)
    for table, path in (("trials", output), ("metrics", metrics_file(output))):
        answer = client.get(f"/api/studies/demo/export/{table}.{form}")
        assert answer.headers["content-disposition"] == f'attachment; filename="demo.{table}.{form}"'
        assert answer.content == path.read_bytes()


def test_a_page_of_addresses_without_a_network(client: TestClient) -> None:
    schema = read(client, "/openapi.json")
    assert schema["paths"].keys() > {"/api/studies", "/api/studies/{study}/trials", "/api/studies/{study}/events"}
    assert schema["components"]["schemas"]["TrialRow"]["properties"]["params"]["type"] == "object"


# ------------------------------------------------------------------------------------------------- the same `Study`


@pytest.mark.long
def test_a_remote_study_reads_as_a_local_one(address: str, database: str) -> None:
    remote, local = graft.connect(address)["demo"], graft.open(database)["demo"]
    assert list(graft.connect(address)) == ["demo"]
    for studies in (graft.connect(address), graft.open(database)):
        found = studies.get("demo")
        assert found
        assert (found.name, studies.get("none"), studies.get("none", 1)) == ("demo", None, 1)
    assert_frame_equal(graft.connect(address).studies(), graft.open(database).studies())
    for arguments in ({}, {"top": 3}, {"where": "number > 3", "sort": "objective", "top": 5}):
        assert_frame_equal(remote.trials(**arguments), local.trials(**arguments))
    assert_frame_equal(remote.metrics(), local.metrics())
    assert_frame_equal(remote.metrics(["tvd"]), local.metrics(["tvd"]))
    assert_frame_equal(remote.architectures(), local.architectures())
    assert remote.status().progress == local.status().progress
    assert remote.status().workers == local.status().workers
    assert remote.best
    assert local.best
    assert {**vars(remote.best), "metrics": None} == {**vars(local.best), "metrics": None}
    assert_frame_equal(remote.best.metrics, local.best.metrics)
    assert remote.best.feasible
    assert repr(remote) == repr(local)


def test_what_a_remote_study_does_not_have_is_said(address: str) -> None:
    remote = graft.connect(address)["demo"]
    with pytest.raises(StudyError, match="replay is not there over HTTP, only trials, metrics"):
        remote.replay(3)
    with pytest.raises(AttributeError):
        _ = remote.nothing
    with pytest.raises(StudyError, match="study 'none' does not exist; there are demo"):
        graft.connect(address)["none"]
    with pytest.raises(StudyError, match="has no trial 99; the highest is 19"):
        remote.show(99)
    with pytest.raises(StudyError, match="has one objective"):
        remote.front()
    with pytest.raises(StudyError, match="'stat' is no column of trials, did you mean 'state'"):
        remote.trials("stat = 1")
    with pytest.raises(StudyError, match="figure"):
        remote.figure("dropuot")


@pytest.mark.parametrize("body", [b"<html>", b"{", b"{}", b'["a"]', b'[{"id": 1}]', b"3", b"\xff"])
def test_a_server_of_another_program_is_one_line(body: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *values: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(graft.GraftError, match=re.escape(f"{url} is no server of Graft's")):
            graft.connect(url)


@pytest.mark.parametrize("token", ["graft_ü", "graft_€", "graft_x\n", "graft_x\r\nHost: x"])
def test_a_token_that_no_header_can_have_is_one_line_without_it(token: str) -> None:
    with pytest.raises(graft.GraftError, match="the token must be printable ASCII on one line") as caught:
        graft.connect("http://127.0.0.1:1", token)
    assert "graft_" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "graft.db", "ftp://x/", "http://[::1", "http://x:99999", "http://a..b", "http://:1"]
)
def test_no_server_is_one_line(url: str) -> None:
    with pytest.raises(graft.GraftError, match=r"does not answer|must be an address") as caught:
        graft.connect(url)
    assert "\n" not in str(caught.value)


# ----------------------------------------------------------------------------------------------------------- events


def test_events_tell_what_changes_from_a_cursor_on(url: str) -> None:
    with open_store(url) as store:
        study = write_study(store)
        with serving(Settings(database=url)) as address:
            following = events(address)
            first, change = next(following)
            assert change["counts"] == {"finished": 13, "diverged": 1, "failed": 1, "pruned": 1, "running": 4}
            assert change["ended"] == []
            study.end([_ending(16)])
            second, change = next(following)
            assert [trial["number"] for trial in change["ended"]] == [16]
            assert change["counts"]["running"] == 3
            following.close()
            study.end([_ending(17), _ending(18)])
            third, change = next(events(address, second))
            assert [trial["number"] for trial in change["ended"]] == [17, 18]
            assert [trial["number"] for trial in next(events(address, first))[1]["ended"]] == [16, 17, 18]
            assert len({first, second, third}) == 3


def _ending(number: int) -> Any:
    from spaces.records import TrialResult

    return TrialResult(number=number, fence=1, state="finished", objective=0.5 + number)


@pytest.mark.parametrize("text", ["-", "1-2", "-1", "x", "1.5", "1' OR 1=1", "9" * 18, "²"])
def test_a_cursor_is_a_number(text: str) -> None:
    with pytest.raises(RefusalError, match="is no cursor"):
        read_cursor(text, None)


def test_a_cursor_is_read_as_it_is_written() -> None:
    assert read_cursor("17", None) == read_cursor("3", "17") == 17
    assert read_cursor(None, None) is None
    assert ENDED.stop == RUNNING.start


def test_no_more_streams_than_there_may_be(database: str) -> None:
    with client_of(database, streams=0) as client:
        assert read(client, "/studies/demo/events", 503)["error"].startswith("0 event streams are open")


# --------------------------------------------------------------------------------------------------------- commands


def test_the_commands(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SEARCH_STORAGE", f"{tmp_path}/graft.db")
    with running(f"sqlite:///{tmp_path}/graft.db"):
        pass

    def search(*arguments: str, status: int = 0) -> tuple[str, str]:
        code, out, error = called(monkeypatch, capsys, *arguments)
        assert code == status, error
        return out, error

    _, error = search("dashboard", "--host", "0.0.0.0", status=2)
    assert "needs a token; make one: search token make NAME --role read" in error
    _, error = search("dashboard", "--host", "example.org", status=2)
    assert "--host example.org: must be an IP address" in error
    token, _ = search("token", "make", "lab", "--role", "submit")
    assert token.startswith("graft_")
    listed, _ = search("token", "list", "--format", "csv")
    assert listed.splitlines()[1].startswith("lab,submit,")
    assert token.strip() not in Path(f"{tmp_path}/graft.db").read_bytes().decode(errors="replace")
    for arguments, reason in [
        (("make", "lab"), "token 'lab' exists already"),
        (("make", "a b"), "'a b' must be a word"),
        (("make", "c", "--role", "root"), "'root' is no role; choose one of read, submit, admin"),
        (("revoke", "lap"), "'lap' is no token, did you mean 'lab'"),
    ]:
        _, error = search("token", *arguments, status=2)
        assert reason in error
        assert len(error.splitlines()) == 1
    search("token", "revoke", "lab")
    _, error = search("dashboard", "--tokens", status=2)
    assert "--tokens, so it needs a token" in error


def test_a_port_that_is_taken_is_one_line(
    database: str, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.nice", lambda more: None)
    port = address.rpartition(":")[2]
    code, _, error = called(monkeypatch, capsys, "dashboard", "--storage", database, "--port", port)
    assert code == 2
    assert error.startswith(f"error: --host 127.0.0.1 --port {port}: ")
    assert len(error.splitlines()) == 1


def test_frames_keep_their_types(client: TestClient, database: str) -> None:
    answer = client.get("/api/studies/demo/frames/trials", params={"top": 2})
    assert_frame_equal(pl.read_parquet(io.BytesIO(answer.content)), graft.open(database)["demo"].trials(top=2))
