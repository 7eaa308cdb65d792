"""A card that torch cannot use is told in one line with the cure; the machines here are made up of files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.cuda._utils import _get_device_index

from graft.machine.devices import check_device, describe_unused_gpu, similar_device
from spaces.errors import StudyError
from workers.engine.machine import devices, locations, process
from workers.engine.machine.locations import locations_of
from workers.engine.machine.nvidia import Driver, TorchBuild, explain_obstacle, find_driver, is_hidden
from workers.engine.machine.process import prepare, use_device

pytestmark = pytest.mark.fast

VERSIONS = {
    "535.104.05": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n",
    "580.65.06": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs@host)\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n",
}
H200 = Driver("580.65.06", ("NVIDIA H200",))


def write_proc(folder: Path, version: str, *models: str) -> Path:
    """Return the driver's files, as Linux shows them."""
    for number, model in enumerate(models):
        card = folder / "gpus" / f"0000:0{number}:00.0"
        card.mkdir(parents=True)
        (card / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 0\nGPU UUID: \t GPU-1\n")
    (folder / "version").write_text(version)
    return folder


@pytest.fixture
def no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)


@pytest.mark.parametrize("version", VERSIONS)
def test_driver_and_cards_are_read_from_proc(version: str, tmp_path: Path):
    proc = write_proc(tmp_path, VERSIONS[version], "NVIDIA H200", "NVIDIA H200", "Tesla T4")
    driver = find_driver(proc)
    assert driver == Driver(version, ("NVIDIA H200", "NVIDIA H200", "Tesla T4"))
    assert str(driver) == f"2 x NVIDIA H200, Tesla T4, driver {version}"


@pytest.mark.usefixtures("no_program")
def test_a_driver_without_a_card_is_none_and_one_without_a_version_says_so(tmp_path: Path):
    assert find_driver(tmp_path / "nothing") is None
    assert find_driver(write_proc(tmp_path, "NVRM version: ?\n")) is None
    assert str(find_driver(write_proc(tmp_path, "NVRM version: ?\n", "Tesla T4"))) == (
        "Tesla T4, driver of unknown version"
    )


@pytest.mark.parametrize(
    ("script", "driver"),
    [
        ("echo '560.94, NVIDIA GeForce RTX 4090'", Driver("560.94", ("NVIDIA GeForce RTX 4090",))),
        ("echo 'NVIDIA-SMI has failed'; exit 9", None),
        ("echo 'No devices were found'", None),
    ],
)
def test_where_proc_has_nothing_nvidia_smi_is_asked(
    script: str, driver: Driver | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_driver(tmp_path / "nothing") == driver


def test_an_nvidia_smi_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def hang(*arguments: Any, **options: Any) -> Any:
        raise subprocess.TimeoutExpired("nvidia-smi", options["timeout"])

    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("subprocess.run", hang)
    assert find_driver(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("listed", "hidden"), [("", True), ("-1", True), ("NoDevFiles", True), ("0", False), ("1,0", False), (None, False)]
)
def test_cards_are_hidden_by_the_variable_alone(listed: str | None, hidden: bool):
    assert is_hidden({} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}) is hidden


@pytest.mark.parametrize(
    ("driver", "torch_build", "words"),
    [
        (H200, TorchBuild("2.13.0+cpu", None, ""), "torch 2.13.0+cpu is built without CUDA; install a build with it"),
        (
            Driver("535.104.05", ("Tesla T4",)),
            TorchBuild("2.13.0+cu130", "13.0", ""),
            "torch 2.13.0+cu130 is built for CUDA 13.0, which needs driver 580 or newer; update the driver",
        ),
        (
            Driver("470.1", ("Tesla T4",)),
            TorchBuild("2.9.0+cu126", "12.6", ""),
            "which needs driver 525 or newer; update the driver",
        ),
        (H200, TorchBuild("2.13.0+cu130", "13.0", ""), "(CUDA 13.0) cannot compute on it, which does not see it"),
        (
            Driver("", ("Tesla K80",)),
            TorchBuild("2.13.0+cu130", "13.0", "CUDA error: no kernel image is available"),
            "(CUDA 13.0) cannot compute on it: CUDA error: no kernel image is available",
        ),
        (H200, TorchBuild("9.0", "27.1", ""), "(CUDA 27.1) cannot compute on it"),
    ],
)
def test_each_obstacle_has_its_cure_in_one_line(driver: Driver, torch_build: TorchBuild, words: str):
    message = explain_obstacle(driver, torch_build)
    assert message.startswith(f"{driver} is here, but torch {torch_build.version} ")
    assert words in message
    assert "\n" not in message


Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make this a machine with a card, and with a torch that answers in some way."""

    def make(*, driver: Driver | None = H200, cuda: str | None = "13.0", fault: str | None = "no CUDA") -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(devices, "find_driver", lambda: driver)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(devices, "_find_fault", lambda device: fault if "cuda" in device else None)
        monkeypatch.setattr(devices, "gpus", lambda: 0 if fault else 1)

    return make


def test_a_card_without_use_is_a_warning_and_the_cpu_is_taken(machine: Machine):
    machine(cuda=None)
    warning = describe_unused_gpu()
    assert warning
    assert warning.startswith("training on the CPU: NVIDIA H200, driver 580.65.06 is here, but torch ")
    assert "built without CUDA" in warning
    assert devices.default_device() == "cpu"
    with pytest.raises(StudyError, match=r"^--device: 'cuda' cannot be used: NVIDIA H200, driver .* without CUDA"):
        check_device("cuda")
    with pytest.raises(StudyError, match=r"^--device: 'tpu' is not on this machine; use cpu, or cuda"):
        check_device("tpu")


def test_nothing_is_told_where_the_card_computes_or_is_hidden_or_there_is_none(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
):
    machine(fault=None)
    assert describe_unused_gpu() is None
    assert devices.default_device() == "cuda"
    check_device("cuda:0")
    machine(driver=None)
    assert describe_unused_gpu() is None
    machine()
    assert describe_unused_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert describe_unused_gpu() is None


def test_a_card_that_torch_sees_but_has_no_kernels_for_is_not_used(monkeypatch: pytest.MonkeyPatch):
    def fail(*size: Any, device: str) -> Any:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device\nCUDA kernel errors")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch, "zeros", fail)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(devices, "find_driver", lambda: Driver("580.65.06", ("Tesla K80",)))
    assert devices.default_device() == "cpu"
    message = devices.describe_unused_gpu()
    assert message
    assert message.endswith(
        "cannot compute on it: CUDA error: no kernel image is available for execution on the device"
    )


def test_products_of_float32_are_exact_and_the_workspace_of_cublas_is_set(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    prepare()
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"
    assert torch.backends.cudnn.conv.fp32_precision == "ieee"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    prepare()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_a_worker_of_a_gpu_computes_on_its_own(monkeypatch: pytest.MonkeyPatch):
    chosen, streams = list[int](), list[tuple[torch.device, int]]()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.append(_get_device_index(device)))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "default")
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "default")
    monkeypatch.setattr(process, "use_stream", lambda device, slot: streams.append((device, slot)))
    gpu = torch.device("cuda:1")
    use_device(gpu)
    use_device(torch.device("cpu"))
    assert chosen == [1]
    assert streams == [(gpu, 0)], "nothing is computed on the stream on which no graph can be captured"
    chosen.clear()
    streams.clear()
    monkeypatch.setattr(devices, "gpus", lambda: 1)
    monkeypatch.setattr(devices, "is_usable", lambda device: True)
    monkeypatch.setattr(locations, "find_instances", lambda: [("MIG 1g.10gb of NVIDIA H100", "MIG-1")])
    names = [devices.default_device(), similar_device(None), locations_of("cuda")[0].device]
    for name in names:
        use_device(torch.device(name), 2)
    assert names == ["cuda"] * 3
    assert chosen == [0] * 3, "torch takes no device without a number"
    assert streams == [(torch.device("cuda", 0), 2)] * 3
