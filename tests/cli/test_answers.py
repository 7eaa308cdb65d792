"""Answers as JSON: each command's has the shape that its schema in docs/schemas says, whatever the conclusion is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import graft
from graft.machine import doctor
from graft.machine.doctor import Rate
from graft.stored.waiting import LOOK_SECONDS, WaitResult, wait_for_study
from spaces.errors import StudyError
from storage import NewStudy, QueueEntry, Terms, open_reader, open_store
from tests.support import studies
from tests.support.answers import EXPERIMENT
from tests.support.databases import controlled_with_store, heard, raw
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.queue import ask, submit

SCHEMAS = Path(graft.__file__).parents[1] / "docs" / "schemas"

Search = Callable[..., Any]


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Search:
    """Run the program in an empty folder; what it prints, as JSON values of the shape of the schema."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)

    def run(schema: str, *arguments: str, status: int = 0) -> Any:
        code, out, error = called(monkeypatch, capfd, *arguments, "--format", "json")
        assert code == status, error
        answer = json.loads(out)
        validator(schema).validate(answer)
        return answer

    return run


def validator(name: str) -> Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_every_schema_refuses_another_shape() -> None:
    for path in SCHEMAS.iterdir():
        schema = validator(path.stem)
        assert not schema.is_valid({})
        assert not schema.is_valid({"format": 1, "more": 0})


def test_a_check_of_spaces_tells_the_good_from_the_bad(search: Search) -> None:
    good, bad = search("space-check", "space", "check", SPACE, "nowhere.yaml", status=2)["spaces"]
    assert (good["good"], good["study"], good["trials"], good["error"]) == (True, "tiny", 48, None)
    assert (bad["good"], bad["study"]) == (False, None)
    assert bad["error"].startswith("nowhere.yaml: ")
    assert search("space-check", "space", "check", SPACE)["spaces"] == [good]


def test_a_check_of_a_database_tells_the_good_from_the_broken(search: Search, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    with studies.running(url):
        good = search("db-check", "db", "check")
    assert (good["good"], good["faults"]) == (True, [])
    raw(url, "UPDATE trials SET finished_at = NULL WHERE number = 0")
    broken = search("db-check", "db", "check", status=1)
    assert not broken["good"]
    assert broken["faults"][0].startswith("a trial that ended says when")


def test_an_upgrade_says_what_it_would_do_and_then_that_it_did(search: Search, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "data" / "graft-0.1.0.db", tmp_path / "graft.db")
    would = search("db-upgrade", "db", "upgrade", "--dry-run")
    assert (len(would["steps"]) > 0, would["done"]) == (True, False)
    assert search("db-upgrade", "db", "upgrade") == {**would, "done": True}
    again = search("db-upgrade", "db", "upgrade", "--dry-run")
    assert (again["steps"], again["done"]) == ([], False)
    assert again["schema"] > would["schema"]


def test_the_doctor_gives_findings_and_rates(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    def rates(*_: Any, **__: Any) -> Iterator[Rate]:
        yield Rate(case="set complement", step="native", lanes=1, model_steps_per_second=1234.5)

    monkeypatch.setattr(doctor, "measure", rates)
    answer = search("doctor", "doctor", "--device", "cpu", "--storage", "/nowhere/graft.db", status=1)
    assert [rate["model_steps_per_second"] for rate in answer["rates"]] == [1234.5]
    assert [finding["name"] for finding in answer["findings"] if finding["is_problem"]] == ["database"]


@pytest.mark.long
def test_a_dry_run_times_packs(search: Search, tmp_path: Path) -> None:
    estimate = search("dry-run", "launch", SPACE, "--dry-run", "--device", "cpu", "--pack", "2", "--steps", "6")
    assert (estimate["trials"], estimate["is_measured"], estimate["structures"]) == (48, True, [])
    assert estimate["model_steps"] <= 48 * 6
    rates = [pack["model_steps_per_second"] for pack in estimate["packs"]]
    assert estimate["seconds"]["least"] == pytest.approx(estimate["model_steps"] / max(rates))
    assert estimate["seconds"]["most"] == pytest.approx(estimate["model_steps"] / min(rates))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_dry_run_estimates_a_gpu_by_structure(search: Search) -> None:
    estimate = search("dry-run", "launch", SPACE, "--dry-run", "--device", "h100")
    assert (estimate["is_measured"], estimate["packs"], estimate["device"]) == (False, [], "h100")
    assert sum(structure["trials"] for structure in estimate["structures"]) == 48
    for structure in estimate["structures"]:
        assert structure["used"]["lanes"] <= min(structure["trials"], structure["best"]["lanes"])
        assert structure["seconds"] == pytest.approx(
            structure["model_steps"] / structure["used"]["model_steps_per_second"]
        )
    total = sum(structure["seconds"] for structure in estimate["structures"])
    assert estimate["seconds"] == {"least": pytest.approx(total), "most": pytest.approx(total)}


def test_only_a_dry_run_of_a_launch_has_a_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, error = called(monkeypatch, capfd, "launch", SPACE, "--format", "json")
    assert (status, error.count("\n")) == (2, 1)
    assert "--format json goes with --dry-run" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_comparison_of_arms_is_printed_with_or_without_a_page(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "arms.yaml").write_text(EXPERIMENT)
    assert called(monkeypatch, capfd, "launch", "arms.yaml", "--device", "cpu", "--workers", "1")[0] == 0
    comparison = search("report-compare", "report", "compare", "tiny-arms")
    assert (comparison["baseline"], comparison["seeds"], comparison["studies"]) == ("softmax", 4, ["tiny-arms"])
    rows = {(row["condition"], row["arm"]): row for row in comparison["arms"]}
    assert rows["", "softmax"]["verdict"] is None
    assert rows["", "average"]["pairs"] == 4
    values = dict(raw(f"sqlite:///{tmp_path}/graft.db", MEANS))
    assert rows["", "average"]["difference"] == pytest.approx(values["average"] - values["softmax"])
    assert comparison["findings"][0].startswith("average is ")
    assert search("report-compare", "report", "compare", "tiny-arms", "-o", "arms.md") == comparison
    assert comparison["findings"][0] in (tmp_path / "arms.md").read_text()
    status, out, error = called(monkeypatch, capfd, "report", "compare", "tiny-arms")
    assert (status, error) == (0, "")
    assert comparison["findings"][0] in out
    assert out.splitlines()[-1].split()[0] == "average"


QUEUED = NewStudy(
    "study",
    space="study: x",
    space_hash="f00",
    objective=studies.OBJECTIVE,
    seed=7,
    trials=9,
    version="0.2.0",
    numerics=1,
)
MEANS = """
SELECT json_extract(params, '$.arm'), avg(value) FROM trials JOIN metrics ON trial_id = id
WHERE name = 'tvd' AND condition = '' AND step = 4 GROUP BY 1
"""


# ------------------------------------------------------------------------------------------------------------- waiting


class Clock:
    """Time that passes only while someone sleeps; what happens at each moment is done then."""

    def __init__(self, *events: Callable[[], object]) -> None:
        self.now, self.slept, self._events = 0.0, list[float](), iter(events)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        next(self._events, lambda: None)()

    def wait(self, url: str, timeout: float | None = None) -> WaitResult:
        with open_reader(url) as reader:
            return wait_for_study(reader, "study", timeout, sleep=self.sleep, clock=lambda: self.now)


@pytest.mark.parametrize(("state", "outcome"), [("finished", "finished"), ("stopped", "stopped"), ("failed", "failed")])
def test_waiting_lasts_while_a_process_runs_the_study(url: str, state: str, outcome: str) -> None:
    with controlled_with_store(url) as (_, study):
        study.set_state("running")
        clock = Clock(lambda: None, lambda: study.set_state(state), study.close)  # type: ignore[arg-type]
        assert clock.wait(url) == outcome
    assert set(clock.slept) == {LOOK_SECONDS}
    # A server notices a little later that a connection is closed, and with it the claim.
    assert len(clock.slept) == 2 if state == "finished" else len(clock.slept) >= 3


def test_a_study_whose_process_is_gone_is_interrupted_and_one_that_ended_between_two_looks_is_not(url: str) -> None:
    with controlled_with_store(url) as (_, study):
        study.set_state("running")
    assert Clock().wait(url) == "interrupted"
    ended = Clock(lambda: raw(url, "UPDATE studies SET state = 'finished'"))
    assert ended.wait(url) == "finished"


@pytest.mark.long
def test_waiting_ends_at_its_timeout_and_does_not_sleep_beyond_it(url: str) -> None:
    with controlled_with_store(url) as (_, study):
        study.set_state("running")
        clock = Clock()
        assert clock.wait(url, 2.5) == "timeout"
        assert (clock.now, len(clock.slept)) == (2.5, 3)
        assert Clock().wait(url, 0) == "timeout"
        with pytest.raises(StudyError, match="timeout: nan must be at least 0"):
            Clock().wait(url, float("nan"))


@pytest.mark.parametrize(
    ("end", "outcome"),
    [("done", "finished"), ("failed", "failed"), ("cancelled", "stopped")],
)
def test_a_study_in_the_queue_is_waited_for_until_its_entry_ends(url: str, end: str, outcome: str) -> None:
    with open_store(url) as store:
        entry: QueueEntry = submit(store, QUEUED, Terms())

        def finish() -> None:
            if end == "cancelled":
                ask(store, "cancel", "study")
            else:
                store.queue.note_end(entry.study_id, end)  # type: ignore[arg-type]
            if end == "done":
                raw(url, "UPDATE studies SET state = 'finished'")

        clock = Clock(lambda: ask(store, "pause", "study"), lambda: ask(store, "resume", "study"), finish)
        assert clock.wait(url) == outcome
        assert len(clock.slept) == 3


def test_a_study_that_failed_in_the_queue_and_was_launched_since_has_stopped(url: str) -> None:
    with open_store(url) as store:
        entry = submit(store, QUEUED, Terms())
        study = store.take_control(entry.study_id, policy="full", objective=QUEUED.objective, keep_open=True)
        study.renew_leases([heard()], 60)
        study.close()
        store.queue.note_end(entry.study_id, "failed", "a reason")
        assert Clock().wait(url) == "failed"
        study = store.take_control(entry.study_id, policy="full", objective=QUEUED.objective, keep_open=True)
        study.renew_leases([heard("later")], 60)
        study.set_state("stopped")
        study.close()
        assert Clock().wait(url) == "stopped"


@pytest.mark.parametrize(("state", "status"), [("finished", 0), ("failed", 1), ("stopped", 3), ("running", 4)])
def test_the_exit_status_says_how_waiting_ended(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, status: int
) -> None:
    url = f"sqlite:///{tmp_path}/graft.db"
    monkeypatch.setattr("graft.stored.waiting.LOOK_SECONDS", 0.01)
    with studies.running(url):
        assert search("wait", "wait", "demo", "--timeout", "0", status=124)["outcome"] == "timeout"
    raw(url, f"UPDATE studies SET state = '{state}'")
    outcome = search("wait", "wait", "demo", status=status)["outcome"]
    assert outcome == ("interrupted" if state == "running" else state)
    assert graft.open(url)["demo"].wait(0 if status != 4 else None) == outcome


def test_waiting_for_a_study_that_is_not_there_is_an_error(search: Search, tmp_path: Path) -> None:
    with (
        studies.running(f"sqlite:///{tmp_path}/graft.db"),
        pytest.raises(AssertionError, match="'other' does not exist"),
    ):
        search("wait", "wait", "other")
