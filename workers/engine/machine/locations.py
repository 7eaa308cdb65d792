"""The locations of workers: GPUs, the instances of one (MIG), or the processor."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from workers.engine.machine.devices import device_name, gpus
from workers.engine.machine.nvidia import run_nvidia_smi

_INSTANCE = re.compile(r"^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")
_CARD = re.compile(r"^GPU \d+: (.+) \(UUID: (GPU-[^)]+)\)")


@dataclass(frozen=True, kw_only=True)
class Location:
    """A device that one process of workers computes on."""

    device: str
    """The device's name in that process: `cuda:1`; a GPU's instance is its only one, `cuda`."""
    name: str
    """The name for people: `cuda:1: NVIDIA H100`, `MIG 1g.10gb of NVIDIA H100`."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that the process needs."""


def locations_of(device: str) -> list[Location]:
    """List the devices of workers on `cpu`, `cuda` (all GPUs, all instances) or `cuda:1`."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or index:
        return [Location(device=device, name=f"{device}: {device_name(device)}")]
    if instances := [(name, {"CUDA_VISIBLE_DEVICES": uuid}) for name, uuid in find_instances()]:
        return [Location(device="cuda", name=name, environment=environment) for name, environment in instances]
    cards = (f"cuda:{number}" for number in range(gpus()))
    return [Location(device=card, name=f"{card}: {device_name(card)}") for card in cards]


def describe(locations: Sequence[Location], workers: int) -> str:
    """Return `cuda:0: A100, cuda:1: A100; 4 workers, a process each, up to 2 on each`."""
    names = ", ".join(location.name for location in locations)
    shared = f", up to {-(-workers // len(locations))} on each" if workers > len(locations) else ""
    return f"{names}; {workers} worker{'s' if workers > 1 else ''}, a process each{shared}"


def find_instances(environment: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """Return name and UUID of each usable MIG instance, and of each undivided GPU beside them.

    CUDA shows a process one instance at most. Without any instance there is nothing to list.
    """
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available() or (allowed is not None and "MIG-" not in allowed):
        return []
    instances: dict[tuple[str, str], list[tuple[str, str]]] = {}
    card = "", ""
    for line in run_nvidia_smi("-L").splitlines():
        if match := _CARD.match(line):
            card = match[1], match[2]
            instances[card] = []
        elif match := _INSTANCE.match(line):
            instances[card].append((f"MIG {match[1]} of {card[0]}", match[2]))
    if not any(instances.values()):
        return []
    modes = run_nvidia_smi("--query-gpu=uuid,mig.mode.current", "--format=csv,noheader").splitlines()
    # A card that is to be divided, and has no instance yet, computes nothing.
    devices = [
        device
        for card, parts in instances.items()
        for device in parts or ([] if f"{card[1]}, Enabled" in modes else [card])
    ]
    wanted = {device.strip() for device in allowed.split(",")} if allowed is not None else None
    return [(name, uuid) for name, uuid in devices if wanted is None or uuid in wanted]
