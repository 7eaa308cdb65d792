"""Steps written in C++ for one processor core: compiled once per machine, and only where there is a compiler.

A native step is an exact rewrite of what the traced one computes. It works on one lane after another, so that what it
touches stays in the core's cache, and it costs no recording per shape. Without a compiler (`$CXX`, else `c++`), on
another device, and for all it does not cover, the traced step runs instead. `$CXXFLAGS` are the compiler's last flags.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from torch import Tensor

FLAGS = ("-O3", "-march=native", "-std=c++17", "-fPIC", "-Wno-psabi", "-fno-math-errno", "-ffp-contract=off")
"""Without errno square roots are vectors' too; their bits are the same. Products and sums are rounded together where
the source says so (fused.hpp), and nowhere else."""
_FOLDER = Path(__file__).parent
_LOG = logging.getLogger(__name__)


@functools.cache
def library() -> ctypes.CDLL | None:
    """The native steps; None where there is no compiler, or where it fails (logged)."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if not compiler or shutil.which(compiler[0]) is None:
        return None
    try:
        return ctypes.CDLL(str(_find_library(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        detail = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        _LOG.warning("the native step could not be compiled, training goes on without it: %s", detail)
        return None


@functools.cache
def describe_compiler() -> str:
    """Name and version of what compiles the steps here, with flags of the user's own; empty where there is none."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    try:
        name = _version(compiler).partition("\n")[0]
    except (OSError, IndexError, subprocess.SubprocessError):
        return ""
    return " ".join([name, *_flags()[len(FLAGS) :]])


def address(tensor: Tensor) -> ctypes.c_void_p:
    """Where the tensor's numbers start; it must be contiguous, and outlive the call."""
    assert tensor.is_contiguous(), "native code reads contiguous memory"
    return ctypes.c_void_p(tensor.data_ptr())


def _find_library(compiler: list[str]) -> Path:
    """The shared library, from the cache if this source was compiled here before."""
    sources = [path.read_text() for path in sorted(_FOLDER.glob("*.[ch]pp"))]
    key = "\0".join([*sources, *_flags(), *compiler, _version(compiler), _processor()])
    name = f"step-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"
    try:
        cache = cache_folder()
        if (cache / name).exists():
            return cache / name
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache):
            if not (cache / name).exists():
                _compile(compiler, cache, cache / name)
        return cache / name
    except OSError:  # a home that cannot be read or written
        return _compile(compiler, Path(tempfile.mkdtemp(prefix="graft-")), Path(name))


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


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/graft`, else `~/.cache/graft`; in the system's temporary folder where there is no home."""
    given = os.environ.get("XDG_CACHE_HOME")
    if given:
        return Path(given) / "graft"
    try:
        return Path.home() / ".cache" / "graft"
    except RuntimeError:
        return Path(tempfile.gettempdir()) / "graft-cache"


def _compile(compiler: list[str], folder: Path, library: Path) -> Path:
    """Compile aside and rename, so that processes that start together never load half a file.

    The sources are compiled side by side, as many as there are cores.
    """
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        sources = sorted(_FOLDER.glob("*.cpp"))
        objects = [str(Path(aside) / f"{source.stem}.o") for source in sources]
        commands = [["-c", str(source), "-o", made] for source, made in zip(sources, objects, strict=True)]

        def run(arguments: list[str]) -> None:
            subprocess.run([*compiler, *_flags(), *arguments], check=True, capture_output=True, text=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, commands))
        made = Path(aside) / library.name
        run(["-shared", *objects, "-o", str(made)])
        return made.replace(folder / library.name)


def _flags() -> list[str]:
    return [*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", ""))]


def _version(compiler: list[str]) -> str:
    return subprocess.run([*compiler, "--version"], check=True, capture_output=True, text=True).stdout


def _processor() -> str:
    """What `-march=native` depends on: homes are shared between machines of different kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))
