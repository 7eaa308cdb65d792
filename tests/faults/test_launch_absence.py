"""Launches of the real program whose server dies, whose network is cut, whose checkpoints rot, and who are many."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import Server, raw
from tests.support.faults.proxy import Proxy
from tests.support.faults.server import MortalServer, mortal_server
from tests.support.launches import (
    SPACE,
    Launched,
    check_complete,
    counts,
    ended,
    finished,
    running,
    search,
    undisturbed,
    wait_until,
)

LAUNCH = ("launch", SPACE, "--workers", "1", "--pack", "8")
STEPS = "SELECT sum(steps) FROM trials"


def trained(url: str) -> int:
    """Optimizer steps that workers made, in all launches."""
    [(steps,)] = raw(url, "SELECT sum(steps) FROM workers")
    return int(steps)


@pytest.fixture
def mortal() -> Iterator[MortalServer]:
    with mortal_server() as server:
        yield server


def line_with(process: Launched, words: str) -> str:
    """Return the next line on stderr that holds these words."""
    assert process.stderr
    return next(line for line in process.stderr if words in line)


@pytest.mark.long
def test_a_server_that_is_killed_and_started_again_costs_a_study_nothing(mortal: MortalServer, tmp_path: Path):
    mortal.server.execute("CREATE DATABASE study")
    url = mortal.server.url("study")
    with running(tmp_path, *LAUNCH, "--storage", url) as process:
        for after in (3, 12):
            wait_until(lambda after=after: finished(url) > after)
            mortal.kill()
            assert "training goes on" in line_with(process, "tried again for an hour")
            mortal.start()
            line_with(process, "answers again")
        lines = ended(process, 0)
    assert lines[-1].startswith("tiny: 48 finished of 48; best tvd/bema ")
    check_complete(url)
    assert trained(url) == raw(url, STEPS)[0][0], "no step was made twice"


@pytest.mark.long
def test_a_network_that_is_cut_and_mended_costs_a_study_nothing(mortal: MortalServer, tmp_path: Path):
    mortal.server.execute("CREATE DATABASE study")
    direct = mortal.server.url("study")
    with Proxy(mortal.socket) as proxy:
        url = f"postgresql://graft@127.0.0.1:{proxy.port}/study"
        with running(tmp_path, *LAUNCH, "--storage", url) as process:
            wait_until(lambda: finished(direct) > 3)
            proxy.cut()
            line_with(process, "tried again for an hour")
            proxy.restore()
            line_with(process, "answers again")
            proxy.lose("answer")
            line_with(process, "answers again")
            ended(process, 0)
        assert proxy.lost["answer"] == 1
    check_complete(direct)
    assert trained(direct) == raw(direct, STEPS)[0][0]


def stopped(folder: Path, *options: str) -> list[Path]:
    """Stop a launch by SIGTERM in the midst of its trials; the checkpoints that it leaves anywhere in the folder."""
    url = f"sqlite:///{folder}/graft.db"
    with running(folder, *LAUNCH, *options) as process:
        wait_until(lambda: finished(url) > 3 and counts(url).get("running", 0) > 3)
        process.send_signal(signal.SIGTERM)
        ended(process, 130)
    return sorted(folder.glob("*/tiny-*/*.safetensors"))


@pytest.mark.long
def test_a_study_that_was_stopped_makes_no_step_again(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    [checkpoint] = stopped(tmp_path)
    assert raw(url, "SELECT DISTINCT path FROM checkpoints") == [(str(checkpoint),)]
    search(tmp_path, "resume", "tiny")
    check_complete(url)
    assert trained(url) == raw(url, STEPS)[0][0]
    assert not checkpoint.exists()


@pytest.mark.sampled(0, 1)
@pytest.mark.parametrize("rot", ["flip", "cut", "remove"])
def test_a_checkpoint_that_rots_costs_time_and_no_number(tmp_path: Path, rot: str):
    url = f"sqlite:///{tmp_path}/graft.db"
    [checkpoint] = stopped(tmp_path)
    content = bytearray(checkpoint.read_bytes())
    if rot == "remove":
        checkpoint.unlink()
    else:
        content[len(content) // 2] ^= 1
        checkpoint.write_bytes(content if rot == "flip" else content[: len(content) // 2])
    search(tmp_path, "resume", "tiny")
    check_complete(url)
    assert trained(url) > raw(url, STEPS)[0][0]


@pytest.mark.long
def test_checkpoints_can_be_switched_off(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    assert stopped(tmp_path, "--checkpoints", "none") == []
    assert not list(tmp_path.glob("*checkpoints*"))
    assert raw(url, "SELECT count(*) FROM checkpoints") == [(0,)]
    assert raw(url, "SELECT DISTINCT steps FROM trials WHERE state = 'queued'") == [(0,)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--checkpoints", "nosuch://place"), "nosuch"),
        (("--checkpoints", "/proc/nowhere"), "/proc/nowhere"),
        (("--checkpoint-every", "0"), "checkpoint-every"),
    ],
)
def test_a_place_that_cannot_hold_checkpoints_is_told_in_one_line(tmp_path: Path, options: tuple[str, str], words: str):
    lines = search(tmp_path, *LAUNCH, *options, status=2)
    assert words in lines[-1]


@pytest.mark.long
def test_studies_of_one_server_run_side_by_side(postgres: Server, tmp_path: Path):
    with postgres.database() as url:
        names = ["one", "other"]
        search(tmp_path, "launch", SPACE, "--trials", "1", "--storage", url, "--study", "first")
        options = ("--storage", url, "--workers", "1", "--pack", "8")
        with (
            running(tmp_path, "launch", SPACE, "--study", names[0], *options) as launch,
            running(tmp_path, "launch", SPACE, "--study", names[1], *options) as other,
        ):
            for process in (launch, other):
                ended(process, 0)
        values = "SELECT number, step, metrics.name, variant, value FROM metrics JOIN trials ON trials.id = trial_id"
        expected = undisturbed()
        for name in names:
            rows = raw(url, f"{values} JOIN studies ON studies.id = study_id WHERE studies.name = '{name}'")
            assert {row[:4]: row[4] for row in rows} == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.long
def test_a_study_goes_on_from_the_place_that_it_was_launched_with(tmp_path: Path):
    """A relative one, that is noted whole, so that `resume` needs no option and any folder will do."""
    url = f"sqlite:///{tmp_path}/graft.db"
    [checkpoint] = stopped(tmp_path, "--checkpoints", "kept")
    assert checkpoint.is_relative_to(tmp_path / "kept")
    assert raw(url, "SELECT checkpoints FROM studies") == [(f"{tmp_path}/kept",)]
    (tmp_path / "elsewhere").mkdir()
    search(tmp_path / "elsewhere", "resume", "tiny", "--storage", url)
    assert trained(url) == raw(url, STEPS)[0][0], "no step was made twice"
    assert not list(tmp_path.glob("kept/tiny-*/*.safetensors"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "checkpoints", ["s3://name:secretword@bucket/x", "ftp://name:secretword@127.0.0.1:1/x", "ftp://127.0.0.1:1/x"]
)
def test_a_url_for_checkpoints_shows_no_password_and_leaves_no_study_running(tmp_path: Path, checkpoints: str):
    lines = search(tmp_path, *LAUNCH, "--checkpoints", checkpoints, status=2)
    assert "secretword" not in "".join(lines)
    assert lines[-1].startswith("error: ")
    assert raw(f"sqlite:///{tmp_path}/graft.db", "SELECT state FROM studies") == [("stopped",)]
