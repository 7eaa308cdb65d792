"""Looks at interim results of a study with a claim, and changes of it that are refused: each is a row and a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import graft
from graft.files import OutputError
from graft.launching.enrolling import enrol
from graft.plugins.families import families
from graft.report.claims import read_claim_report
from graft.serving.submitting import submit
from graft.stored.claims import note_look
from graft.stored.studies import read_studies
from graft.web.app import create_app
from graft.web.settings import Settings
from spaces import parse
from spaces.errors import StorageError, StudyError
from spaces.space import Space
from storage import open_store
from storage.frames import open_reader
from tests.support.databases import raw
from tests.support.inside import called

TEXT = """
study: watched
task: {name: set_complement, length: 3, vocabulary: 6}
model: {name: minimal, width: 8, key_width: 4, value_width: 6}
optimizer: {name: adamw, learning_rate: 0.01}
averaging: none
training: {steps: 4, batch: 4, validate_every: 2, validation_batch: 8}
arms:
  softmax: {}
  average: {model.scorer: average}
seeds: 4
search: {objective: {minimize: tvd/raw}}
claim: {arm: average, difference: 0.05}
"""

MATRIX = ("report", "transfer", "watched", "--source=arm", "--baseline=softmax", "--pair=seed")


def space_of(text: str) -> Space:
    return parse(text, "watched.yaml", families())


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a database with a study whose trials have ended, and that counts as stopped before its end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watched.yaml").write_text(TEXT)
    url = f"sqlite:///{tmp_path}/graft.db"
    graft.launch(TEXT, database=url, run=graft.Run(executor="inline", workers=1, device="cpu", progress=False))
    raw(url, "UPDATE studies SET state = 'stopped'")
    return url


def events(url: str) -> list[Any]:
    return list(raw(url, "SELECT event, command, results FROM claim_events ORDER BY number"))[1:]


@pytest.mark.long
def test_more_seeds_after_a_look_are_refused_by_a_row_and_a_line(
    watched: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, capfd, "trials", "watched")[0] == 0
    Path("watched.yaml").write_text(TEXT.replace("seeds: 4", "seeds: 6"))
    status, _, error = called(monkeypatch, capfd, "launch", "watched.yaml", "--device", "cpu")
    assert (status, error.count("\n")) == (2, 1)
    assert "study 'watched' exists with another space (seeds: 4 -> 6); the attempt is recorded" in error
    assert events(watched) == [("looked", "trials", 8), ("refused", "seeds: 4 -> 6", 8)]
    with pytest.raises(StudyError, match="exists already with another space"):
        submit(watched, space_of(TEXT.replace("seeds: 4", "seeds: 6")))
    assert events(watched)[2:] == [("refused", "another space", 8)]
    with open_reader(watched) as reader:
        report = read_claim_report(reader, "watched")
    lines = [line for line in report.sentences() if line.startswith("a change was refused")]
    assert [line.partition("ended: ")[2] for line in lines] == ["seeds: 4 -> 6", "another space"]
    assert report.was_first  # the claim stayed what it was
    assert raw(watched, "SELECT count(*) FROM trials") == [(8,)]


def test_what_is_refused_of_a_study_without_a_claim_is_no_row(url: str) -> None:
    plain = TEXT.partition("claim:")[0]
    enrol(url, "watched", space_of(plain))
    with pytest.raises(StudyError) as caught:
        enrol(url, "watched", space_of(plain.replace("seeds: 4", "seeds: 6")))
    assert "recorded" not in str(caught.value)
    assert raw(url, "SELECT count(*) FROM claim_events") == [(0,)]


def test_a_submission_of_another_persons_study_writes_nothing(watched: str) -> None:
    from dataclasses import replace

    from graft.launching.enrolling import new_study
    from graft.web.security.access import make_token
    from storage import StoreRequest, Terms, request_queue

    make_token(watched, "eve", "submit")
    other = new_study("watched", space_of(TEXT.replace("seeds: 4", "seeds: 6")))
    request = replace(StoreRequest.of_study(other, Terms(owner="eve")), by="eve")
    with pytest.raises(StudyError, match="was launched, not submitted"):
        request_queue(watched, request)
    assert events(watched) == []


@pytest.mark.long
def test_queries_exports_replays_and_python_are_looks(
    watched: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ("query", "SELECT avg(objective) FROM Trials"),
        ("export", "watched", "-o", "trials.csv"),
        ("replay", "watched", "0"),
        (*MATRIX, "-o", "matrix.csv"),
    ):
        status, _, error = called(monkeypatch, capfd, *arguments)
        assert status == 0, error
        assert "note: watched has a claim and is not finished: this look at its results is recorded" in error
    database = graft.open(watched)
    study = database["watched"]
    database.query("SELECT value FROM metrics")
    study.trials()
    study.metrics()
    study.claims()
    study.architectures()
    study.replay(0)
    commands = [command for _, command, _ in events(watched)]
    assert commands == [
        "query", "export", "replay", "report transfer",
        "query of Python", "trials of Python", "metrics of Python", "claims of Python",
        "architectures of Python", "replay of Python",
    ]  # fmt: skip


def test_a_command_or_a_call_that_is_refused_is_no_look(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    enrol(url, "watched", space_of(TEXT))
    for arguments in (
        ("show", "watched", 99),
        ("trials", "watched", "--where", "bogus > 1"),
        ("trials", "watched", "--front"),
        ("compare", "watched:nobody", "watched:softmax"),
        ("report", "compare", "watched", "--baseline", "nobody"),
        ("replay", "watched", 99),
    ):
        status, _, error = called(monkeypatch, capfd, *arguments, "--storage", url)
        assert (status, "recorded" in error) == (2, False), error
    database = graft.open(url)
    study = database["watched"]
    for call in (
        lambda: study.show(99),
        lambda: study.front(),
        lambda: study.trials(where="bogus > 1"),
        lambda: study.replay(99),
        lambda: database.query("SELECT bogus FROM trials"),
    ):
        with pytest.raises(graft.GraftError):
            call()
    assert events(url) == []


def test_what_cannot_be_recorded_is_not_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    enrol(url, "watched", space_of(TEXT))
    monkeypatch.setattr("graft.stored.claims.record_look", fail)
    study = graft.open(url)["watched"]
    for call in (study.trials, lambda: graft.open(url).query("SELECT * FROM trials"), lambda: study.report("x.html")):
        with pytest.raises(StorageError, match="the disk is full"):
            call()
    assert not Path("x.html").exists()


@pytest.mark.long
def test_a_script_and_a_model_show_results_and_are_looks_unless_they_are_refused(
    watched: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("99", "--script", "t.py"), ("0", "--script", "graft.db"), ("-o", "graft.db")):
        assert called(monkeypatch, capfd, "export", "watched", *arguments)[0] == 2
    Path("tables.csv").touch()
    assert called(monkeypatch, capfd, "export", "watched", "-o", "tables.csv")[0] == 2
    study = graft.open(watched)["watched"]
    with pytest.raises(OutputError, match="not empty"):
        study.export_model(0, ".")
    assert events(watched) == []
    assert called(monkeypatch, capfd, "export", "watched", "0", "--script", "trial.py")[0] == 0
    monkeypatch.setattr("graft.exports.huggingface.exporting.finish_export", lambda begun, watch: None)
    assert called(monkeypatch, capfd, "export", "watched", "0", "--to", "huggingface", "-o", "model")[0] == 0
    study.export_model(0, "model")
    assert [command for _, command, _ in events(watched)] == ["export", "export", "export of Python"]


@pytest.mark.long
def test_pages_and_addresses_are_looks(watched: str) -> None:
    with TestClient(create_app(Settings(database=watched)), base_url="http://127.0.0.1:8765") as client:
        for path in ("/studies/watched", "/api/studies/watched/trials", "/compare?study=watched"):
            assert client.get(path).status_code == 200, path
        looked = events(watched)
        for path in ("/", "/studies/watched/live", "/studies/watched/workers", "/api/studies/watched", "/api/studies"):
            answer = client.get(path)
            assert answer.status_code == 200, path
        assert events(watched) == looked
    paths = ["/studies/watched", "/api/studies/watched/trials", "/compare"]
    assert looked == [("looked", f"page {path}", 8) for path in paths]


@pytest.mark.parametrize("name", ["live", "workers"])
def test_a_study_is_watched_whatever_its_name_is(url: str, name: str) -> None:
    enrol(url, name, space_of(TEXT.replace("study: watched", f"study: {name}")))
    with TestClient(create_app(Settings(database=url)), base_url="http://127.0.0.1:8765") as client:
        assert client.get(f"/studies/{name}").status_code == 200
        assert events(url) == [("looked", f"page /studies/{name}", 0)]
        for path in (f"/studies/{name}/workers", f"/api/studies/{name}", f"/api/studies/{name}/workers"):
            assert client.get(path).status_code == 200
    assert len(events(url)) == 1


def test_the_changing_part_of_a_page_is_a_look_unless_the_page_was_opened(url: str) -> None:
    enrol(url, "watched", space_of(TEXT))
    for _ in range(2):  # the second one as after a restart of the server
        with TestClient(create_app(Settings(database=url)), base_url="http://127.0.0.1:8765") as client:
            for _ in range(2):
                assert client.get("/studies/watched/live").status_code == 200
        assert events(url) == [("looked", "page /studies/watched", 0)]


def test_a_stream_of_events_is_one_look_or_part_of_that_at_the_page(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues after an event that it had, in a browser by a header; who had none opens another one."""
    enrol(url, "watched", space_of(TEXT))
    monkeypatch.setattr("graft.web.routes.events._LONGEST", 1)
    stream = "/api/studies/watched/events"
    looks: list[Any] = []
    for _ in range(2):  # the second one as after a restart of the server
        with TestClient(create_app(Settings(database=url)), base_url="http://127.0.0.1:8765") as client:
            assert client.get(stream, params={"after": "x"}).status_code == 400
            assert events(url) == looks
            assert client.get(stream, headers={"Last-Event-ID": "0"} if looks else {}).status_code == 200
            assert client.get(stream, headers={"Last-Event-ID": "0"}).status_code == 200
            assert client.get(stream, params={"after": "0"}).status_code == 200
            looks = [("looked", f"page {stream}", 0)]
            assert events(url) == looks
    with TestClient(create_app(Settings(database=url)), base_url="http://127.0.0.1:8765") as client:
        for path in (stream, "/studies/watched", stream, "/studies/watched/live", stream):
            assert client.get(path).status_code == 200
    assert events(url) == [*looks, *looks, ("looked", "page /studies/watched", 0)]


def test_a_stream_that_begins_after_an_event_that_nobody_got_is_a_look(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(url, "watched", space_of(TEXT))
    monkeypatch.setattr("graft.web.routes.events._LONGEST", 1)
    with TestClient(create_app(Settings(database=url)), base_url="http://127.0.0.1:8765") as client:
        for _ in range(2):
            assert client.get("/api/studies/watched/events?after=0").status_code == 200
    assert events(url) == [("looked", "page /api/studies/watched/events", 0)]


def test_a_page_that_is_open_beside_a_launch_is_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row waits for the end of the launch, and the server knows of it meanwhile."""
    monkeypatch.setattr("graft.web.routes.events._LONGEST", 1)
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "watched", space_of(TEXT))
    with (
        open_store(url),
        TestClient(create_app(Settings(database=url)), base_url="http://127.0.0.1:8765") as client,
    ):
        for path in (
            "/studies/watched",
            "/studies/watched/live",
            "/studies/watched/live",
            "/api/studies/watched/events",
        ):
            assert client.get(path).status_code == 200
        assert events(url) == []
    with open_store(url) as store:
        store.take_requests()
    assert events(url) == [("looked", "page /studies/watched", 0)]


def test_what_was_looked_at_by_is_printed_without_terminal_codes(
    url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    enrol(url, "watched", space_of(TEXT))
    with open_reader(url) as reader:
        note_look(reader, url, "watched", "page /studies/watched/figures/\x1b[2J")
    status, out, error = called(monkeypatch, capfd, "claim", "show", "watched", "--storage", url)
    assert status == 0, error
    assert "figures/ [2J" in out


def test_who_asks_how_far_a_study_is_sees_no_result(
    watched: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    best = raw(watched, "SELECT min(objective) FROM trials")[0][0]
    for arguments in (("status", "watched"), ("studies",), ("query", "SELECT name, state FROM studies")):
        status, out, error = called(monkeypatch, capfd, *arguments)
        assert (status, f"{best:.4f}" in out + error) == (0, False)
    assert graft.open(watched)["watched"].best is None
    assert events(watched) == []
    raw(watched, "UPDATE studies SET state = 'finished'")
    with open_reader(watched) as reader:
        assert read_studies(reader)["best"].to_list() == [best]


def test_a_launch_does_not_tell_the_best_of_a_study_with_a_claim() -> None:
    assert not space_of(TEXT).tells_best
    assert space_of(TEXT.partition("claim:")[0]).tells_best
