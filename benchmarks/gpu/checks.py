"""Whether what trains on a device is right: kernels against what they replace, packs against their trials alone.

Each check raises AssertionError with what differs. Needs torch, numpy and PyYAML alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.support.trials import config, trial
from workers.engine.fused.trust import SECONDS, run_check
from workers.engine.machine.nvidia import find_driver
from workers.engine.pack import Pack
from workers.numerics import stream_kernels
from workers.numerics.cuda.compiler import compiler_version
from workers.numerics.tracing import tree_leaves
from workers.training.cuda_update import cuda_update_of
from workers.training.recipe import Recipe, layout_of

Check = Callable[[], dict[str, Any]]
STEPS = 5
NEAR = 1e-4
"""How far sums in another order may lie apart: of the largest number of a tensor."""
GPT = {"name": "transformer", "width": 32, "depth": 2, "heads": 4}
DROPOUT = {"embedding_dropout": 0.1, "residual_dropout": 0.1}
STRUCTURES: dict[str, dict[str, Any]] = {
    "minimal": {},
    "minimal with dropout": {"model": DROPOUT},
    "minimal with SSA": {"model": {"scorer": {"name": "ssa"}}},
    "minimal with entmax": {"model": {"scorer": {"name": "entmax"}}},
    "transformer on copying": {"task": {"name": "copying", "length": 8}, "model": GPT},
    "transformer on modular addition": {"task": {"name": "add_mod", "modulus": 13}, "model": GPT},
    "transformer with Muon": {"task": {"name": "copying", "length": 8}, "model": GPT, "optimizer": {"name": "muon"}},
}
"""What is trained for a few steps in each way."""
UPDATES = ("adamw", "adam", "sgd")


def checks(device: str) -> Iterator[tuple[str, Check]]:
    """Yield the name of each check and the check."""
    where = torch.device(device)
    yield "versions", lambda: versions(where)
    if where.type == "cuda":
        yield "random numbers by kernels", lambda: equal(stream_kernels.find_fault(where), "")
        for optimizer in UPDATES:
            yield f"update by one kernel, {optimizer}", lambda name=optimizer: update(name, where)
        yield "fused step of minimal transformers", lambda: fused(device)
        yield "fused step in TF32", lambda: fused(device, "check-tf32")
    for name, structure in STRUCTURES.items():
        yield f"as on a CPU: {name}", lambda settings=structure: as_on_a_cpu(settings, device)
        yield f"packed as alone: {name}", lambda settings=structure: packed_as_alone(settings, device)


def versions(device: torch.device) -> dict[str, Any]:
    """Return what the rows below depend on; the compiler's absence is a failure of this row."""
    software: dict[str, Any] = {"python": sys.version.split()[0], "torch": torch.__version__}
    if device.type != "cuda":
        return software
    driver = find_driver()
    properties = torch.cuda.get_device_properties(device)
    return {
        **software,
        "CUDA": torch.version.cuda,
        "driver": driver.version if driver else "unknown",
        "NVRTC": compiler_version(),
        "GPU": properties.name,
        "bytes": float(properties.total_memory),
    }


def update(optimizer: str, device: torch.device) -> dict[str, Any]:
    """Compare clipping, optimizer and average as one kernel with the traced update."""
    recipe = Recipe.of({**config(dtype="float32"), "optimizer": {"name": optimizer}, "averaging": {"name": "bema"}})
    assert cuda_update_of(recipe, layout_of(recipe, device), device), "the kernel is not used; see the line above"
    return {"agrees": "yes"}


def fused(device: str, question: str = "check") -> dict[str, Any]:
    """Compare the fused step with the traced one, in a process of its own."""
    answer = run_check([sys.executable, "-m", "workers.engine.fused_check", question, device], SECONDS)
    return equal(answer.failure or answer.value, None)


def equal(value: Any, expected: Any) -> dict[str, Any]:
    """Raise AssertionError with what was found unless it is what is expected."""
    assert value == expected, value
    return {"agrees": "yes"}


def as_on_a_cpu(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Compare some steps with the same steps on a CPU, whose code is another."""
    here, there = (train(settings, processor, width=2, trials=1)[0] for processor in (device, "cpu"))
    return {"largest difference": f"{compare(here, there, NEAR):.1e}"}


def packed_as_alone(settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Compare each trial of a pack with the same trial alone; on a GPU products may round by the pack's width."""
    packed = train(settings, device, width=8, trials=7)
    alone = [train(settings, device, width=2, trials=1, first=number)[0] for number in range(7)]
    return {"largest difference": f"{max(compare(a, b, NEAR) for a, b in zip(packed, alone, strict=True)):.1e}"}


def train(settings: dict[str, Any], device: str, *, width: int, trials: int, first: int = 0) -> list[list[Tensor]]:
    """Return the tensors of each trial's state after some steps, on the CPU."""
    whole = config(dtype="float32", batch=16, steps=60, every=60, model=settings.get("model", {}))
    whole = {**whole, **{key: settings[key] for key in ("task", "optimizer") if key in settings}}
    if "task" in settings:
        whole["model"] = settings["model"]
    several = [trial(number, whole) for number in range(first, first + trials)]
    pack = Pack(several[0], width=width, device=device)
    pack.fill(several)
    pack.train(STEPS)
    states = [tensor.cpu() for tensor in tree_leaves(pack._tensors.state)]
    return [[tensor[lane] for tensor in states] for lane in range(trials)]


def compare(tensors: list[Tensor], other: list[Tensor], most: float) -> float:
    """Return the largest difference by the largest number of its tensor; AssertionError if it is more than `most`."""
    differences = [
        float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30))
        for a, b in zip(tensors, other, strict=True)
        if a.numel()
    ]
    largest = max(differences)
    assert largest <= most, f"differs by {largest:.2g} of the largest number, more than {most:g}"
    return largest
