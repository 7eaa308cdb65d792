"""A Ray cluster of several nodes: they come and go during a study, and its numbers are those of one process."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.databases import raw
from tests.support.launches import (
    ROOT,
    SPACE,
    check_complete,
    counts,
    ended,
    finished,
    metrics,
    running,
    search,
    wait_until,
)
from tests.support.ray_clusters import Nodes, open_nodes
from workers.numerics.native import cache_folder

pytestmark = pytest.mark.long  # Ray takes ten seconds to start

LONGER = ("--steps", "4000", "--set", "training.validate_every=1000")
"""Half a minute on one core: time enough for a node to come and a worker to begin on it."""


@contextmanager
def new_cluster() -> Generator[Nodes]:
    """Yield a cluster without nodes, with a token of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        with open_nodes() as nodes:
            yield nodes


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with new_cluster() as nodes:
        yield nodes


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[tuple[Nodes, str]]:
    """Yield a cluster of two nodes with a core each, and its address, for tests that take none away."""
    with new_cluster() as nodes:
        address = nodes.add(cpus=1)
        nodes.add(cpus=1)
        yield nodes, address


def workers(url: str) -> int:
    return len(raw(url, "SELECT id FROM workers"))


def undisturbed(folder: Path) -> dict[tuple[int, int, str, str], float]:
    """Return what the longer study leaves in one process."""
    folder.mkdir()
    search(folder, "launch", SPACE, *LONGER)
    return metrics(f"sqlite:///{folder}/graft.db")


def test_a_study_runs_on_all_nodes_of_a_cluster_and_its_workers_keep_logs(two_nodes: tuple[Nodes, str], tmp_path: Path):
    (nodes, address), url = two_nodes, f"sqlite:///{tmp_path}/graft.db"
    search(tmp_path, "launch", SPACE, "--ray-address", address, "--pack", "4")
    check_complete(url)
    assert workers(url) == 2
    written = nodes.logs("worker-*.err")
    assert written.count("begins on node") == 2
    assert "4 lanes free; starts 4 trials" in written
    assert written.count("is done") == 2
    assert written.count("/py_modules_files/") == 2, "nodes run the code that was sent"
    token = os.environ["RAY_AUTH_TOKEN"]
    assert token not in nodes.logs("*.*")
    assert token.encode() not in (tmp_path / "graft.db").read_bytes()


def test_a_cluster_with_another_token_is_one_line(
    two_nodes: tuple[Nodes, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _, address = two_nodes
    monkeypatch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
    lines = search(tmp_path, "launch", SPACE, "--ray-address", address, status=2)
    assert lines[1:] == [f"error: --ray-address: the cluster at {address} has another token"]


@pytest.mark.slow
def test_nodes_that_join_are_used_and_those_that_are_killed_cost_nothing_finished(nodes: Nodes, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    address = nodes.add(cpus=0)
    nodes.add(cpus=1)
    with running(tmp_path, "launch", SPACE, *LONGER, "--ray-address", address, "--pack", "4") as process:
        wait_until(lambda: finished(url) > 0)
        assert workers(url) == 1
        nodes.add(cpus=1)
        wait_until(lambda: workers(url) == 2)
        nodes.kill(1)
        nodes.kill(2)
        nodes.add(cpus=1)
        ended(process, 0)
    assert workers(url) == 3
    assert metrics(url) == pytest.approx(undisturbed(tmp_path / "alone"), rel=1e-9, abs=1e-9)
    assert raw(url, "SELECT DISTINCT state FROM trials") == [("finished",)]


@pytest.mark.slow
def test_a_head_that_dies_ends_a_launch_in_one_line_and_the_study_resumes(nodes: Nodes, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    address = nodes.add(cpus=1)
    with running(tmp_path, "launch", SPACE, "--ray-address", address, "--pack", "4") as process:
        wait_until(lambda: finished(url) > 3)
        nodes.kill(0)
        lines = ended(process, 2)
    assert lines[-1].startswith(f"error: the Ray cluster at {address} does not go on: "), lines
    assert lines[-1].endswith("what was recorded is kept, and the study can be resumed")
    assert raw(url, "SELECT state FROM studies") == [("stopped",)]
    search(tmp_path, "resume", "tiny")
    check_complete(url)


@pytest.mark.slow
def test_an_environment_that_cannot_be_prepared_is_one_line(nodes: Nodes, tmp_path: Path):
    (tmp_path / "env.yaml").write_text("pip: [graft-search-no-such-package==0.0.0]\n")
    address = nodes.add(cpus=1)
    lines = search(tmp_path, "launch", SPACE, "--ray-address", address, "--ray-env", "env.yaml", status=2)
    assert "--ray-env: the cluster cannot prepare it" in lines[-1], lines


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "expected"), [((), 3), (("--workers", "5"), 5)])
def test_nodes_with_different_numbers_of_gpus_have_a_worker_on_each_or_on_each_fraction(
    nodes: Nodes, tmp_path: Path, asked: tuple[str, ...], expected: int
):
    url = f"sqlite:///{tmp_path}/graft.db"
    address = nodes.add(cpus=1)
    nodes.add(cpus=0, gpus=2)
    nodes.add(cpus=1, gpus=1)
    endless = ("--steps", "1000000", "--set", "training.validate_every=20", "--ray-address", address, "--pack", "2")
    with running(tmp_path, "launch", SPACE, *endless, *asked) as process:
        wait_until(lambda: bool(counts(url)) and workers(url) == expected, 240)
        process.terminate()
        ended(process, 130)
    assert workers(url) == expected


@pytest.mark.slow
def test_a_worker_that_finds_no_place_does_not_keep_a_study_from_its_end(nodes: Nodes, tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    address = nodes.add(cpus=2)
    nodes.hold()
    search(tmp_path, "launch", SPACE, "--ray-address", address, "--workers", "2", "--pack", "4")
    check_complete(url)
    assert workers(url) == 1


@pytest.mark.slow
def test_a_job_of_slurm_that_runs_out_of_time_is_queued_again_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path}/graft.db"
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_folder().parent))  # the native steps stay where they are
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SEARCH_STORAGE", url)
    for name, value in {"JOB_ID": "77", "JOB_NUM_NODES": "2", "CPUS_ON_NODE": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with job(tmp_path) as process:
        wait_until(lambda: bool(counts(url)) and finished(url) > 0, 240)
        process.terminate()
        assert process.wait(240) == 130
    assert (tmp_path / "requeued").read_text() == "requeue 77\n"
    with job(tmp_path) as process:
        assert process.wait(240) == 0
    monkeypatch.delenv("SEARCH_STORAGE")
    assert metrics(url) == pytest.approx(undisturbed(tmp_path / "alone"), rel=1e-9, abs=1e-9)
    assert not list(tmp_path.glob(".graft-token*")), "a token outlives no job"


PROGRAMS = {
    "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
    "scontrol": 'echo "$@" >> "$HOME/requeued"',
    "search": 'exec python -c "from cli.main import main; main()" "$@"',
}
"""What SLURM would do on two nodes, done on this machine."""


@contextmanager
def job(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the file of the documentation as SLURM runs it."""
    script = ROOT / "docs" / "slurm.sbatch"
    process = subprocess.Popen(["bash", script, SPACE, *LONGER, "--pack", "4"], cwd=folder, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
