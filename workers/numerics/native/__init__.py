"""Steps written in C++ for one processor core: compiled once per machine, where there is a compiler.

A native step is an exact rewrite of what the traced one computes. It works on one lane after another, so that what it
touches stays in the core's cache, and it costs no recording per shape. Without a compiler (`$CXX`, else `c++`) a
library that was compiled ahead is loaded (prebuilt.py), if there is one; without both, on another device, and for all
it does not cover, the traced step runs instead. `$CXXFLAGS` are the compiler's last flags.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor

from spaces.cache import cache_folder
from workers.numerics.native import building

_LOG = logging.getLogger(__name__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The native steps; None where they cannot be compiled, or loaded as compiled ahead, which is logged once."""
    compiler = _compiler()
    if compiler:
        try:
            return ctypes.CDLL(str(_find_library(compiler)))
        except (OSError, subprocess.SubprocessError) as error:
            detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            _LOG.warning("the native step could not be compiled, training goes on without it: %s", detail)
            return None
    found = load_prebuilt()
    return found[0] if found else None


@functools.cache
def describe_compiler() -> str:
    """What compiled the steps here, with flags of the user's own; empty where nothing did."""
    compiler = _compiler()
    if not compiler:
        found = load_prebuilt()
        return found[1] if found else ""
    try:
        name = building.version(compiler).partition("\n")[0]
    except (OSError, subprocess.SubprocessError):
        return ""
    return " ".join([name, *shlex.split(os.environ.get("CXXFLAGS", ""))])


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where the tensor's numbers start; it must be contiguous, and outlive the call."""
    assert tensor.is_contiguous(), "native code reads contiguous memory"
    return ctypes.c_void_p(tensor.data_ptr())


def _compiler() -> list[str]:
    """The compiler's command; empty where it is not installed."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    return compiler if compiler and shutil.which(compiler[0]) else []


@functools.cache
def load_prebuilt() -> tuple[ctypes.CDLL, str] | None:
    """The steps that were compiled ahead, and what they are; None where there are none for this processor."""
    from workers.numerics.native import prebuilt

    try:
        found = prebuilt.load()
    except OSError as error:
        _LOG.warning("the native step that was compiled ahead cannot be loaded, training goes on without it: %s", error)
        return None
    if not found:
        _LOG.warning("there is no C++ compiler, so steps on a CPU are traced, which is slower; install g++, or set CXX")
    return found


def _find_library(compiler: list[str]) -> Path:
    """The shared library, from the cache if this source was compiled here before."""
    options = building.flags()
    name = f"step-{building.digest(options, *compiler, building.version(compiler), _processor())}.so"
    try:
        cache = cache_folder()
        if (cache / name).exists():
            return cache / name
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache):
            if not (cache / name).exists():
                building.build(compiler, options, cache / name)
        return cache / name
    except OSError:  # a home that cannot be read or written
        return building.build(compiler, options, Path(tempfile.mkdtemp(prefix="graft-"), name))


@contextmanager
def _lock(folder: Path) -> Generator[None]:
    """Processes that start together compile once; a file system without locks lets each of them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _processor() -> str:
    """What `-march=native` depends on: homes are shared between machines of different kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
