"""C++ that tests compile once on a machine: the libraries lie beside the native steps, which the product keeps."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from workers.numerics.native import building, cache_folder
from workers.numerics.processors import describe_processor


def compiled(text: str, flags: Sequence[str], *included: str) -> ctypes.CDLL:
    """Return the library of a source; `included` are the texts of the files of ours that the source includes."""
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    known = [text, *included, *flags, *compiler, building.version(tuple(compiler)), describe_processor("cpu")]
    key = hashlib.sha256("\0".join(known).encode()).hexdigest()
    made = cache_folder() / f"emulated-{key[:32]}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as aside:
            source, file = Path(aside) / "source.cpp", Path(aside) / made.name
            source.write_text(text)
            command = [*compiler, *flags, "-fPIC", "-shared", str(source), "-o", str(file)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, f"{done.stderr}\n{text}"
            file.replace(made)  # a process that starts now finds a whole library or none
    return ctypes.CDLL(str(made))
