"""`search submit --url`: a space goes over HTTP to the queue of a server, as it would go into a database here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graft.web.security.access import make_token
from graft.web.settings import Settings
from storage import open_store
from storage.frames import open_reader
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.servers import serving

Submit = Callable[..., tuple[int, str]]
SET = ("--set", "model.width=12", "--trials", "32", "--steps", "40")


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path}/server.db"
    open_store(url).close()
    return url


@pytest.fixture
def address(database: str) -> Iterator[str]:
    with serving(Settings(database=database, check_seconds=240)) as url:
        yield url


@pytest.fixture
def submit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Call the command; its exit status and its last line on stderr."""

    def call(*arguments: str) -> tuple[int, str]:
        code, _, error = called(monkeypatch, capsys, "submit", SPACE, *arguments)
        assert "Traceback" not in error
        return code, error.splitlines()[-1]

    return call


@pytest.mark.long
def test_the_study_is_the_one_of_a_submission_into_a_database(address: str, database: str, submit: Submit):
    terms = ("--priority", "3", "--weight", "2", "--max-lanes", "5", "--owner", "ann")
    assert submit("--url", address, "--name", "far", *SET, *terms) == (0, "far: waiting, priority 3, 32 trials")
    assert submit("--storage", "here.db", "--name", "far", *SET, *terms) == (0, "far: waiting, priority 3, 32 trials")
    entries = []
    for url in (database, "sqlite:///here.db"):
        with open_reader(url) as reader:
            [entry] = reader.queue()
            row = reader.study("far").row
            kept = ("space_hash", "objective", "seed", "trials", "numerics")
            entries.append((entry.owner, entry.priority, entry.weight, entry.max_lanes, [row[name] for name in kept]))
    assert entries[0] == entries[1]


@pytest.mark.long
def test_a_token_comes_from_the_environment_or_by_an_option(
    database: str, submit: Submit, monkeypatch: pytest.MonkeyPatch
):
    tokens = {role: make_token(database, role, role) for role in ("read", "submit")}
    with serving(Settings(database=database, needs_token=True, check_seconds=240)) as address:
        code, line = submit("--url", address)
        assert (code, line.startswith("error: ")) == (2, True)
        assert "token" in line
        assert submit("--url", address, "--token", tokens["read"])[1].endswith("this needs submit")
        monkeypatch.setenv("SEARCH_TOKEN", tokens["submit"])
        assert submit("--url", address) == (0, "tiny: waiting, priority 0, 48 trials")
    with open_reader(database) as reader:
        assert [entry.owner for entry in reader.queue()] == ["submit"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--url", "here"), "error: here: must be an address such as http://127.0.0.1:8765"),
        (("--url", "http://[::1"), "error: http://[::1: must be an address such as http://127.0.0.1:8765"),
        (("--url", "http://127.0.0.1:9"), "error: http://127.0.0.1:9 does not answer: "),
        (("--url", "{address}", "--storage", "x.db"), "error: --storage: leave it out with --url"),
        (("--url", "{address}", "--plugins", "./x.py"), "error: --plugins: over HTTP a space names its plug-ins in"),
        (("--token", "x"), "error: --token needs --url"),
        (("--url", "{address}", "--name", "a b"), "error: a study's name: 'a b' must be a word"),
    ],
)
def test_what_cannot_be_is_one_line(address: str, database: str, submit: Submit, arguments: tuple[str, ...], line: str):
    code, said = submit(*(argument.format(address=address) for argument in arguments))
    assert (code, said[: len(line)]) == (2, line)
    with open_reader(database) as reader:
        assert reader.queue() == []


@pytest.mark.long
@pytest.mark.parametrize("far", [True, False])
def test_a_search_that_is_submitted_again_is_one_study_and_told(address: str, database: str, submit: Submit, far: bool):
    door = ("--url", address) if far else ("--storage", database)
    assert submit(*door) == (0, "tiny: waiting, priority 0, 48 trials")
    with open_reader(database) as reader:
        [before] = reader.queue()
    since = f"since {before.submitted_at:%Y-%m-%d %H:%M:%S} UTC; nothing has changed"
    for terms in ((), ("--priority", "4")):
        assert submit(*door, *terms) == (0, f"tiny was in the queue already, {since}")
    with open_reader(database) as reader:
        assert reader.queue() == [before]
    assert submit(*door, "--seed", "5") == (
        2,
        "error: study 'tiny' exists already with another space; submit this one under another name (--name)",
    )
    assert submit(*door, "--owner", "bo") == (
        2,
        f"error: study 'tiny' is in the queue already (waiting), of {before.owner}; submit another name",
    )
