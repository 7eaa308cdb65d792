"""What a launch survives: kill -9 at any moment, a full disk, and two of it at once."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.support.databases import raw
from tests.support.launch_faults import after, open_nursery
from tests.support.launches import (
    SPACE,
    check_complete,
    metrics,
    running,
    search,
    states,
    undisturbed,
    wait_until,
)

KILLS = {"sqlite": 6, "postgresql": 3}
SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))"


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
    with running(tmp_path, *launch, before=PATIENT) as first, running(tmp_path, *launch, before=PATIENT) as other:
        wait_until(lambda: first.poll() is not None or other.poll() is not None)
        (tmp_path / "go").touch()
        answers = [process.communicate(timeout=300)[1].splitlines() for process in (first, other)]
    assert sorted([first.returncode, other.returncode]) == [0, 2], answers
    refused = answers[0] if first.returncode else answers[1]
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
