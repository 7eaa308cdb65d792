"""Workers in processes of their own, as for several GPUs of a machine; here they compute on its processor."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from graft.launching.placement import Placement
from graft.machine.devices import check_device
from spaces.errors import StudyError
from spaces.plugins.active import current, using
from spaces.plugins.bundles import Outside
from spaces.progress import Progress
from spaces.records import Directives, Offer, Report
from tests.support.launches import SPACE, check_complete, ended, metrics, running, search, undisturbed, wait_until
from workers.engine.machine import devices, locations
from workers.engine.machine.locations import Location, describe, find_instances, locations_of
from workers.pool import processes

HERE = ("launch", SPACE, "--executor", "processes", "--device", "cpu", "--workers", "2", "--pack", "4")
LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)
  MIG 3g.40gb     Device  0: (UUID: MIG-aaaaaaaa-0000-0000-0000-000000000001)
  MIG 1g.10gb     Device  1: (UUID: MIG-aaaaaaaa-0000-0000-0000-000000000002)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-99999999-2222-3333-4444-555555555555)
  MIG 1g.10gb     Device  0: (UUID: MIG-bbbbbbbb-0000-0000-0000-000000000001)
"""


def workers_of(process: Any) -> list[psutil.Process]:
    """Return the workers' processes of a launch."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if any("workers.pool.processes" in part for part in child.cmdline())]


@pytest.mark.long
def test_a_study_in_processes_has_the_numbers_of_one_in_threads_and_survives_a_killed_worker(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    with running(tmp_path, *HERE) as process:
        wait_until(lambda: len(workers_of(process)) == 2, 300)
        wait_until(lambda: (tmp_path / "graft.db").exists() and metrics_count(url) > 0, 300)
        os.kill(workers_of(process)[0].pid, signal.SIGKILL)
        ended(process, 0, 300)
    check_complete(url)
    assert metrics(url) == undisturbed()


def metrics_count(url: str) -> int:
    try:
        return len(metrics(url))
    except Exception:  # its tables are being made
        return 0


# -- a pool with a controller of ours ----------------------------------------------------------------------------------


class Controller:
    """Has nothing to train; knows who has asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.crashed: list[str] = []
        self.most = 1

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self.asked.append((offer.worker, offer.device))
        return Directives(done=len({name for name, _ in self.asked}) >= self.most)

    def handle_crash(self, worker: str) -> None:
        self.crashed.append(worker)

    handle_departure = handle_crash

    def renew(self, worker: str) -> bool:
        return True

    def sweep(self) -> None: ...
    def request_stop(self) -> None: ...
    def close(self) -> None: ...

    def progress(self) -> Progress:
        return None  # pyright: ignore[reportReturnType] # nobody reads it here


CPU = Location(device="cpu", name="cpu")


@pytest.mark.long
def test_each_worker_has_its_location_and_one_that_dies_at_once_ends_the_run_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
):
    controller = Controller()
    processes.run(controller, locations=[CPU], width=2)
    [(name, device)] = set(controller.asked)
    assert name.startswith("process-0-")
    assert device == "cpu"
    assert controller.crashed == []
    monkeypatch.setattr(processes, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(StudyError, match="every worker crashed 4 times, the last one with: signal 9"):
        processes.run(Controller(), locations=[CPU, CPU], width=2)


@pytest.mark.long
def test_an_error_of_the_controller_ends_the_run(monkeypatch: pytest.MonkeyPatch):
    controller = Controller()

    def fail(reports: Sequence[Report], offer: Offer) -> Directives:
        raise StudyError("the database is gone")

    monkeypatch.setattr(controller, "exchange", fail)
    with pytest.raises(StudyError, match="the database is gone"):
        processes.run(controller, locations=[CPU], width=2)


def test_the_controller_is_asked_in_the_context_of_the_run(monkeypatch: pytest.MonkeyPatch):
    class Looking(Controller):
        def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
            folders.append(current().folder)
            return Directives(done=True)

    def employ(self: Any, instructions: Any, variables: Any, ending: Any) -> None:
        self._on_attach(instructions.slot, ending, "process")
        self._on_exchange(instructions.slot, ending, (), Offer(worker="process", lanes=1, structure=None))

    folders = list[Path | None]()
    monkeypatch.setattr("workers.pool.processes._WorkerProcesses._employ", employ)
    with using(Outside(folder=Path("/space"))):
        processes.run(Looking(), locations=[CPU])
    assert folders == [Path("/space")]


@pytest.mark.parametrize("what", ["Pipe", "Popen"])
def test_a_process_that_cannot_be_started_is_one_that_dies_and_leaves_no_pipe(
    what: str, monkeypatch: pytest.MonkeyPatch
):
    ends, pipe = list[Any](), processes.Pipe

    def open_pipe() -> Any:
        if what == "Pipe" and len(ends) % 4 == 2:  # the second of a process
            ends.extend([None, None])
            raise OSError(errno.EMFILE, "Too many open files")
        ends.extend(pipe())
        return ends[-2:]

    def start(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(processes, "Pipe", open_pipe)
    monkeypatch.setattr(subprocess, "Popen", start)
    reason = "Too many open files" if what == "Pipe" else "Cannot allocate memory"
    with pytest.raises(StudyError, match=f"every worker crashed 4 times, the last one with: .*{reason}"):
        processes.run(Controller(), locations=[CPU], width=2)
    assert len(ends) == 4 * 4
    assert all(end.closed for end in ends if end)


# -- where they compute ------------------------------------------------------------------------------------------------


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a machine with two GPUs that compute."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    for module in (devices, locations):
        monkeypatch.setattr(module, "gpus", lambda: 2)
    monkeypatch.setattr(devices, "is_usable", lambda device: True)
    monkeypatch.setattr(locations, "device_name", lambda device: "NVIDIA H100")


@pytest.mark.usefixtures("cards")
def test_several_gpus_get_a_process_each_unless_one_is_named():
    placement = Placement().resolve()
    assert (placement.executor, placement.device) == ("processes", "cuda")
    assert placement.describe() == "cuda:0: NVIDIA H100, cuda:1: NVIDIA H100; 2 workers, a process each"
    shared = Placement(workers=4).resolve()
    assert shared.describe().endswith("; 4 workers, a process each, up to 2 on each")
    assert Placement(device="cuda:1").resolve().executor == "inline"
    named = Placement(executor="processes", device="cuda:1").resolve()
    assert [location.device for location in named.locations()] == ["cuda:1"]
    check_device("cuda:1")


def test_instances_of_a_gpu_are_told_and_each_is_its_processs_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTED}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    instances = locations_of("cuda")
    assert [location.name for location in instances] == [
        "MIG 3g.40gb of NVIDIA H100 80GB HBM3",
        "MIG 1g.10gb of NVIDIA H100 80GB HBM3",
        "MIG 1g.10gb of NVIDIA A100-SXM4-80GB",
    ]
    assert {location.device for location in instances} == {"cuda"}
    assert instances[2].environment == {"CUDA_VISIBLE_DEVICES": "MIG-bbbbbbbb-0000-0000-0000-000000000001"}
    assert describe(instances, 3).endswith("; 3 workers, a process each")
    instance = "MIG-aaaaaaaa-0000-0000-0000-000000000002"
    assert [uuid for _, uuid in find_instances({"CUDA_VISIBLE_DEVICES": instance})] == [instance]
    assert find_instances({"CUDA_VISIBLE_DEVICES": "0"}) == []


def test_gpus_beside_a_divided_one_have_workers_too(monkeypatch: pytest.MonkeyPatch):
    whole, undivided = "GPU-22222222-0000-0000-0000-000000000000", "GPU-33333333-0000-0000-0000-000000000000"
    cards = f"GPU 2: NVIDIA A100 (UUID: {whole})\nGPU 3: NVIDIA A30 (UUID: {undivided})\n"
    answers = {"-L": LISTED + cards, "--query-gpu=uuid,mig.mode.current": f"{whole}, [N/A]\n{undivided}, Enabled\n"}
    monkeypatch.setattr(locations, "run_nvidia_smi", lambda question, *_: answers[question])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [location.name for location in locations_of("cuda")][3:] == ["NVIDIA A100"], "the A30 has no instance yet"
    assert locations_of("cuda")[3].environment == {"CUDA_VISIBLE_DEVICES": whole}
    instance = "MIG-aaaaaaaa-0000-0000-0000-000000000002"
    chosen = find_instances({"CUDA_VISIBLE_DEVICES": f"{whole}, {instance}"})
    assert [uuid for _, uuid in chosen] == [instance, whole]
    assert [uuid for _, uuid in find_instances({"CUDA_VISIBLE_DEVICES": instance})] == [instance]
    answers["-L"] = cards
    assert find_instances({}) == [], "cards have numbers where none is divided"


def test_without_an_answer_of_nvidia_smi_there_are_no_instances(monkeypatch: pytest.MonkeyPatch):
    def fail(*arguments: Any, **options: Any) -> Any:
        raise subprocess.TimeoutExpired("nvidia-smi", 20)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("subprocess.run", fail)
    assert find_instances({}) == []


@pytest.mark.long
def test_what_a_launch_cannot_have_is_one_line(tmp_path: Path):
    lines = search(tmp_path, "launch", SPACE, "--executor", "processes", "--ray-address", "auto", status=2)
    assert lines == ["error: --ray-address: 'auto' needs --executor ray, or auto"]
