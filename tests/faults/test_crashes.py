"""Hit at every point, a study ends as if nothing had happened: after a kill, an error once, or an error for ever."""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graft.launching.enrolling import enrol
from graft.plugins.families import families
from spaces import load
from tests.support.crashing import DIED, SIZES, STUDY
from tests.support.databases import Server, raw
from tests.support.launches import ROOT, SPACE

MOST = 500
"""Points that a run may have; it has some sixty."""
Rows = list[tuple[Any, ...]]


class Crashes:
    """Runs studies in a process that forks them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, mode: str, at: int, url: str, folder: Path) -> tuple[int, str]:
        """Exit status, and what was said last."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([mode, at, url, str(folder)]), file=self._process.stdin, flush=True)
        status, said = json.loads(self._process.stdout.readline())
        return status, said


@pytest.fixture(scope="module")
def crashes() -> Iterator[Crashes]:
    command = [sys.executable, "-m", "tests.support.crashing"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield Crashes(process)
        assert process.stdin
        process.stdin.close()


def stored(url: str) -> tuple[Rows, Rows]:
    """Return what a study leaves: its trials, and all their numbers."""
    return (
        raw(url, "SELECT number, state, steps, objective, error FROM trials ORDER BY number"),
        raw(url, "SELECT trial_id, step, name, variant, condition, value FROM metrics ORDER BY 1, 2, 3, 4, 5"),
    )


def check(url: str, undisturbed: tuple[Rows, Rows]) -> None:
    assert stored(url) == undisturbed
    assert raw(url, "SELECT state FROM studies") == [("finished",)]
    assert raw(url, "SELECT count(*) FROM checkpoints") == [(0,)]


class Places:
    """Databases of one kind with a new study in each, copied from one, and folders."""

    def __init__(self, folder: Path, postgres: Server | None) -> None:
        self.folder, self.postgres, self.count = folder, postgres, itertools.count()

    def __iter__(self) -> Iterator[tuple[str, Path]]:
        for count in self.count:
            folder = self.folder / str(count)
            folder.mkdir()
            with self.database(folder) as url:
                yield url, folder

    @contextmanager
    def database(self, folder: Path) -> Iterator[str]:
        """Yield a copy of the one that was begun."""
        if not self.postgres:
            shutil.copy(self.begun.removeprefix("sqlite:///"), folder / "graft.db")
            yield f"sqlite:///{folder}/graft.db"
            return
        with self.postgres.database(template=self.begun.partition("@/")[2].partition("?")[0]) as url:
            yield url

    @functools.cached_property
    def begun(self) -> str:
        """A database with a study that nobody has run."""
        url = f"sqlite:///{self.folder}/begun.db"
        if self.postgres:
            self.postgres.execute("CREATE DATABASE begun")
            url = self.postgres.url("begun")
        enrol(url, STUDY, load(SPACE, families(), SIZES))
        return url


@pytest.fixture(params=["sqlite", "postgresql"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    yield Places(tmp_path, server)
    if server:
        server.execute("DROP DATABASE IF EXISTS begun WITH (FORCE)")


def undisturbed(crashes: Crashes, places: Places) -> tuple[Rows, Rows]:
    url, folder = next(iter(places))
    assert crashes.run("none", 0, url, folder)[0] == 0
    rows = stored(url)
    assert [row[1] for row in rows[0]] == ["finished"] * 4
    assert len({row[:2] for row in rows[1]}) == 8
    return rows


def resume(crashes: Crashes, url: str, folder: Path) -> None:
    """To the end; a server that is busy may not have noticed yet that the process before is dead, or not answer yet."""
    deadline = time.monotonic() + 240
    while (outcome := crashes.run("none", 0, url, folder))[0]:
        assert "is being run by" in outcome[1] or "does not answer" in outcome[1], outcome
        assert time.monotonic() < deadline, outcome
        time.sleep(0.1)


def hit_everywhere(crashes: Crashes, places: Places, mode: str, stride: int = 1) -> int:
    """Run hit at point 1, 2, 3, ... until one passes untouched, each gone on with; how many there were."""
    expected = undisturbed(crashes, places)
    for at, (url, folder) in zip(range(1, MOST, stride), places, strict=False):
        status, said = crashes.run(mode, at, url, folder)
        assert status in (0, 2, DIED), said
        over = raw(url, "SELECT state FROM studies") == [("finished",)]
        if status or not over:  # its last word may be what failed
            resume(crashes, url, folder)
        check(url, expected)
        if not status and int(said.split()[0]) < at:
            return at
    pytest.fail("a run never ends untouched")


@pytest.mark.long
def test_killed_at_every_third_point_a_study_ends_as_if_nothing_had_happened(crashes: Crashes, places: Places):
    assert hit_everywhere(crashes, places, "die", stride=3) > 40


@pytest.mark.slow
def test_killed_at_every_point_a_study_ends_as_if_nothing_had_happened(crashes: Crashes, places: Places):
    assert hit_everywhere(crashes, places, "die") > 40


@pytest.mark.sampled(0, 2)
@pytest.mark.parametrize("mode", ["once", "ever"])
def test_an_error_at_any_point_costs_nothing(crashes: Crashes, places: Places, mode: str):
    assert hit_everywhere(crashes, places, mode, stride=5) > 40


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["once", "ever"])
def test_an_error_at_every_point_costs_nothing(crashes: Crashes, places: Places, mode: str):
    assert hit_everywhere(crashes, places, mode) > 40


@pytest.mark.slow
def test_killed_again_while_it_recovers_a_study_ends_as_if_nothing_had_happened(crashes: Crashes, places: Places):
    chance, expected = random.Random(7), undisturbed(crashes, places)
    for _, (url, folder) in zip(range(100), places, strict=False):
        for _ in range(3):
            crashes.run("die", chance.randint(1, 60), url, folder)
        assert crashes.run("none", 0, url, folder)[0] == 0
        check(url, expected)
