"""Whether a GPU's fused step is used: found out once in a process of its own, and kept by GPU, driver and kernel."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from spaces.messages import shorten
from workers.engine.machine.nvidia import find_driver
from workers.numerics.cuda.compiler import CompilerError
from workers.numerics.cuda.minimal import kernel_key
from workers.numerics.native import cache_folder

SECONDS = 300.0
"""That a check may take: it compiles two kernels, and records traced steps of eleven structures."""
_LOG = logging.getLogger(__name__)


@functools.cache
def find_fault(name: str, architecture: str, device: str) -> str | None:
    """Why this GPU's fused step is not used; None: it has passed its check, now or before. Logged once in a process."""
    try:
        driver = find_driver()
        key = f"{name}; driver {driver.version if driver else ''}; kernel {kernel_key(architecture)}"
        command = [sys.executable, "-m", "workers.engine.fused_check", device]
        fault = kept_or_found(cache_folder(), key, lambda: run_check(command, SECONDS))
    except CompilerError as error:
        fault = str(error)
    if fault:
        _LOG.warning("the fused step is not used on %s, training goes on with the traced one: %s", name, fault)
    return fault


def kept_or_found(folder: Path, key: str, check: Callable[[], str | None]) -> str | None:
    """What was found for this key before, else what `check` finds now, which is kept.

    Memory that ran out is another matter at the next launch: that is not kept.
    """
    file = folder / f"fused-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError):
        return json.loads(file.read_text())["fault"]
    fault = check()
    if fault is None or "out of memory" not in fault:
        with suppress(OSError):  # a home that cannot be written: the next process checks anew
            folder.mkdir(parents=True, exist_ok=True)
            aside = file.with_suffix(f".{os.getpid()}")
            aside.write_text(json.dumps({"of": key, "fault": fault}) + "\n")
            aside.replace(file)
    return fault


def run_check(command: Sequence[str], seconds: float) -> str | None:
    """What the check's process says in its last line; why it failed, if it said nothing."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        said, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # a process that waits for a GPU may not even be killed
            process.communicate(timeout=10)
        return f"its check did not end within {seconds:g} seconds"
    lines = said.strip().splitlines()
    if process.returncode == 0 and lines:
        with suppress(ValueError):
            return json.loads(lines[-1])
    last = errors.strip().splitlines()[-1:] or ["it said nothing"]
    return shorten(f"its check ended with status {process.returncode}: {last[0]}", 200)
