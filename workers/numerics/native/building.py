"""C++ texts compiled to shared libraries, one each; needs a compiler and nothing else."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

FLAGS = ("-O3", "-std=c++17", "-fPIC", "-Wno-psabi", "-fno-math-errno", "-ffp-contract=off")
"""Without errno square roots are vectors' too; their bits are the same. Products and sums are rounded together where
the source says so (fused.hpp), and nowhere else."""
SOURCES = Path(__file__).parent
_FIRST = '#include "instructions.hpp"\n#line 1\n'
_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class Unit(NamedTuple):
    """A C++ text that becomes a library of its own."""

    name: str
    """The name of the library, for its file and for people: `minimal_float32`."""
    text: str
    """The text may include the headers of this folder."""
    flags: tuple[str, ...] = ()
    """Flags of the compiler that it needs beside `FLAGS`."""


@functools.cache
def packaged(name: str) -> Unit:
    """Return the unit that is a file of this folder, by the file's name without its suffix."""
    return Unit(name, (SOURCES / f"{name}.cpp").read_text(encoding="utf-8"))


def packaged_units() -> list[Unit]:
    """Return all units that are files of this folder."""
    return [packaged(path.stem) for path in sorted(SOURCES.glob("*.cpp"))]


def find_compiler() -> list[str]:
    """Return the compiler's command, `$CXX` or `c++`; empty where it is not installed."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    return compiler if compiler and shutil.which(compiler[0]) else []


def user_flags() -> list[str]:
    """Return the user's own flags, `$CXXFLAGS`."""
    return shlex.split(os.environ.get("CXXFLAGS", ""))


def flags(processor: str = "native") -> list[str]:
    """Return the compiler's flags for a processor that it knows."""
    is_apple = processor == "native" and platform.machine() == "arm64"  # whose clang knows `-march=native` late
    return [*FLAGS, "-mcpu=native" if is_apple else f"-march={processor}"]


def digest(unit: Unit, options: list[str], *others: str) -> str:
    """Return 16 hexadecimal digits of the text, its headers, the flags and whatever else the library depends on."""
    texts = [unit.text, *unit.flags, *read_headers(unit.text), *options, *others]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def read_headers(text: str) -> list[str]:
    """Return the texts of the headers of this folder that a C++ text includes, directly or by another one.

    The headers are in the order of their names. A change of a header compiles again only what includes it.
    """
    names: set[str] = set()
    texts = [_FIRST, text]
    while texts:
        new = {*_INCLUDED.findall(texts.pop())} - names
        names |= new
        texts += map(read_header, new)
    return [read_header(name) for name in sorted(names)]


@functools.cache
def read_header(name: str) -> str:
    """Return the text of a header of this folder."""
    return (SOURCES / name).read_text(encoding="utf-8")


def read_cpuinfo() -> list[str]:
    """Return the lines in which Linux describes the processor; none on another system."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


@functools.cache
def version(compiler: tuple[str, ...]) -> str:
    """Return the compiler's own description; raises OSError or SubprocessError if it fails."""
    return subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout


def build(unit: Unit, compiler: list[str], options: list[str], library: Path) -> Path:
    """Compile beside `library` and rename, so that no process ever loads half a file."""
    with tempfile.TemporaryDirectory(dir=library.parent) as aside:
        source, made = Path(aside) / f"{unit.name}.cpp", Path(aside) / library.name
        source.write_text(_FIRST + unit.text, encoding="utf-8")
        command = [*compiler, *unit.flags, *options, "-I", str(SOURCES), "-shared", str(source), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return made.replace(library)
