"""The native steps under the address and undefined-behaviour sanitizers: `pytest -m sanitizers`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workers.numerics import native

pytestmark = pytest.mark.sanitizers

FILES = (
    *("test_native.py", "test_native_layered.py", "test_native_pooling.py", "test_native_update.py"),
    *("test_native_evaluation.py", "test_native_packs.py", "test_randomness.py", "test_blocks.py"),
    *("test_linear_regression.py", "test_othello.py", "test_rows.py", "test_lane_programs.py"),
)
FLAGS = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"


def library_of_gcc(name: str) -> str:
    """Return the path of one of the compiler's own libraries; skips the test where it lacks it."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    path = subprocess.run(
        ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"g++ comes without {name}")
    return path


@pytest.mark.parametrize("file", FILES)
def test_nothing_is_read_or_written_where_it_must_not_be(file: str, tmp_path: Path) -> None:
    """The file's own tests, with the library compiled for the sanitizers: what they find ends the process."""
    environment = {
        **os.environ,
        "CXX": "g++",
        "CXXFLAGS": FLAGS,
        # The sanitizer looks for what throws exceptions as it is loaded, and torch throws some.
        "LD_PRELOAD": f"{library_of_gcc('libasan.so')} {library_of_gcc('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own, and torch's
    }
    path = next(Path(__file__).parents[2].rglob(file))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert not native.available() or " passed" in done.stdout
