"""The Ray executor: the same numbers as in one process, whatever of it is killed on the way."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spaces.errors import StorageError, StudyError
from spaces.records import Directives, Offer, Report
from tests.databases import raw
from tests.launches import SPACE, check_complete, ended, finished, running, search, states, wait_until
from workers.pool.ray_tune import Desk, _share  # pyright: ignore[reportPrivateUsage]

RAY = ("launch", SPACE, "--executor", "ray", "--pack", "4")


def offer(worker: str) -> Offer:
    return Offer(worker=worker, lanes=1, structure=None, host="here", device="cpu", steps=0, room=0)


class FakeController:
    """Writes down what it is told, and fails when it is time."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.answer = Directives()
        self.error: Exception | None = None

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        if self.error:
            raise self.error
        self.told.append(f"exchange {offer.worker}")
        return self.answer

    def lost(self, worker: str) -> None:
        self.told.append(f"lost {worker}")

    def request_stop(self) -> None:
        self.told.append("stop")

    def progress(self) -> int:
        return 7

    def close(self) -> None:
        self.told.append("close")


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


def test_a_restarted_worker_takes_over_its_slot_and_a_ghost_is_sent_home(controller: FakeController):
    desk = Desk(lambda: controller)
    desk.attach(0, "first")
    desk.attach(1, "other")
    desk.attach(0, "second")
    assert desk.exchange([], offer("first")) == Directives(done=True)
    assert not desk.exchange([], offer("second")).done
    assert controller.told == ["lost first", "exchange second"]


def test_an_error_of_the_controller_sends_every_worker_home_and_reaches_the_driver(controller: FakeController):
    desk = Desk(lambda: controller)
    desk.attach(0, "a")
    desk.attach(1, "b")
    assert desk.progress() == 7
    controller.error = StorageError("no space left")
    assert desk.exchange([], offer("a")).done
    controller.error = None
    assert desk.exchange([], offer("b")).done
    assert controller.told == []
    with pytest.raises(StorageError, match="no space left"):
        desk.progress()


def test_workers_that_all_die_for_good_are_an_error_unless_the_study_is_done(controller: FakeController):
    desk = Desk(lambda: controller)
    desk.attach(0, "a")
    desk.give_up("out of memory")
    with pytest.raises(StudyError, match="every pack worker died 4 times, at last: out of memory"):
        desk.progress()
    controller.answer = Directives(done=True)
    desk = Desk(lambda: controller)
    desk.attach(0, "a")
    desk.exchange([], offer("a"))
    desk.give_up("out of memory")
    assert desk.progress() == 7


@pytest.mark.parametrize(("devices", "workers"), [(0, 2), (1, 1), (8, 3), (1, 3), (2, 7), (4, 5), (1, 999)])
def test_as_many_workers_as_asked_fit_on_the_devices(devices: int, workers: int):
    share = _share(devices, workers)
    if devices:
        assert devices * int(1 / share) >= workers, "each device takes whole workers"
    assert share <= 1


def descendants(root: int, title: str) -> list[int]:
    """Processes below `root` whose command line starts with `title`."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue

    def below(process: int) -> bool:
        return process == root or (process in parents and below(parents[process]))

    return sorted(pid for pid in parents if below(pid) and _command(pid).startswith(title))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_study_on_ray_survives_a_killed_worker_with_the_same_numbers(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        workers = descendants(process.pid, "ray::ImplicitFunc")
        os.kill(workers[0], signal.SIGKILL)
        lines = ended(process, 0)
    assert lines[-1].startswith("tiny: 48 finished of 48; best tvd/bema ")
    check_complete(url)
    assert len(raw(url, "SELECT id FROM workers")) == 3


@pytest.mark.slow
def test_a_killed_controller_ends_a_launch_in_one_line_and_the_study_resumes(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        os.kill(*descendants(process.pid, "ray::Desk"), signal.SIGKILL)
        lines = ended(process, 2)
    assert lines[-1].startswith("error: the controller's process died (killed, or out of memory?)")
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_launch_on_ray_keeps_what_is_finished_and_resumes(tmp_path: Path, sent: signal.Signals):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        # A terminal's Ctrl-C reaches the whole group; `kill` the program alone.
        os.killpg(process.pid, sent) if sent == signal.SIGINT else process.send_signal(sent)
        lines = ended(process, 130)
    assert lines[-1] == "stopped with everything kept; go on with `search resume tiny`"
    assert states(url).keys() == {"finished", "queued"}
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@pytest.mark.slow
def test_a_full_disk_ends_a_launch_on_ray_in_one_line(tmp_path: Path):
    # Only the database's files are small: Ray's own processes start from this one and must be able to write.
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        [desk] = descendants(process.pid, "ray::Desk")
        subprocess.run(["prlimit", "--pid", str(desk), "--fsize=100000"], check=True)
        lines = ended(process, 2)
    assert re.match("error: .*/graft.db: the disk refuses", lines[-1])
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@contextmanager
def cluster(cpus: int) -> Iterator[str]:
    """The address of a Ray cluster on this machine, which lives as long as the process that holds it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}",
        "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", "--include-dashboard=false", "--disable-usage-stats",
    ]  # fmt: skip
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **quiet) as head:
        try:
            wait_until(lambda: bool(descendants(head.pid, "")) and _listens(port))
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.slow
def test_more_workers_than_cores_run_on_a_cluster_that_is_there_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    with cluster(cpus=2) as address:
        search(tmp_path, "launch", SPACE, "--ray-address", address, "--workers", "3", "--pack", "4")
        check_complete(f"sqlite:///{tmp_path}/graft.db")
        assert len(raw(f"sqlite:///{tmp_path}/graft.db", "SELECT id FROM workers")) == 3
