"""Deaths of the launcher are told apart from a trial's own, and trials that failed can be queued again."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from graft.launching.process.crash_record import CrashRecord
from spaces.errors import StudyError
from spaces.records import TrialResult
from storage import ControlledStudy, open_reader, open_store
from storage.checking import check
from tests.support.databases import OBJECTIVE, controlled, make_report, make_trial, raw
from tests.support.launches import ROOT, SPACE, check_complete, kill, running, search, states, wait_until

ARMED = """
import sys, time
from pathlib import Path
from graft.launching.process.crash_record import CrashRecord
with CrashRecord(Path(sys.argv[1])):
    print("armed", flush=True)
    exec(sys.argv[2])
"""


def left(path: Path, act: str, signal_sent: int = 0) -> str | None:
    """Return what a process leaves that does this, or is sent a signal."""
    with subprocess.Popen(
        [sys.executable, "-c", ARMED, str(path), act], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout
        process.stdout.readline()
        if signal_sent:
            process.send_signal(signal_sent)
    return CrashRecord(path).read()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("act", "word"),
    [
        ("import ctypes; ctypes.string_at(0)", "Segmentation fault"),
        ("import os; os.abort()", "Aborted"),
        ("pass", None),
        ("raise SystemExit(2)", None),
    ],
)
def test_a_process_that_crashes_leaves_word_and_one_that_ends_leaves_none(tmp_path: Path, act: str, word: str | None):
    assert left(tmp_path / "record", act) == word
    assert (tmp_path / "record").exists() == (word is not None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_leaves_no_word(tmp_path: Path, sent: int):
    assert left(tmp_path / "record", "time.sleep(60)", sent) is None


def test_a_record_that_cannot_be_written_keeps_nobody_from_training(tmp_path: Path):
    (tmp_path / "text").write_text("")
    with CrashRecord(tmp_path / "text" / "record") as record:
        assert record.read() is None


CRASH = """
import ctypes
from workers.engine.pack import Pack
train = Pack.train_studies
def crash(pack, steps):
    return train(pack, steps) if {} else ctypes.string_at(0)
Pack.train_studies = crash
"""


@pytest.mark.long
def test_a_launch_that_crashed_is_told_from_one_that_was_killed(tmp_path: Path):
    launch, url = ("launch", SPACE, "--workers", "1", "--pack", "1", "--trials", "3"), f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *launch, before=CRASH.format("False")) as process:
        assert process.wait(240) == -signal.SIGSEGV
    assert raw(url, "SELECT number, state, deaths FROM trials") == [(0, "running", 0)]
    with running(tmp_path, *launch, before=CRASH.format("False")) as process:
        assert process.wait(240) == -signal.SIGSEGV
        assert "the last launch crashed (Segmentation fault); if it does so again" in process.stderr.read()
    assert raw(url, "SELECT number, state, deaths FROM trials") == [(0, "running", 1)]
    lines = search(tmp_path, "resume", "tiny")
    assert any("the last launch crashed" in line for line in lines)
    assert states(url) == {"finished": 3}
    assert not list(tmp_path.glob("*.crash-*"))


def newest_start(url: str) -> int:
    """Return the highest fence of any trial."""
    with open_reader(url) as reader:
        return reader.query("SELECT max(fence) FROM trials").item()


@pytest.mark.slow
def test_a_trial_is_not_failed_by_kills_of_the_launcher_alone(tmp_path: Path):
    """A8 of the look at 0.1.0: one worker with one lane, thirteen kills, and the trial was failed for good."""
    launch, url = ("launch", SPACE, "--workers", "1", "--pack", "1", "--trials", "2"), f"sqlite:///{tmp_path}/graft.db"
    slow = """
import time
from workers.engine.pack import Pack
Pack.train_studies = lambda pack, steps: time.sleep(0.1) or []
"""
    for start in range(1, 10):
        with running(tmp_path, *launch, before=slow) as process:
            wait_until(lambda start=start: newest_start(url) == start)
            kill(process)
    lines = search(tmp_path, *launch)
    assert any("was killed, or its machine went down, which counts against no trial" in line for line in lines)
    assert raw(url, "SELECT DISTINCT state, deaths FROM trials") == [("finished", 0)]


# -- retry -----------------------------------------------------------------------------------------------------------


def end(study: ControlledStudy, number: int, state: str, steps: int) -> None:
    study.record([make_report(number, steps)])
    error = None if state in ("finished", "pruned") else "because"
    objective = 0.5 if state in ("finished", "pruned") else None
    study.end([TrialResult(number=number, fence=1, state=state, objective=objective, error=error)])  # type: ignore[arg-type]


@pytest.fixture
def study(url: str) -> int:
    """Return a finished study: trial 1 failed, 2 diverged, 3 was pruned, 0 and 4 are finished; its id."""
    with controlled(url) as made:
        made.start([make_trial(n) for n in range(5)], "w")
        for number, state in enumerate(("finished", "failed", "diverged", "pruned", "finished")):
            end(made, number, state, 10 * (number + 1))
        made.set_state("finished")
        return made.id


ROWS = "SELECT number, state, steps, deaths, error FROM trials ORDER BY number"


@pytest.mark.parametrize(("asked", "queued"), [((), [1, 2]), ((2,), [2]), ((2, 1), [1, 2])])
def test_failed_and_diverged_trials_are_queued_again_from_step_0(
    url: str, study: int, asked: tuple[int, ...], queued: list[int]
):
    before = raw(url, ROWS)
    with open_store(url) as store:
        assert store.retry(study, asked) == queued
    after = raw(url, ROWS)
    assert [row for row in after if row[0] not in queued] == [row for row in before if row[0] not in queued]
    assert [row for row in after if row[0] in queued] == [(n, "queued", 0, 0, None) for n in queued]
    assert raw(url, "SELECT state, steps FROM studies") == [("stopped", 150 - sum(10 * (n + 1) for n in queued))]
    assert {number % 10**9 for (number,) in raw(url, "SELECT trial_id FROM metrics")} == {*range(5)} - {*queued}
    assert check(url).faults == ()
    with open_store(url) as store:
        again = store.take_control(study, policy="full", objective=OBJECTIVE)
        assert [trial.number for _, trial in again.queries.queued()] == queued
        assert again.start([make_trial(n) for n in queued], "w") == dict.fromkeys(queued, 2)


def test_a_trial_that_neither_failed_nor_diverged_is_refused_and_nothing_changes(url: str, study: int):
    before = raw(url, ROWS), raw(url, "SELECT * FROM studies")
    for numbers, named in (((1, 3), 3), ((0,), 0), ((1, 77), 77)):
        with (
            open_store(url) as store,
            pytest.raises(StudyError, match=f"trial {named} neither failed nor diverged; choose of 1, 2"),
        ):
            store.retry(study, numbers)
    assert (raw(url, ROWS), raw(url, "SELECT * FROM studies")) == before


def test_without_such_a_trial_a_finished_study_stays_finished(url: str):
    with controlled(url) as made:
        made.set_state("finished")
    with open_store(url) as store:
        assert store.retry(made.id) == []
    assert raw(url, "SELECT state FROM studies") == [("finished",)]


def test_nothing_is_queued_again_while_the_study_is_being_run(url: str, study: int):
    with open_store(url) as store:
        store.take_control(study, policy="full", objective=OBJECTIVE)
        with pytest.raises(StudyError, match=r"is being (written|run) by .*; stop it first"), open_store(url) as other:
            other.retry(study)
    assert raw(url, "SELECT count(*) FROM trials WHERE state = 'queued'") == [(0,)]


@pytest.mark.long
def test_a_trial_that_failed_by_accident_is_trained_again_with_the_same_numbers(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    search(tmp_path, "launch", SPACE, "--workers", "2")
    raw(url, "UPDATE trials SET state = 'failed', error = 'by accident', objective = NULL WHERE number IN (3, 7)")
    assert search(tmp_path, "retry", "tiny", "5", status=2) == [
        "error: trial 5 neither failed nor diverged; choose of 3, 7"
    ]
    assert search(tmp_path, "retry", "tiny") == ["tiny: queued again: 3, 7; resume it with `search resume tiny`"]
    assert search(tmp_path, "retry", "tiny") == ["tiny: no trial failed or diverged"]
    search(tmp_path, "resume", "tiny")
    check_complete(url)
