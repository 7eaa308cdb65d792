"""The compilation of C++ texts to shared libraries, one each; it needs a compiler and no torch."""

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
"""Square roots are vectorised without errno. Sums of products are fused by fused.hpp alone."""
SOURCES = Path(__file__).parent
_FIRST = '#include "instructions.hpp"\n#line 1\n'
_INCLUDED = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


class Unit(NamedTuple):
    """A C++ text that becomes a library of its own."""

    name: str
    """The library's name, in its file's name and in messages: `minimal_float32`."""
    text: str
    """The C++ text, which may include the headers of this folder."""
    flags: tuple[str, ...] = ()
    """Compiler flags in addition to `FLAGS`."""


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
    is_apple = processor == "native" and platform.machine() == "arm64"
    return [*FLAGS, "-mcpu=native" if is_apple else f"-march={processor}"]


def digest(unit: Unit, options: list[str], *others: str) -> str:
    """Return 16 hexadecimal digits of all that a library depends on: text, headers, options."""
    texts = [unit.text, *unit.flags, *read_headers(unit.text), *options, *others]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def read_headers(text: str) -> list[str]:
    """Return the texts of this folder's headers that a text includes, also indirectly, by name."""
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
    command = [*compiler, "--version"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def build(unit: Unit, compiler: list[str], options: list[str], library: Path) -> Path:
    """Compile to a file that is renamed to `library` at the end: no process loads half a file."""
    with tempfile.TemporaryDirectory(dir=library.parent) as aside:
        source, made = Path(aside) / f"{unit.name}.cpp", Path(aside) / library.name
        source.write_text(_FIRST + unit.text, encoding="utf-8")
        files = ["-I", str(SOURCES), "-shared", str(source), "-o", str(made)]
        command = [*compiler, *unit.flags, *options, *files]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return made.replace(library)
