"""Steps written in C++ for one processor core, in libraries that are loaded when first needed.

A native step is an exact rewrite of the traced one, one lane after another, so that a lane's memory
stays in the core's cache. It needs no recording per shape.

A library compiled ahead for this processor has the bits of one compiled here (prebuilt.py). Others
are compiled once per machine by `$CXX`, else `c++`, with `$CXXFLAGS` as the last flags; setting
either compiles all. Without a library, and where a native step does not apply, the traced one runs.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import logging
import os
import platform
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spaces.cache import cache_folder
from workers.numerics.native import building
from workers.numerics.native.building import Unit, packaged

if TYPE_CHECKING:  # where a wheel is built, there is no torch
    from torch import Tensor

_LOG = logging.getLogger(__name__)


class _Loaded(NamedTuple):
    library: ctypes.CDLL
    origin: str
    """The compiler that built it, as it is shown."""


_LOADED: dict[Unit, _Loaded | None] = {}
_LOCKS: dict[Unit, threading.Lock] = defaultdict(threading.Lock)
_SAID: set[str] = set()
_AT_ONCE = threading.Semaphore(os.cpu_count() or 1)


@functools.cache
def library(name: str) -> ctypes.CDLL | None:
    """Return the library of a `.cpp` file of this folder; None, logged once, if there is none."""
    return load(packaged(name))


def load(unit: Unit) -> ctypes.CDLL | None:
    """Return a unit's library, compiled if need be; None, logged once, if that fails."""
    loaded = _load(unit)
    return loaded.library if loaded else None


def begin(units: Iterable[Unit]) -> None:
    """Load or compile units in the background, several at a time; `load` waits for its own."""
    for unit in units:
        if unit not in _LOADED:
            threading.Thread(target=_load, args=(unit,), name=f"compile {unit.name}").start()


def available() -> bool:
    """Return whether there are native steps on this machine."""
    return library("streams") is not None


def describe_compiler() -> str:
    """Return the compiler of the steps and the user's own flags; empty without native steps."""
    loaded = _load(packaged("streams"))
    return loaded.origin if loaded else ""


def instruction_set() -> str:
    """Return the vector instructions of the steps: `AVX512`, `AVX2`, `NEON` or `DEFAULT`."""
    streams = library("streams")
    assert streams, "there are native steps"
    streams.instruction_set.restype = ctypes.c_char_p
    return streams.instruction_set().decode()


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a contiguous tensor's numbers; the tensor must outlive the call."""
    assert tensor.is_contiguous(), "native code reads contiguous memory"
    return ctypes.c_void_p(tensor.data_ptr())


def forget() -> None:
    """Forget all libraries, as after a change of `$CXX`, `$CXXFLAGS` or the cache's folder."""
    for remembered in (library, packaged, building.read_header, building.version, _processor):
        remembered.cache_clear()
    _LOADED.clear()
    _SAID.clear()


def _load(unit: Unit) -> _Loaded | None:
    with _LOCKS[unit]:  # threads that ask at the same time compile once
        if unit not in _LOADED:
            _LOADED[unit] = _find(unit)
        return _LOADED[unit]


def _find(unit: Unit) -> _Loaded | None:
    from workers.numerics.native import prebuilt

    compiler = building.find_compiler()
    wants_own = compiler and (os.environ.get("CXX") or building.user_flags())
    if not wants_own and (binary := prebuilt.find(unit)):
        path, origin = binary
        try:
            return _Loaded(ctypes.CDLL(str(path)), origin)
        except OSError as error:
            _say("the native step that was compiled ahead cannot be loaded: %s", error)
    if not compiler:
        _say("there is no C++ compiler, so steps on a CPU are traced, which is slower; install g++, or set CXX")
        return None
    try:
        return _compile(unit, compiler)
    except (OSError, subprocess.SubprocessError) as error:
        detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        _say("the native step could not be compiled, training goes on without it: %s", detail)
        return None


def _say(text: str, *values: object) -> None:
    """Log a line once in this process."""
    if text not in _SAID:
        _SAID.add(text)
        _LOG.warning(text, *values)


def _compile(unit: Unit, compiler: list[str]) -> _Loaded:
    """Load the unit's library from the cache; compile it first if the cache lacks it."""
    version, user_flags = building.version(tuple(compiler)), building.user_flags()
    options = [*building.flags(), *user_flags]
    name = f"{unit.name}-{building.digest(unit, options, *compiler, version, _processor())}.so"
    origin = " ".join([version.partition("\n")[0], *user_flags])
    path = cache_folder() / name
    if kept := _open(path):
        return _Loaded(kept, origin)
    _say("compiling native steps for this processor, once per machine: it takes some seconds")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _AT_ONCE, _locked(path):
            kept = _open(path) or ctypes.CDLL(str(building.build(unit, compiler, options, path)))
        return _Loaded(kept, origin)
    except OSError:  # a home that cannot be read or written
        text = "%s cannot be written to, so that each process compiles anew; set XDG_CACHE_HOME"
        _say(text, path.parent)
    with tempfile.TemporaryDirectory(prefix="graft-") as folder, _AT_ONCE:
        made = building.build(unit, compiler, options, Path(folder, name))
        return _Loaded(ctypes.CDLL(str(made)), origin)


def _open(path: Path) -> ctypes.CDLL | None:
    """Load a library that was compiled before; return None if it is missing or broken."""
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        return None


@contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold a lock, so that concurrent processes compile once; without locks each compiles."""
    aside = path.with_suffix(".lock")
    handle = os.open(aside, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        aside.unlink(missing_ok=True)  # processes that wait on it then find the library
        os.close(handle)


@functools.cache
def _processor() -> str:
    """Describe what `-march=native` depends on: unlike machines may share a home."""
    lines = building.read_cpuinfo()
    if not lines:
        return platform.processor() + platform.machine()
    fields = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(fields)}))
