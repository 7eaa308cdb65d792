"""What a launch survives: kill -9 at any moment, a full disk, and two of it at once."""

from __future__ import annotations

import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from spaces.errors import GraftError
from tests.databases import raw
from tests.launches import (
    ROOT,
    SPACE,
    check_complete,
    finished,
    metrics,
    running,
    search,
    states,
    undisturbed,
    wait_until,
)

KILLS = {"sqlite": 6, "postgresql": 3}
SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))"

NURSERY = """
import json, os, sys
import search.steering.controller, workers.pool.inline
from cli.main import main
from graft.launching.planning.reading import read_space
from workers.engine.speed.timing import model_steps_per_second

trial = read_space(sys.argv[1], {}).sample(0, lambda draw: 0.5)
model_steps_per_second(trial, width=2, device="cpu", seconds=0)
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if not child:
        os.setsid()
        sys.argv = ["search", *json.loads(line)]
        main()
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""Forks one launch after another out of a process that has imported and trained already, which takes seconds.

It has not launched: Polars' threads do not survive a fork, nor do those of OpenMP, so it has one thread of these.
"""


class Nursery:
    """Starts launches fast, one at a time, each a process group of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def killed(self, moment: Callable[[], bool], *arguments: str) -> bool:
        """Launch, and kill -9 at the moment; False if it had ended by itself."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        child = int(self._process.stdout.readline())
        while not select.select([self._process.stdout], [], [], 0.02)[0]:
            if moment():
                os.killpg(child, signal.SIGKILL)
                break
        return os.WIFSIGNALED(int(self._process.stdout.readline()))


@contextmanager
def open_nursery() -> Iterator[Nursery]:
    command = [sys.executable, "-c", NURSERY, SPACE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield Nursery(process)
        assert process.stdin
        process.stdin.close()


def after(url: str, trials: int, seconds: float) -> Callable[[], bool]:
    """Whether it is so long since so many trials were finished."""
    since: list[float] = []

    def reached() -> bool:
        with suppress(GraftError):
            if not since and finished(url) >= trials:
                since.append(time.monotonic())
        return bool(since) and time.monotonic() >= since[0] + seconds

    return reached


@pytest.mark.long
def test_killed_at_random_moments_a_study_ends_as_if_nothing_had_happened(url: str, tmp_path: Path):
    chance, kills = random.Random(20), KILLS[url.partition(":")[0]]
    launch = ("launch", SPACE, "--workers", "2", "--pack", "8", "--storage", url)
    with open_nursery() as nursery:
        moments = [after(url, trials, chance.uniform(0, 0.5)) for trials in sorted(chance.choices(range(40), k=kills))]
        assert sum(nursery.killed(moment, *launch) for moment in moments) >= kills - 1
    search(tmp_path, *launch)
    check_complete(url)


PATIENT = """
import time
from pathlib import Path
from workers.engine.pack import Pack
train = Pack.train_studies
def wait(pack, steps):
    while not Path("go").exists():
        time.sleep(0.05)
    return train(pack, steps)
Pack.train_studies = wait
"""
"""Trains once there is a file `go` in its folder: one that is through before the other begins would refuse nobody."""


@pytest.mark.sampled(1)
def test_of_two_launches_at_the_same_instant_one_runs_and_the_other_says_why(url: str, tmp_path: Path):
    launch = ("launch", SPACE, "--storage", url, "--workers", "1")
    with running(tmp_path, *launch, before=PATIENT) as one, running(tmp_path, *launch, before=PATIENT) as other:
        wait_until(lambda: one.poll() is not None or other.poll() is not None)
        (tmp_path / "go").touch()
        answers = [process.communicate(timeout=300)[1].splitlines() for process in (one, other)]
    assert sorted([one.returncode, other.returncode]) == [0, 2], answers
    refused = answers[0] if one.returncode else answers[1]
    assert re.match("error: .*(is being|exists already)", refused[-1]), refused
    assert states(url) == {"finished": 48}


@pytest.mark.long
def test_a_full_disk_ends_a_launch_in_one_line_and_room_lets_it_go_on(tmp_path: Path):
    launch, url = ("launch", SPACE, "--workers", "1", "--pack", "8"), f"sqlite:///{tmp_path}/graft.db"
    lines = search(tmp_path, *launch, status=2, before=SMALL_FILES)
    assert re.match("error: .*/graft.db: the disk refuses .* what was committed before stays", lines[-1])
    done = {number for (number,) in raw(url, "SELECT number FROM trials WHERE state = 'finished'")}
    kept = {key: value for key, value in metrics(url).items() if key[0] in done}
    assert 0 < len(done) < 48
    assert kept == pytest.approx({key: value for key, value in undisturbed().items() if key[0] in done}, abs=1e-9)
    search(tmp_path, *launch)
    check_complete(url)
