"""The native steps compiled ahead, for machines without a compiler: `python -m workers.numerics.native.prebuilt`.

A library lies beside the sources for each level of instructions, and a wheel that is made then carries it. It is loaded
only where there is no compiler, by a processor that has its instructions, and only if it was made from these sources.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from workers.numerics.native import building

LEVELS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "x86_64": {
        "x86-64-v4": frozenset(["avx2", "fma", "bmi2", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
        "x86-64-v3": frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"]),
    },
    "aarch64": {"armv8-a": frozenset(["asimd"])},
}
"""Machine -> name of a level for `-march=`, best first -> flags that /proc/cpuinfo must name. Source: x86-64 psABI,
table 3.1; `abm` is what Linux calls lzcnt."""


def build() -> list[Path]:
    """Compile the libraries of this kind of machine, in place of those that are there; raises as subprocess does."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    folder = _folder()
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.so"):
        old.unlink()
    _note(folder).write_text(building.version(compiler).partition("\n")[0], encoding="utf-8")
    return [
        building.build(compiler, building.flags(level), _library(folder, level))
        for level in LEVELS.get(platform.machine(), {})
    ]


def levels_here() -> Iterator[str]:
    """The levels that this processor can run, best first."""
    has = processor_flags()
    return (level for level, needs in LEVELS.get(platform.machine(), {}).items() if needs <= has)


def load() -> tuple[ctypes.CDLL, str] | None:
    """The best library that this processor can run, and what it is, for people; None where there is none.

    Raises OSError if it cannot be loaded.
    """
    folder = _folder()
    for level in levels_here():
        if (path := _library(folder, level)).exists():
            return ctypes.CDLL(str(path)), f"prebuilt {level}, {_note(folder).read_text(encoding='utf-8')}"
    return None


def processor_flags() -> frozenset[str]:
    """The instructions that Linux names; none on another system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith(("flags", "Features"))), "").split())


def _folder() -> Path:
    return building.SOURCES / "prebuilt"


def _library(folder: Path, level: str) -> Path:
    return folder / f"step-{level}-{building.digest(building.flags(level))}.so"


def _note(folder: Path) -> Path:
    return folder / "compiler.txt"


if __name__ == "__main__":
    for made in build():
        print(made)
