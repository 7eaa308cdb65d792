"""What the log of runs keeps: the lines of each study, warnings of its own threads, and how it ended."""

from __future__ import annotations

import contextvars
import logging
import shutil
import threading
from pathlib import Path

import pytest

from graft.launching.process import run_log
from graft.launching.process.run_log import RunLog

pytestmark = pytest.mark.fast


@pytest.fixture
def log(tmp_path: Path) -> RunLog:
    return RunLog.of(f"sqlite:///{tmp_path}/graft.db")


def texts(log: RunLog, study: str) -> list[str]:
    return [line.text for line in log.read(study, 1_000_000)]


def warn(text: str) -> None:
    logging.getLogger("workers.pool.worker").warning("%s", text)


def test_warnings_are_lines_of_the_study_whose_threads_gave_them(log: RunLog) -> None:
    threads: list[threading.Thread] = []
    begun = threading.Barrier(2)

    def work(study: str) -> None:
        with log.recording(study):
            begun.wait(240)  # both are being recorded
            warn(f"of {study}")
            inner = threading.Thread(target=contextvars.copy_context().run, args=(warn, f"of a worker of {study}"))
            inner.start()
            inner.join()
            logging.getLogger("workers").info("no warning")

    for study in ("one", "two"):
        threads.append(threading.Thread(target=contextvars.Context().run, args=(work, study)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    warn("of nobody")
    for study in ("one", "two"):
        assert texts(log, study) == [f"of {study}", f"of a worker of {study}"]


def test_an_error_that_ends_a_run_is_its_last_line(log: RunLog) -> None:
    with pytest.raises(ValueError, match="what"), log.recording("one"):
        raise ValueError("what\nwent wrong")
    assert texts(log, "one") == ["ended by an error: what went wrong"]


def test_a_long_log_is_cut_to_its_newest_lines(log: RunLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_log, "_LONGEST", 4_000)
    for number in range(200):
        log.write("one", f"line {number}")
        assert Path(f"{tmp_path}/graft.db.log").stat().st_size <= 4_000
    kept = texts(log, "one")
    assert 5 < len(kept) < 60
    assert kept == [f"line {number}" for number in range(200 - len(kept), 200)]


def test_a_disk_that_takes_nothing_ends_no_run(log: RunLog, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    log.write("one", "line")
    assert not tmp_path.exists()
    assert texts(log, "one") == []
