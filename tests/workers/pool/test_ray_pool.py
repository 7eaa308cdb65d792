"""The Ray executor: the same numbers as in one process, whatever of it is killed on the way."""

from __future__ import annotations

import ipaddress
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from spaces.errors import StorageError, StudyError
from spaces.records import Directives
from tests.support.launches import ROOT, SPACE, check_complete, ended, finished, running, search, states, wait_until
from tests.support.ray_clusters import descendants
from tests.support.ray_pool import FakeController, offer
from workers.pool.ray.controller_actor import ControllerActor

pytestmark = pytest.mark.long  # Ray takes ten seconds to start

RAY = ("launch", SPACE, "--executor", "ray", "--pack", "4")


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


def test_a_restarted_worker_takes_over_its_slot_and_a_ghost_is_sent_home(controller: FakeController):
    actor = ControllerActor(lambda: controller)
    actor.attach(0, "first")
    actor.attach(1, "other")
    actor.attach(0, "second")
    assert actor.exchange([], offer("first")) == Directives(done=True)
    assert not actor.exchange([], offer("second")).done
    assert controller.told == ["lost first", "exchange second"]


def test_only_the_holder_of_a_slot_renews_its_lease(controller: FakeController):
    actor = ControllerActor(lambda: controller)
    actor.attach(0, "first")
    assert actor.renew("first")
    actor.attach(0, "second")
    assert not actor.renew("first")
    assert actor.renew("second")
    assert controller.told == ["renew first", "lost first", "renew second"]


def test_a_worker_whose_lease_ran_out_is_told_so_and_begins_anew_in_its_slot(controller: FakeController):
    actor = ControllerActor(lambda: controller)
    actor.attach(0, "first")
    controller.answer = Directives(lease_lost=True)
    assert actor.exchange([], offer("first")) == Directives(lease_lost=True)
    controller.answer = Directives()
    actor.attach(0, "again")
    assert actor.exchange([], offer("again")) == Directives()


def test_what_a_sweep_finds_broken_ends_the_run(controller: FakeController):
    actor = ControllerActor(lambda: controller)
    actor.attach(0, "a")
    actor.sweep()
    controller.error = StorageError("the database is gone")
    actor.sweep()
    controller.error = None
    actor.sweep()
    assert controller.told == ["sweep"], "after an error nobody writes"
    assert actor.exchange([], offer("a")).done
    with pytest.raises(StorageError, match="the database is gone"):
        actor.progress()


def test_an_error_of_the_controller_sends_every_worker_home_and_reaches_the_driver(controller: FakeController):
    actor = ControllerActor(lambda: controller)
    actor.attach(0, "a")
    actor.attach(1, "b")
    assert actor.progress() == 7
    controller.error = StorageError("no space left")
    assert actor.exchange([], offer("a")).done
    controller.error = None
    assert actor.exchange([], offer("b")).done
    assert controller.told == []
    with pytest.raises(StorageError, match="no space left"):
        actor.progress()


def test_a_slot_in_which_workers_only_die_is_an_error_that_the_driver_is_told(controller: FakeController):
    actor = ControllerActor(lambda: controller)
    actor.attach(0, "a")
    actor.give_up("out of memory")
    with pytest.raises(StudyError, match="every worker crashed 4 times, the last one with: out of memory"):
        actor.progress()


def test_leases_are_renewed_and_progress_is_shown_while_an_exchange_waits():
    program = """
import ray
from tests.support.ray_pool import Stuck, offer
from workers.pool.ray import tune as ray_tune
from workers.pool.ray.connecting import swift

ray.init(address="local", include_dashboard=False, num_cpus=1, log_to_driver=False)
actor = ray_tune._start_actor(Stuck)
ray.get(actor.attach.remote(0, "a"))
waiting = actor.exchange.remote([], offer("a"))
sweep = actor.sweep.remote()
print(ray.get(swift(actor.renew)("a")), ray.get(swift(actor.progress)()))
print(ray.wait([waiting, sweep], timeout=0)[0])
ray.get(swift(actor.request_stop)())
print(ray.get(waiting).rounds)
ray.shutdown()
"""
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=environment)
    assert found.stdout.splitlines() == ["True 7", "[]", "7.0"], found.stderr


def test_a_study_on_ray_listens_on_this_machine_alone_and_survives_a_killed_worker_with_the_same_numbers(
    tmp_path: Path,
):
    """A15 of the look at 0.1.0: a cluster of our own listened on all networks."""
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        ours = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        listening = [one for child in ours for one in child.net_connections("inet") if one.status == "LISTEN"]
        assert len(listening) > 3
        addresses = {ipaddress.ip_address(one.laddr.ip) for one in listening}
        assert all((getattr(one, "ipv4_mapped", None) or one).is_loopback for one in addresses), addresses
        workers = descendants(process.pid, "ray::ImplicitFunc")
        os.kill(workers[0], signal.SIGKILL)
        lines = ended(process, 0)
    assert lines[-1].startswith("tiny: 48 finished of 48; best tvd/bema ")
    check_complete(url)


@pytest.mark.slow
def test_a_killed_controller_ends_a_launch_in_one_line_and_the_study_resumes(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        os.kill(*descendants(process.pid, "ray::ControllerActor"), signal.SIGKILL)
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
    assert lines[-1] == "stopped with everything kept; resume it with `search resume tiny`"
    assert states(url).keys() == {"finished", "queued"}
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@pytest.mark.slow
def test_a_full_disk_ends_a_launch_on_ray_in_one_line(tmp_path: Path):
    # Only the database's files are small: Ray's own processes start from this one and must be able to write.
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *RAY, "--workers", "2") as process:
        wait_until(lambda: finished(url) > 3)
        [actor] = descendants(process.pid, "ray::ControllerActor")
        subprocess.run(["prlimit", "--pid", str(actor), "--fsize=100000"], check=True)
        lines = ended(process, 2)
    assert re.match("error: .*/graft.db: the disk refuses", lines[-1])
    search(tmp_path, "resume", "tiny")
    check_complete(url)
