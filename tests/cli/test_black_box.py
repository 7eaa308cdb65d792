"""What a study must notice about its file, its code and its deaths, through the command line and the database alone.

Nothing of ours is imported, so that the same file tests any version: `GRAFT_TREE=FOLDER pytest -m slow
tests/cli/test_black_box.py` runs the program in that folder. Each test fails on 0.1.0.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TREE = Path(os.environ.get("GRAFT_TREE", Path(__file__).parents[2])).resolve()
SPACE = str(Path(__file__).parents[1] / "support" / "tiny_space.yaml")
ONE_LANE = ("--workers=1", "--pack=1", "--trials=2", "--set=search.group=2", "--steps=3000000")
ONE_LANE += ("--set=training.validate_every=500",)
PACKAGES = ("cli", "graft", "graft_search", "search", "spaces", "storage", "workers")
PATIENCE = 40.0


class Folder:
    """A folder with a database, in which the program is run."""

    def __init__(self, path: Path, tree: Path = TREE) -> None:
        self.path = path
        self.database = path / "graft.db"
        self._environment = {**os.environ, "SEARCH_STORAGE": str(self.database), "PYTHONPATH": str(tree)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from cli.main import main; main()", *arguments]
        return subprocess.Popen(
            command, env=self._environment, cwd=self.path, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

    @contextmanager
    def running(self, *arguments: str) -> Generator[subprocess.Popen[str]]:
        """Killed at the end, with what it started, if it still runs."""
        process = self.start(*arguments)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def run(self, *arguments: str) -> tuple[int, list[str]]:
        """Its exit status, and the lines that it wrote to stderr."""
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=10 * PATIENCE)
        return process.returncode, errors.splitlines()

    def value(self, query: str) -> int:
        """Return the one number of a query; 0 as long as there is none."""
        try:
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True, timeout=10)) as connection:
                return int(connection.execute(query).fetchone()[0] or 0)
        except sqlite3.OperationalError:
            return 0

    def wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.05)


FENCE = "SELECT max(fence) FROM trials"
METRICS = "SELECT count(*) FROM metrics"
FURTHEST = "SELECT max(step) FROM metrics"
SAVED = "SELECT max(step) FROM checkpoints"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_a_run_whose_database_is_deleted_or_replaced_does_not_end_well(folder: Folder, replaced: bool):
    with folder.running("launch", SPACE, *ONE_LANE) as process:
        folder.wait(lambda: folder.value(METRICS) > 0)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{folder.database}{suffix}").unlink(missing_ok=True)
        if replaced:
            with closing(sqlite3.connect(folder.database)) as connection:
                connection.execute("CREATE TABLE another (number INTEGER)")
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode > 0
    assert "Traceback" not in errors
    assert "graft.db" in errors


@pytest.mark.parametrize("alias", ["link", "lock"])
def test_a_second_launch_by_another_name_of_the_file_is_refused(folder: Folder, alias: str):
    with folder.running("launch", SPACE, *ONE_LANE):
        folder.wait(lambda: folder.value(METRICS) > 0)
        link = folder.path / "link.db"
        if alias == "link":
            link.symlink_to(folder.database)
        else:
            Path(f"{folder.database}.lock").unlink()
        other = str(link if alias == "link" else folder.database)
        with folder.running("launch", SPACE, *ONE_LANE, "--storage", other) as second:
            _, errors = second.communicate(timeout=PATIENCE)
    assert (second.returncode, "Traceback" in errors) == (2, False)
    assert "is being" in errors


def test_kills_of_the_launcher_fail_no_trial(folder: Folder):
    for _ in range(13):
        before = folder.value(FENCE)
        with folder.running("launch", SPACE, *ONE_LANE):
            folder.wait(lambda before=before: folder.value(FENCE) > before or _failed(folder))
        assert not _failed(folder)


def _failed(folder: Folder) -> int:
    return folder.value("SELECT count(*) FROM trials WHERE state = 'failed'")


def test_a_study_that_is_killed_again_and_again_goes_forward(folder: Folder):
    furthest: list[int] = []
    for _ in range(4):
        before = folder.value(FENCE)
        with folder.running("launch", SPACE, *ONE_LANE):
            folder.wait(lambda before=before: folder.value(FENCE) > before)
            time.sleep(6)
        furthest.append(folder.value(FURTHEST))
        assert folder.value(SAVED) > 0, "no checkpoint within seconds"
    assert furthest[-1] > 2 * furthest[0], furthest


def test_a_formula_that_changes_between_two_launches_is_noticed(tmp_path: Path):
    tree = tmp_path / "tree"
    for package in PACKAGES:
        with suppress(FileNotFoundError):
            shutil.copytree(TREE / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = Folder(tmp_path, tree)
    assert folder.run("launch", SPACE, "--workers=1", "--trials=16", "--steps=20")[0] == 0
    with sqlite3.connect(folder.database) as connection:
        connection.execute("UPDATE studies SET state = 'stopped'")
    connection.close()
    (bema,) = (tree / "workers").rglob("bema.py")
    formula = bema.read_text()
    assert "-self.eta" in formula
    bema.write_text(formula.replace("-self.eta", "-2 * self.eta"))
    status, errors = folder.run("resume", "tiny")
    assert (status, len(errors)) == (2, 1), errors
    assert "bema" in errors[0]


def test_sighup_stops_a_launch_with_everything_kept(folder: Folder):
    with folder.running("launch", SPACE, *ONE_LANE) as process:
        folder.wait(lambda: folder.value(METRICS) > 0)
        process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in errors
    assert process.returncode >= 0
    assert folder.value("SELECT count(*) FROM studies WHERE state = 'stopped'") == 1
    assert folder.value(SAVED) > 0
