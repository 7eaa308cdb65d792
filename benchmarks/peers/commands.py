"""Commands that are timed as a whole."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


def seconds_of(command: list[str], folder: Path) -> float:
    """Run a command to its end, with one thread per process; whatever happens, nothing of it runs on."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        status = process.wait()
        seconds = time.perf_counter() - start
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if status:
        raise SystemExit(f"ended with status {status}: {shlex.join(command)}")
    return seconds
