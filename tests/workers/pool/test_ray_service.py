"""A service on a Ray cluster: several studies on the same devices, and what of it may be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest

from graft.launching.placement import Placement
from spaces.errors import StudyError
from tests.support.databases import Server, raw
from tests.support.launches import ROOT, SPACE, Numbers, ended, finished, kill, numbers, running, search, wait_until
from tests.support.ray_clusters import Nodes, descendants, open_nodes
from tests.support.serve import OTHER, UNHURRIED, queue

WORKER = "ray::PlacedWorker"
BOTH = """
import os, time
from search.steering.controller import Controller
exchange = Controller.exchange

def wait_and_exchange(self, reports, offer):
    while reports and not os.path.exists("go"):
        time.sleep(0.05)
    return exchange(self, reports, offer)

Controller.exchange = wait_and_exchange
"""
"""Run before a service, in which no trial then ends until there is a file `go`."""


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    with open_nodes() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """Return what launches of the studies leave, one after the other."""
    folder = tmp_path_factory.mktemp("launched")
    search(folder, "launch", SPACE, "--study", "a", "--workers", "2", "--pack", "8")
    search(folder, "launch", SPACE, "--study", "b", *OTHER, "--workers", "2", "--pack", "8")
    return numbers(f"sqlite:///{folder}/graft.db")


def serve(address: str, url: str) -> tuple[str, ...]:
    return ("serve", "--ray-address", address, "--pack", "8", "--storage", url)


def submit_first(folder: Path, url: str) -> None:
    search(folder, "submit", SPACE, "--name", "a", "--owner", "ann", "--storage", url)


def submit_second(folder: Path, url: str) -> None:
    search(folder, "submit", SPACE, "--name", "b", "--owner", "bo", *OTHER, "--storage", url)


def check_done(url: str, launched: Numbers) -> None:
    assert {(entry.state, entry.lanes) for entry in queue(url).values()} == {("done", 0)}
    assert numbers(url) == launched
    assert raw(url, "SELECT DISTINCT state FROM trials") == [("finished",)]


@pytest.mark.long
def test_studies_of_two_people_on_two_nodes_have_the_numbers_of_launches(
    nodes: Nodes, postgres: Server, tmp_path: Path, launched: Numbers
):
    """The second is submitted by another process over PostgreSQL, as from another machine."""
    address = nodes.add(cpus=1)
    nodes.add(cpus=1)
    with postgres.database() as url:
        submit_first(tmp_path, url)
        with running(tmp_path, *serve(address, url), before=BOTH) as process:
            wait_until(lambda: queue(url)["a"].lanes > 0)
            submit_second(tmp_path, url)
            wait_until(lambda: queue(url)["b"].lanes > 0)
            (tmp_path / "go").touch()
            refused = search(tmp_path, *serve(address, url), status=2)
            assert re.match(
                r"error: the service of .* is being run by process \d+ on .*; stop it first", refused[-1]
            ), refused
            wait_until(lambda: {entry.state for entry in queue(url).values()} == {"done"})
            process.terminate()
            lines = ended(process, 130)
        assert re.fullmatch(rf"serves .*, 16 lanes on the Ray cluster {address}", lines[0]), lines
        check_done(url, launched)
        of_study = "SELECT count(*) FROM workers JOIN studies ON studies.id = study_id GROUP BY studies.name"
        assert raw(url, of_study) == [(2,), (2,)], "each study has a worker on each node"


@pytest.mark.long
def test_a_worker_a_node_and_the_service_may_be_killed(nodes: Nodes, tmp_path: Path, launched: Numbers):
    url = f"sqlite:///{tmp_path}/graft.db"
    address = nodes.add(cpus=1)
    nodes.add(cpus=1)
    submit_first(tmp_path, url)
    submit_second(tmp_path, url)
    with running(tmp_path, *serve(address, url), before=UNHURRIED) as process:
        wait_until(lambda: sum(finished(url, name) for name in "ab") >= 4)
        os.kill(descendants(nodes.process.pid, WORKER)[0], signal.SIGKILL)
        nodes.kill(1)
        done = sum(finished(url, name) for name in "ab")
        wait_until(lambda: sum(finished(url, name) for name in "ab") >= done + 8)
        before = numbers(url)
        kill(process)
    wait_until(lambda: not descendants(nodes.process.pid, WORKER))
    assert {entry.state for entry in queue(url).values()} <= {"running", "done"}
    lines = search(tmp_path, *serve(address, url), "--until-empty")
    assert re.match(r"serves .*, 8 lanes on the Ray cluster", lines[0]), lines
    check_done(url, launched)
    assert before.items() <= launched.items()


@pytest.mark.slow
def test_a_head_that_dies_ends_the_service_in_one_line_and_another_goes_on(
    nodes: Nodes, tmp_path: Path, launched: Numbers
):
    url = f"sqlite:///{tmp_path}/graft.db"
    address = nodes.add(cpus=1)
    submit_first(tmp_path, url)
    submit_second(tmp_path, url)
    with running(tmp_path, *serve(address, url), before=UNHURRIED) as process:
        wait_until(lambda: sum(finished(url, name) for name in "ab") >= 4)
        nodes.kill(0)
        lines = ended(process, 2)
    assert lines[-1].startswith(f"error: the Ray cluster at {address} does not go on: "), lines
    assert {entry.state for entry in queue(url).values()} == {"waiting"}
    assert {row for (row,) in raw(url, "SELECT state FROM studies")} == {"stopped"}
    with open_nodes() as others:
        search(tmp_path, *serve(others.add(cpus=2), url), "--until-empty")
    check_done(url, launched)


@pytest.mark.slow
def test_a_service_goes_on_with_nodes_that_join(nodes: Nodes, tmp_path: Path, launched: Numbers):
    url = f"sqlite:///{tmp_path}/graft.db"
    nodes.add(cpus=0)
    address = nodes.add(cpus=1)
    submit_first(tmp_path, url)
    submit_second(tmp_path, url)
    with running(tmp_path, *serve(address, url), before=UNHURRIED) as process:
        wait_until(lambda: sum(finished(url, name) for name in "ab") >= 2)
        nodes.kill(1)
        wait_until(lambda: queue(url)["a"].reason == "waits for a device: the cluster has none now")
        nodes.add(cpus=1)
        nodes.add(cpus=1)
        wait_until(lambda: {entry.state for entry in queue(url).values()} == {"done"})
        process.terminate()
        lines = ended(process, 130)
    notices = [line for line in lines if line.startswith("the cluster has ")]
    assert notices[0] == "the cluster has 0 workers now, 0 lanes"
    assert notices[-1] == "the cluster has 2 workers now, 16 lanes"
    check_done(url, launched)


@pytest.mark.slow
def test_an_environment_that_cannot_be_prepared_is_one_line(nodes: Nodes, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    (tmp_path / "env.yaml").write_text("pip: [graft-search-no-such-package==0.0.0]\n")
    address = nodes.add(cpus=1)
    submit_first(tmp_path, url)
    lines = search(tmp_path, *serve(address, url), "--ray-env", "env.yaml", status=2)
    assert "--ray-env: the cluster cannot prepare it" in lines[-1], lines
    assert queue(url)["a"].state == "waiting"


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "slots"), [(None, 3), (2, 2), (6, 6)])
def test_all_workers_of_a_slot_have_the_same_gpu_and_each_gpu_as_many_slots(
    nodes: Nodes, workers: int | None, slots: int
):
    address = nodes.add(cpus=1)
    nodes.add(cpus=0, gpus=2)
    nodes.add(cpus=2, gpus=1)
    program = f"""
import os, sys
import workers.pool.ray
import ray
from graft.shadowing import PACKAGES
from workers.pool.ray.cluster import Cluster
from workers.pool.ray.connecting import connect
from workers.pool.ray.device_slots import DeviceSlots

class Asked:
    def where(self):
        return ray.get_runtime_context().get_node_id(), os.environ["CUDA_VISIBLE_DEVICES"]

connect(Cluster(address="{address}", workers={workers}, shared=True, packages=PACKAGES))
slots = DeviceSlots({workers})
for slot in slots.update():
    actors = [ray.remote(**slots.options(slot))(Asked).remote() for _ in range(4)]
    print(*{{" ".join(ray.get(one.where.remote())) for one in actors}}, sep=";")
"""
    child = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=os.environ)
    gpus = Counter(child.stdout.splitlines())
    assert sum(gpus.values()) == slots, child.stderr
    assert not any(";" in gpu for gpu in gpus), "a slot has one GPU"
    assert set(gpus.values()) == {max(1, slots // 3)}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--ray-address", "h:1", "--devices", "cpu"), "--ray-address: leave out --devices; one option says where"),
        (("--ray-address", "h:1", "--device", "cpu"), "--ray-address: leave out --device; one option says where"),
        (("--ray-address", "h:1"), "--ray-address: 'h:1' needs a token, and there is none at "),
        (("--ray-env", "env.yaml"), "--ray-env: 'env.yaml' needs --ray-address"),
        (("--ray-address", "h:1", "--ray-env", "env.yaml"), "--ray-env: env.yaml cannot be read"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], line: str
):
    forkserver.ensure_running()  # what launches are forked from compiles into the cache of the home it starts with
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    if len(options) == 4 and "--ray-env" in options:
        monkeypatch.setenv("RAY_AUTH_TOKEN", "c0ffee")
    lines = search(tmp_path, "serve", *options, status=2)
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"error: {line}")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_cluster_that_is_not_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    lines = search(tmp_path, *serve("127.0.0.1:1", f"sqlite:///{tmp_path}/graft.db"), status=2)
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: no Ray cluster answers at 127.0.0.1:1: ")


def test_ray_is_told_to_be_missing_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(StudyError, match=r"needs Ray: pip install 'graft-search\[ray\]'"):
        Placement(executor="ray", ray_address="127.0.0.1:1").cluster(shared=True)
