"""Native steps compiled ahead, when Graft is built or installed (hatch_build.py).

Each level of instructions has a folder of libraries. A processor takes the level of its own
compiler, for equal bits (tests/workers/numerics/test_prebuilt.py), and libraries of these sources.
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from workers.numerics.native import building
from workers.numerics.native.building import Unit

_AVX2 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])
_AVX512 = _AVX2 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])


class Level(NamedTuple):
    """A level of instructions that libraries are compiled for."""

    name: str
    """The name that `-march=` takes."""
    needs: frozenset[str]
    """Required flags in /proc/cpuinfo; `abm` is Linux' lzcnt. Source: x86-64 psABI, table 3.1."""
    excludes: frozenset[str]
    """Flags that would let a compiler use wider registers, whose sums have other bits."""


LEVELS: Mapping[str, tuple[Level, ...]] = {
    "x86_64": (
        Level("x86-64-v4", _AVX512, frozenset()),
        Level("x86-64-v3", _AVX2, frozenset(["avx512f"])),
    ),
    "aarch64": (Level("armv8-a", frozenset(["asimd"]), frozenset()),),
}
"""Machine -> its levels, of which a processor has at most one."""
_CROSS = {"aarch64": "aarch64-linux-gnu-g++", "x86_64": "x86_64-linux-gnu-g++"}
"""Machine -> the cross compiler for it, as Debian names it."""


def build(units: Sequence[Unit], *wanted: str) -> list[Path]:
    """Compile units for the levels `wanted` that have a compiler; return all files of `prebuilt`.

    Libraries of other sources or compilers are removed. Raises as subprocess does.
    """
    tasks: list[tuple[Unit, list[str], str]] = []
    notes: list[Path] = []
    for machine, levels in LEVELS.items():
        compiler = building.find_compiler() if machine == platform.machine() else [_CROSS[machine]]
        if not compiler or not shutil.which(compiler[0]):
            continue
        for level in (level.name for level in levels if level.name in wanted):
            note = _note(level)
            text = building.version(tuple(compiler)).partition("\n")[0] + "\n"
            if not note.exists() or note.read_text(encoding="utf-8") != text:  # of another compiler
                shutil.rmtree(note.parent, ignore_errors=True)
                note.parent.mkdir(parents=True)
                note.write_text(text, encoding="utf-8")
            notes.append(note)
            tasks += [(unit, compiler, level) for unit in units]
    kept = {*notes, *(_library(unit, level) for unit, _, level in tasks)}
    for path in [*_folder().glob("*/*.so"), *_folder().glob("*/compiler.txt")]:
        if path not in kept:
            path.unlink()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [*notes, *pool.map(_build, *zip(*tasks, strict=True))] if tasks else []


def _build(unit: Unit, compiler: list[str], level: str) -> Path:
    library = _library(unit, level)
    return library if library.exists() else building.build(unit, compiler, _flags(level), library)


def _flags(level: str) -> list[str]:
    """Return a level's flags; `-s` strips internal names, which differ between any two builds."""
    return [*building.flags(level), "-s"]


def levels_here() -> Iterator[str]:
    """Yield the level of this processor's libraries, if there is one."""
    if sys.platform == "linux":
        has = processor_flags()
        for level in LEVELS.get(platform.machine(), ()):
            if level.needs <= has and not level.excludes & has:
                yield level.name


def find(unit: Unit) -> tuple[Path, str] | None:
    """Return the library of a unit for this processor and its description, or None."""
    for level in levels_here():
        if (path := _library(unit, level)).exists():
            return path, f"prebuilt {level}, {_note(level).read_text(encoding='utf-8').strip()}"
    return None


@functools.cache
def processor_flags() -> frozenset[str]:
    """Return the instructions that Linux lists; none on another system."""
    lines = (line for line in building.read_cpuinfo() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").split())


def _folder() -> Path:
    return building.SOURCES / "prebuilt"


def _library(unit: Unit, level: str) -> Path:
    return _folder() / level / f"{unit.name}-{building.digest(unit, _flags(level))}.so"


def _note(level: str) -> Path:
    return _folder() / level / "compiler.txt"
