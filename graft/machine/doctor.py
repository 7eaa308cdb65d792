"""The findings of `search doctor` about this machine, and the rate of its training."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from graft.plugins.families import families, version
from spaces import load
from spaces.errors import GraftError
from spaces.messages import shorten


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fact about the machine."""

    name: str
    text: str
    is_problem: bool = False
    """True if Graft cannot do what was asked for."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The rate at which one worker trains."""

    case: str
    step: str
    """`native`, `fused` or `traced`."""
    lanes: int
    model_steps_per_second: float
    """The rate; 0 if the case failed."""
    failure: str | None = None
    """The reason if the case failed, in one line."""


CASES: Mapping[str, tuple[str, float]] = {
    "set complement, no dropout": ("quick/set_complement", 0.4),
    "set complement, dropout of Table 1": ("quick/set_complement", 0.9),
    "add_mod, transformer": ("quick/add_mod", 0.4),
}
"""The name of a timed case -> a packaged space, and the coordinate of all its draws."""
LANES = {"cpu": (1, 32), "cuda": (1, 32, 1024)}
BENCH_LANES = {"cpu": (1, 2, 8, 32, 128), "cuda": (1, 8, 32, 128, 512, 1024, 2048, 4096)}


def examine(storage: str | None = None) -> Iterator[Finding]:
    """Yield facts about this machine, and about the database at `storage`, which is only read."""
    from workers.engine.fused import describe as describe_fused_step
    from workers.engine.machine import devices
    from workers.engine.machine.memory import free_bytes
    from workers.numerics.native import cache_folder, describe_compiler
    from workers.numerics.processors import describe_processor

    yield Finding(name="graft", text=f"{version()}, Python {platform.python_version()}, {platform.platform()}")
    yield Finding(name="torch", text=devices.describe_torch())
    load_average = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    cores = devices.default_workers("cpu")
    yield Finding(name="processor", text=f"{describe_processor('cpu')}; {cores} cores to use{load_average}")
    yield Finding(
        name="compiler", text=describe_compiler() or "none, so that steps are traced; install g++, or set CXX"
    )
    for line in devices.describe_gpus() or [devices.describe_unused_gpu() or "none that torch can use"]:
        yield Finding(name="gpu", text=line)
    yield Finding(name="fused", text=describe_fused_step())
    yield Finding(name="precision", text="float32 products of float32 numbers: TF32 is off on every device")
    yield Finding(name="memory", text=f"{_gigabytes(free_bytes('cpu'))} free for this process")
    ray = "not installed; for clusters pip install 'graft-search[ray]'"
    with suppress(metadata.PackageNotFoundError):
        ray = metadata.version("ray")
    yield Finding(name="ray", text=ray)
    for name, folder in (("cache", cache_folder()), ("disk", Path.cwd())):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        fault = "" if os.access(there, os.W_OK) else ", cannot be written to"
        yield Finding(name=name, text=f"{folder}, {_gigabytes(shutil.disk_usage(there).free)} free{fault}")
    if storage is not None:
        yield _look_at_database(storage)


def _look_at_database(url: str) -> Finding:
    from storage import open_reader
    from storage.databases import file_of, find_database
    from storage.upgrading import pending_migrations

    try:
        name, file = find_database(url).name, file_of(url)
        if file and not Path(file).exists():
            folder = Path(file).parent
            good = folder.is_dir() and os.access(folder, os.W_OK)
            text = f"{name}: not there yet, a launch makes it" if good else f"{name}: its folder cannot be written to"
            return Finding(name="database", text=text, is_problem=not good)
        schema, steps = pending_migrations(url)
        if steps:
            return Finding(name="database", text=f"{name}: schema {schema}, older than this; `search db upgrade`")
        with open_reader(url) as reader:
            return Finding(name="database", text=f"{name}: schema {schema}, {len(reader.studies()):,} studies")
    except GraftError as error:
        return Finding(name="database", text=str(error), is_problem=True)


def measure(device: str, *, bench: bool, show: Callable[[str], None] = lambda _: None) -> Iterator[Rate]:
    """Time one worker on a device: one lane and many, by its fastest step and by the traced one.

    Each rate is yielded at once. Without `bench` there are few cases, within half a minute.
    """
    from workers.engine.machine.process import prepare
    from workers.engine.speed.timing import step_rate
    from workers.engine.step import TracedStep, method_of

    prepare()
    kind = device.partition(":")[0]
    for case in CASES if bench else [*CASES][:1]:
        space, coordinate = CASES[case]
        trial = load(space, families(), {}).sample(0, lambda _, at=coordinate: at)
        fastest = method_of(trial.config, device).partition(" ")[0]
        for step in dict.fromkeys((fastest, "traced")):
            for lanes in (BENCH_LANES if bench else LANES)[kind]:
                show(f"{case}, {step}, {lanes} lanes")
                rate, failure = 0.0, None
                make = TracedStep if step == "traced" else None
                try:
                    rate = step_rate(trial, width=lanes, device=device, make=make)
                except (RuntimeError, MemoryError) as error:  # the other cases are still timed
                    failure = shorten(" ".join(str(error).split()) or type(error).__name__, 200)
                yield Rate(case=case, step=step, lanes=lanes, model_steps_per_second=rate, failure=failure)


def to_json(findings: list[Finding], rates: list[Rate], device: str) -> dict[str, Any]:
    """Return the output of `search doctor --format json`, also the content of `--bench`'s file."""
    return {
        "format": 1,
        "device": device,
        "findings": [asdict(finding) for finding in findings],
        "rates": [*map(asdict, rates)],
    }


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
