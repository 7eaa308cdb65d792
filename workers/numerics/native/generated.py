"""Libraries of generated text: compiled once a machine, and kept by what they are made from."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import subprocess
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from workers.numerics import native
from workers.numerics.native import building

_LOG = logging.getLogger(__name__)
_COMPILING = ThreadPoolExecutor(2, thread_name_prefix="compiling")


@functools.cache
def start(text: str) -> Future[ctypes.CDLL | str]:
    """Begin to compile a text, or to read its library from the cache; the result says why there is none."""
    return _COMPILING.submit(_load, text)


def load(text: str) -> ctypes.CDLL | str:
    """The library of a text, once it is compiled; a line that says why there is none."""
    return start(text).result()


def _load(text: str) -> ctypes.CDLL | str:
    compiler = native.find_compiler()
    if not compiler:
        return "there is no C++ compiler"
    options = building.flags()
    try:
        name = (
            f"rows-{_digest(text, [*options, *compiler, building.version(compiler), native.describe_processor()])}.so"
        )
        try:
            folder = native.cache_folder()
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / name).exists():
                building.build_text(compiler, options, text, folder / name)
            return ctypes.CDLL(str(folder / name))
        except OSError:  # a home that cannot be read or written
            folder = Path(tempfile.mkdtemp(prefix="graft-"))
            return ctypes.CDLL(str(building.build_text(compiler, options, text, folder / name)))
    except subprocess.CalledProcessError as error:
        _LOG.warning("generated code could not be compiled: %s", error.stderr.strip())
        return "its generated code could not be compiled"
    except (OSError, subprocess.SubprocessError) as error:
        return f"its generated code could not be compiled: {error}"


def _digest(text: str, others: list[str]) -> str:
    headers = [path.read_text(encoding="utf-8") for path in _headers()]
    return hashlib.sha256("\0".join([text, *headers, *others]).encode()).hexdigest()[:16]


@functools.cache
def _headers() -> list[Path]:
    """What generated text includes."""
    names = ("row_functions", "rows", "functions", "registers", "exchange", "fused")
    return [building.SOURCES / f"{name}.hpp" for name in names]
