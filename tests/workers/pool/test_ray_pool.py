"""The Ray executor: the same numbers as in one process, whatever of it is killed on the way."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from spaces.errors import StorageError, StudyError
from spaces.records import Directives
from tests.support.launches import SPACE, check_complete, ended, finished, running, search, states, wait_until
from tests.support.ray_clusters import descendants
from tests.support.ray_pool import FakeController, offer
from workers.pool.controller_proxy import ControllerProxy

pytestmark = pytest.mark.long  # Ray takes ten seconds to start

RAY = ("launch", SPACE, "--executor", "ray", "--pack", "4")


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


def test_a_restarted_worker_takes_over_its_slot_and_a_ghost_is_sent_home(controller: FakeController):
    proxy = ControllerProxy(controller)
    proxy.attach(0, "first")
    proxy.attach(1, "other")
    proxy.attach(0, "second")
    assert proxy.exchange([], offer("first")) == Directives(done=True)
    assert not proxy.exchange([], offer("second")).done
    assert controller.told == ["lost first", "exchange second"]


def test_only_the_holder_of_a_slot_renews_its_lease(controller: FakeController):
    proxy = ControllerProxy(controller)
    proxy.attach(0, "first")
    assert proxy.renew("first")
    proxy.attach(0, "second")
    assert not proxy.renew("first")
    assert proxy.renew("second")
    assert controller.told == ["renew first", "lost first", "renew second"]


def test_a_worker_whose_lease_ran_out_is_told_so_and_begins_anew_in_its_slot(controller: FakeController):
    proxy = ControllerProxy(controller)
    proxy.attach(0, "first")
    controller.answer = Directives(lease_lost=True)
    assert proxy.exchange([], offer("first")) == Directives(lease_lost=True)
    controller.answer = Directives()
    proxy.attach(0, "again")
    assert proxy.exchange([], offer("again")) == Directives()


def test_what_a_sweep_finds_broken_ends_the_run(controller: FakeController):
    proxy = ControllerProxy(controller)
    proxy.attach(0, "a")
    proxy.sweep()
    controller.error = StorageError("the database is gone")
    proxy.sweep()
    controller.error = None
    proxy.sweep()
    assert controller.told == ["sweep"], "after an error nobody writes"
    assert proxy.exchange([], offer("a")).done
    with pytest.raises(StorageError, match="the database is gone"):
        proxy.progress()


def test_an_error_of_the_controller_sends_every_worker_home_and_is_raised_by_progress(controller: FakeController):
    proxy = ControllerProxy(controller)
    proxy.attach(0, "a")
    proxy.attach(1, "b")
    assert proxy.progress() == 7
    controller.error = StorageError("no space left")
    assert proxy.exchange([], offer("a")).done
    controller.error = None
    assert proxy.exchange([], offer("b")).done
    assert controller.told == []
    with pytest.raises(StorageError, match="no space left"):
        proxy.progress()


def test_slots_in_which_workers_only_die_are_an_error(controller: FakeController):
    proxy = ControllerProxy(controller)
    proxy.attach(0, "a")
    proxy.give_up("out of memory")
    with pytest.raises(StudyError, match="every worker crashed 4 times, the last one with: out of memory"):
        proxy.progress()


def test_a_study_on_ray_listens_on_this_machine_alone_and_survives_a_killed_worker_with_the_same_numbers(
    tmp_path: Path,
):
    """A15 of the look at 0.1.0: a cluster of our own listened on all networks."""
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        ours = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        listening = [
            connection
            for child in ours
            for connection in child.net_connections("inet")
            if connection.status == "LISTEN"
        ]
        assert len(listening) > 3
        addresses = {ipaddress.ip_address(connection.laddr.ip) for connection in listening}
        assert all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address in addresses), addresses
        workers = descendants(process.pid, "ray::PackTrial")
        os.kill(workers[0], signal.SIGKILL)
        lines = ended(process, 0)
    assert lines[-1].startswith("tiny: 48 finished of 48; best tvd/bema ")
    check_complete(url)


@pytest.mark.slow
def test_a_killed_process_of_ray_ends_a_launch_in_one_line_and_the_study_resumes(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        [agent] = [
            child for child in psutil.Process(process.pid).children() if "ray.agent" in " ".join(child.cmdline())
        ]
        agent.kill()
        lines = ended(process, 2)
    assert lines[-1].startswith("error: the Ray cluster does not go on: its process ended")
    assert lines[-1].endswith("what was recorded is kept, and the study can be resumed")
    assert states(url).keys() == {"finished", "queued"}
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@pytest.mark.slow
def test_a_killed_launch_on_ray_ends_its_workers_and_the_study_resumes(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        # Agents of a node, which hold no device, look for it less often.
        assert not psutil.wait_procs([child for child in below if not child.name().endswith("Agent")], timeout=60)[1]
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
    assert lines[-1] == "stopped with everything kept; resume it with `search resume tiny`"
    assert states(url).keys() == {"finished", "queued"}
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@pytest.mark.slow
def test_a_full_disk_ends_a_launch_on_ray_in_one_line(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        subprocess.run(["prlimit", "--pid", str(process.pid), "--fsize=100000"], check=True)
        lines = ended(process, 2)
    assert re.match("error: .*/graft.db: the disk refuses", lines[-1])
    search(tmp_path, "resume", "tiny")
    check_complete(url)
