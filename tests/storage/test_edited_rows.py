"""Rows that were edited by hand: whatever they hold, a command or a page says one line, and never a traceback."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from graft.launching.checkpoints import Checkpoints
from graft.launching.placement import Placement
from graft.launching.planning.reading import read_space
from graft.serving.service import Service
from graft.serving.submitting import submit
from graft.stored.fingerprints import StoredFingerprint, follow
from graft.web.app import create_app
from graft.web.settings import Settings
from spaces.errors import StorageError, StudyError
from storage import open_store
from storage.checking import check
from storage.control.stored_trials import check_parent
from tests.support.databases import raw
from tests.support.db_commands import unchecked
from tests.support.inside import called
from tests.support.launches import SPACE, search
from tests.support.queue import ask

COMMANDS = (
    ("studies",),
    ("queue", "--all"),
    ("status", "tiny"),
    ("status", "--format", "prometheus"),
    ("trials", "tiny"),
    ("show", "tiny", "1"),
    ("report", "study", "tiny", "-o", "report.html"),
    ("export", "tiny", "-o", "trials.csv"),
    ("export", "tiny", "--to", "tensorboard", "runs"),
    ("replay", "tiny", "1"),
    ("retry", "tiny"),
    ("plugins",),
    ("token", "list"),
    ("resume", "tiny"),
    ("db", "check"),
    ("db", "backup", "copy.db"),
)
PAGES = (
    "/",
    "/queue",
    "/studies/tiny",
    "/studies/tiny/live",
    "/studies/tiny/trials/1",
    "/studies/tiny/workers",
    "/api/studies",
    "/api/studies/tiny",
    "/api/studies/tiny/trials",
    "/api/studies/tiny/trials/1",
    "/api/studies/tiny/metrics",
    "/api/studies/tiny/workers",
    "/api/studies/tiny/figures/progress",
    "/api/studies/tiny/export/trials.json",
    "/api/queue",
    "/api/prometheus",
)
EDITS: Mapping[str, str] = {
    "a study's state": "UPDATE studies SET state = 'sleeping'",
    "a study's direction": "UPDATE studies SET direction = 'up'",
    "a study's objective": "UPDATE studies SET objective = 'nonsense'",
    "a study's space": "UPDATE studies SET space = '{: ['",
    "a study's other space": "UPDATE studies SET space = 'study: tiny'",
    "a study's trials": "UPDATE studies SET trials = -4",
    "a study's trials as text": "UPDATE studies SET trials = 'many'",
    "a study's seed": "UPDATE studies SET seed = 'x'",
    "a study's steps": "UPDATE studies SET steps = -100",
    "a study's tags": "UPDATE studies SET tags = '{'",
    "a study's tags as a number": "UPDATE studies SET tags = '7'",
    "a study's time": "UPDATE studies SET created_at = 'yesterday'",
    "a study's fence": "UPDATE studies SET fence = -1",
    "a study's numerics": "UPDATE studies SET numerics = 'old'",
    "a study's second objective": "UPDATE studies SET second_objective = 'nonsense'",
    "a study's name": "UPDATE studies SET name = ''",
    "a study's checkpoints": "UPDATE studies SET checkpoints = 7, checkpoint_folder = '../..'",
    "a trial's state": "UPDATE trials SET state = 'lost' WHERE number = 1",
    "a trial's configuration": "UPDATE trials SET config = '{' WHERE number = 1",
    "a trial's configuration as a list": "UPDATE trials SET config = '[]' WHERE number = 1",
    "a trial's empty configuration": "UPDATE trials SET config = '{}' WHERE number = 1",
    "a trial's params": "UPDATE trials SET params = 'nonsense' WHERE number = 1",
    "a trial's params as a list": "UPDATE trials SET params = '[1]' WHERE number = 1",
    "a trial's nested params": """UPDATE trials SET params = '{"a": {"b": 1}}' WHERE number = 1""",
    "a trial's draws": "UPDATE trials SET draws = 'null' WHERE number = 1",
    "a trial's draws as text": """UPDATE trials SET draws = '{"optimizer.learning_rate": "x"}' WHERE number = 1""",
    "a trial's constraints": "UPDATE trials SET constraints = '[' WHERE number = 1",
    "a trial's objective": "UPDATE trials SET objective = 'good' WHERE number = 1",
    "a trial's infinite objective": "UPDATE trials SET objective = 9e999 WHERE number = 1",
    "a trial's steps": "UPDATE trials SET steps = -5 WHERE number = 1",
    "a trial's number": "UPDATE trials SET number = -1 WHERE number = 1",
    "a trial's seed": "UPDATE trials SET seed = -1 WHERE number = 1",
    "a trial's times": "UPDATE trials SET started_at = 'x', finished_at = '2026-99-99 00:00:00.000000'",
    "a trial's missing times": "UPDATE trials SET started_at = NULL, finished_at = NULL, worker = NULL",
    "a trial's parent": "UPDATE trials SET parent = 999, parent_step = -1 WHERE number = 1",
    "a trial that is its own parent": "UPDATE trials SET parent = 1, parent_step = 1 WHERE number = 1",
    "a trial's fingerprint": "UPDATE trials SET fingerprint = 77 WHERE number = 1",
    "a trial that is queued again": "UPDATE trials SET state = 'queued', objective = NULL WHERE number = 1",
    "a metric's value": "UPDATE metrics SET value = 'high'",
    "a metric's step": "UPDATE metrics SET step = 'late' WHERE name = 'loss' AND step = 10",
    "a metric's negative step": "UPDATE metrics SET step = -step",
    "a metric's name": "UPDATE metrics SET name = '', variant = 'cooked' WHERE name = 'loss'",
    "a worker's time": "UPDATE workers SET heartbeat_at = 'never'",
    "a worker's state": "UPDATE workers SET state = 'away', device = '', steps = -1",
    "a fingerprint's sources": "UPDATE fingerprints SET sources = '7'",
    "a fingerprint's previous": "UPDATE fingerprints SET previous = number",
    "an entry's state": "UPDATE submissions SET state = 'odd'",
    "an entry's weight": "UPDATE submissions SET weight = -1, state = 'waiting'",
    "an entry's weight of nothing": "UPDATE submissions SET weight = 0, state = 'waiting'",
    "an entry's priority": "UPDATE submissions SET priority = 'high', state = 'waiting'",
    "an entry's lanes": "UPDATE submissions SET max_lanes = -3, lanes = 'x', state = 'waiting'",
    "an entry's time": "UPDATE submissions SET submitted_at = 'now', state = 'waiting'",
    "a token's role": "UPDATE tokens SET role = 'king'",
    "a token's time": "UPDATE tokens SET created_at = 5",
}
"""What was edited -> how."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with a study that ended and is in the queue, a token, and nothing wrong."""
    folder = tmp_path_factory.mktemp("trained")
    small = (
        "--trials",
        "6",
        "--set",
        "search.group=6",
        "--set",
        "training.steps=20",
        "--set",
        "training.validate_every=10",
    )
    search(folder, "submit", SPACE, *small)
    search(folder, "serve", "--workers", "1", "--pack", "8", "--until-empty")
    search(folder, "token", "make", "reader", "--role", "read")
    return folder / "graft.db"


@pytest.fixture
def edited(request: pytest.FixtureRequest, trained: Path, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a copy with one edit."""
    path = tmp_path / "graft.db"
    shutil.copy(trained, path)
    unchecked(f"sqlite:///{path}", EDITS[request.param])
    before = os.getcwd()
    os.chdir(tmp_path)
    yield f"sqlite:///{path}"
    os.chdir(before)


@pytest.mark.sampled(1, 20)
@pytest.mark.parametrize("edited", EDITS, indirect=True, ids=lambda name: name.replace(" ", "-"))
def test_a_command_over_an_edited_row_says_one_line(
    edited: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    failed = list[str]()
    for command in COMMANDS:
        try:
            status, _, error = called(monkeypatch, capfd, *command, "--storage", edited)
        except Exception as raised:
            failed.append(f"{command}: {type(raised).__name__}: {raised}")
            continue
        if status not in (0, 1, 2) or "Traceback" in error or (status == 2 and error.count("error: ") != 1):
            failed.append(f"{command}: {status}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.sampled(1, 20)
@pytest.mark.parametrize("edited", EDITS, indirect=True, ids=lambda name: name.replace(" ", "-"))
def test_a_page_over_an_edited_row_is_there_or_a_refusal_in_one_line(edited: str, tmp_path: Path):
    failed = list[str]()
    with TestClient(create_app(Settings(database=edited)), base_url="http://127.0.0.1:8765") as client:  # type: ignore[arg-type]
        for page in PAGES:
            try:
                answer = client.get(page)
            except Exception as raised:
                failed.append(f"{page}: {type(raised).__name__}: {raised}")
                continue
            if answer.status_code >= 500 or str(tmp_path) in answer.text:
                failed.append(f"{page}: {answer.status_code}: {answer.text[:300]}")
    assert not failed, "\n".join(failed)


def test_what_is_told_names_the_row(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    shutil.copy(trained, tmp_path / "graft.db")
    url = f"sqlite:///{tmp_path}/graft.db"
    unchecked(url, "UPDATE trials SET params = 'nonsense' WHERE number = 1")
    status, _, error = called(monkeypatch, capfd, "trials", "tiny", "--format", "json", "--storage", url)
    assert status == 2
    assert error.strip().endswith(
        "a row is not what Graft writes: params in the row of trials with id 1000000001 is 'nonsense'; it must be JSON"
        "; `search db check` lists all such rows"
    )


SMALL = {"search.trials": "6", "search.group": "6", "training.steps": "20", "training.validate_every": "10"}
OF_STUDY = {"studies": "id = 1", "metrics": "trial_id < 2000000000", "tokens": "true"}
"""Table -> the rows that are of the first study; of other tables the column study_id says it."""
REASONS: Mapping[str, str] = {
    "a study's trials as text": "trials in the row of studies with id 1 is 'many'; it must be a whole number, 0 or",
    "an entry's weight": "weight in the row of submissions with study_id 1 is -1.0; it must be a finite number above 0",
    "an entry's weight of nothing": "weight in the row of submissions with study_id 1 is 0.0; it must be a finite",
    "an entry's priority": "priority in the row of submissions with study_id 1 is 'high'; it must be a whole number",
    "an entry's lanes": "max_lanes in the row of submissions with study_id 1 is -3; it must be a whole number, 1 or",
    "an entry's time": "submitted_at in the row of submissions with study_id 1 is 'now'; it must be a time such as",
}
"""What was edited -> why the service does not run the study; other edits are met by the study itself, or never."""


def serve(url: str) -> list[str]:
    """Return what a service says that runs what is in the queue."""
    said = list[str]()
    placement = Placement(executor="inline", device="cpu", workers=1, width=8)
    with Service(url, placement=placement, checkpoints=Checkpoints(url="none", seconds=60), say=said.append) as service:
        service.run(until_empty=True)
    return said


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a database with two studies in the queue that have a trial left to train."""
    path = tmp_path_factory.mktemp("interrupted") / "graft.db"
    url = f"sqlite:///{path}"
    for name in ("edited", "other"):
        submit(url, read_space(SPACE, SMALL), study=name)
    serve(url)
    unchecked(
        url,
        "DELETE FROM metrics WHERE trial_id % 1000000000 = 5",
        "DELETE FROM trials WHERE number = 5",
        "UPDATE studies SET state = 'stopped', steps = (SELECT sum(steps) FROM trials WHERE study_id = studies.id)",
        "UPDATE submissions SET state = 'waiting', ended_at = NULL",
    )
    assert not check(url).faults
    return path


def served(interrupted: Path, folder: Path, edit: str) -> dict[str, tuple[str, str]]:
    """Study -> its state and reason in the queue, after a service has run what it can."""
    shutil.copy(interrupted, folder / "graft.db")
    url = f"sqlite:///{folder}/graft.db"
    unchecked(url, edit)
    said = serve(url)
    entries = raw(url, "SELECT name, submissions.state, reason FROM submissions JOIN studies ON id = study_id")
    for name, state, reason in entries:
        assert "\n" not in reason
        assert (f"{name}: failed: {reason}" in said) == (state == "failed")
    return {name: (state, reason) for name, state, reason in entries}


@pytest.mark.sampled(1, 20)
@pytest.mark.parametrize("edit", EDITS, ids=lambda name: name.replace(" ", "-"))
def test_a_service_runs_the_other_studies(interrupted: Path, tmp_path: Path, edit: str) -> None:
    table, joint = EDITS[edit].split()[1], "AND" if "WHERE" in EDITS[edit] else "WHERE"
    states = served(interrupted, tmp_path, f"{EDITS[edit]} {joint} {OF_STUDY.get(table, 'study_id = 1')}")
    assert states["other"] == ("done", "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("edit", REASONS)
def test_an_entry_of_the_queue_that_was_edited_fails_with_its_fault(
    interrupted: Path, tmp_path: Path, edit: str
) -> None:
    joint = "AND" if "WHERE" in EDITS[edit] else "WHERE"
    key = OF_STUDY.get(EDITS[edit].split()[1], "study_id = 1")
    states = served(interrupted, tmp_path, f"{EDITS[edit]} {joint} {key}")
    assert states["other"] == ("done", "")
    assert states["edited"][0] == "failed"
    assert states["edited"][1].startswith(REASONS[edit])


def test_a_stored_source_that_was_edited_fails_its_study_alone(interrupted: Path, tmp_path: Path) -> None:
    source = "INSERT INTO sources VALUES (1, 0, 'my_scorer', 'my_scorer.py', false, 'not its own', 'x = 1', '[]', NULL)"
    states = served(interrupted, tmp_path, source)
    assert states["other"] == ("done", "")
    reason = "the stored source of my_scorer.py has another SHA-256 than was stored with it"
    assert states["edited"] == ("failed", reason)


def test_what_is_asked_of_an_edited_entry_is_refused_and_of_others_done(interrupted: Path, tmp_path: Path) -> None:
    shutil.copy(interrupted, tmp_path / "graft.db")
    url = f"sqlite:///{tmp_path}/graft.db"
    unchecked(url, "UPDATE submissions SET submitted_at = 'now' WHERE study_id = 1")
    with open_store(url) as store:  # as a service has it: what others ask comes by its mailbox
        assert ask(store, "pause", "other").state == "paused"
        with pytest.raises(StudyError, match=r"study 'edited': submitted_at in the row of submissions .* is 'now'"):
            ask(store, "pause", "edited")
        sound, [strange] = store.queue.sound_entries()
    assert [entry.study for entry in sound] == ["other"]
    assert (strange.study, strange.is_to_run) == ("edited", True)


def test_of_a_column_of_many_strange_values_some_are_named_and_the_rest_counted(
    interrupted: Path, tmp_path: Path
) -> None:
    shutil.copy(interrupted, tmp_path / "graft.db")
    url = f"sqlite:///{tmp_path}/graft.db"
    unchecked(url, "UPDATE trials SET draws = '[]', error = x'00' WHERE id % 1000000000 <> 3")
    faults = check(url).faults
    assert sum(fault.startswith("draws in the row of trials") for fault in faults) == 5
    assert "draws in 3 more rows of trials is no such value" in faults
    assert "error in 3 more rows of trials is no such value" in faults
    assert not any("id 1000000003 " in fault for fault in faults)


def test_a_database_that_graft_wrote_has_no_strange_value(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    status, out, _ = called(monkeypatch, capfd, "db", "check", "--storage", f"sqlite:///{trained}")
    assert (status, "broken" in out) == (0, False), out


@pytest.mark.parametrize("parent", [1, 2])
def test_a_lineage_in_a_circle_is_refused(parent: int):
    check_parent(1, 0)
    with pytest.raises(StorageError, match=f"trial 1 goes on from trial {parent}, no earlier one"):
        check_parent(1, parent)


@pytest.mark.parametrize("previous", [1, 7])
def test_fingerprints_in_a_circle_are_refused(previous: int):
    first = StoredFingerprint(number=0, sources={})
    assert follow([first, StoredFingerprint(number=1, previous=0, sources={})], 1)[-1] == first
    with pytest.raises(StorageError, match=f"fingerprint {previous} is no earlier one"):
        follow([first, StoredFingerprint(number=1, previous=previous, sources={})], 1)
