"""The decision whether a GPU's fused step trains: it must be right, and faster than the traced.

Processes of their own find both, and answers are kept on disk by GPU, driver and kernel. A failure
to answer is not kept: a time-out, a killed process or a lack of memory says nothing about the next
one.
"""

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
from typing import Any, NamedTuple

from spaces.cache import write_aside
from spaces.messages import shorten
from workers.engine.machine.nvidia import find_driver
from workers.numerics.cuda import minimal
from workers.numerics.cuda.compiler import CompilerError
from workers.numerics.native import cache_folder

SECONDS = 300.0
"""Time limit of a check, which compiles the kernel and records steps of eleven structures."""
TIMED = (16, 128, 1024)
"""Lanes at which both steps are timed: each has a block, so that few leave a GPU idle."""
_LOG = logging.getLogger(__name__)


class Answer(NamedTuple):
    """The last line that a check printed, read as JSON, or the reason why there is none."""

    value: Any = None
    failure: str | None = None


class Rates(NamedTuple):
    """Model-steps per second of both steps on one device, at the same width."""

    fused: float
    traced: float
    lanes: int

    def describe(self) -> str:
        """Return the comparison, as `1.7 times the traced step's speed (10,905 and 6,362 ...)`."""
        ratio = f"{self.fused / self.traced:.2g} times the traced step's speed"
        return f"{ratio} ({self.fused:,.0f} and {self.traced:,.0f} model-steps/s, {self.lanes:,} lanes)"


class Timing(NamedTuple):
    """A pack whose steps are to be timed."""

    structure: str
    """The configuration that its trials share, as JSON."""
    configuration: str
    """The configuration of one of them, as JSON."""
    lanes: int

    @property
    def key(self) -> str:
        """The end of the key of its rates."""
        return f"; {self.lanes} lanes of {self.structure}"


@functools.cache
def find_fault(name: str, architecture: str, device: str) -> str | None:
    """Return why the kernel is not right on this GPU, and log it once; None if it is right."""
    answer = _ask(["check", device], name, architecture)
    if fault := answer.failure or answer.value:
        _LOG.warning("the fused step is not used on %s, training goes on with the traced one: %s", name, fault)
        return fault
    return None


def find_rates(timing: Timing, name: str, architecture: str, device: str) -> Rates | None:
    """Return both steps' rates for a structure; None if they could not be timed."""
    about = timing.structure, timing.lanes, name, device
    if about not in _RATES:
        asked = ["rates", device, str(timing.lanes), timing.configuration]
        answer = _ask(asked, name, architecture, timing)
        _RATES[about] = None if answer.failure else Rates(**answer.value)
        if answer.failure:
            words = "the fused step was not timed beside the traced one on %s, which trains: %s"
            _LOG.warning(words, name, answer.failure)
    return _RATES[about]


_RATES: dict[tuple[str | int, ...], Rates | None] = {}
"""Rates that this process knows, by structure, lanes and GPU."""


def kept_rates(timing: Timing, name: str) -> list[Rates]:
    """Return the rates of a structure kept here for GPUs of this name, whatever their driver."""
    measurements: list[Rates] = []
    for file in sorted(cache_folder().glob("fused-*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(file.read_text())
            about: str = kept["of"]
            if about.startswith(f"{name}; ") and any(about.endswith(timing._replace(lanes=n).key) for n in TIMED):
                measurements.append(Rates(**kept["answer"]))
    return sorted(measurements, key=lambda rates: rates.lanes)


def _ask(arguments: Sequence[str], name: str, architecture: str, timing: Timing | None = None) -> Answer:
    """Return the answer of a check on this GPU, or of a timing."""
    try:
        driver = find_driver()
        key = f"{name}; driver {driver.version if driver else ''}; kernel {minimal.key(architecture)}"
    except CompilerError as error:
        return Answer(failure=str(error))
    command = [sys.executable, "-m", "workers.engine.fused_check", *arguments]
    suffix, lanes = (timing.key, timing.lanes) if timing else ("", None)
    return kept_or_found(cache_folder(), key + suffix, lambda: run_check(command, SECONDS), lanes)


def kept_or_found(folder: Path, key: str, check: Callable[[], Answer], lanes: int | None = None) -> Answer:
    """Return the kept answer of this key, or that of `check`, which is then kept.

    Rates at fewer lanes than `lanes` are not kept: memory was short for a while.
    """
    file = folder / f"fused-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError):
        return Answer(json.loads(file.read_text())["answer"])
    answer = check()
    if answer.failure is None and (lanes is None or answer.value["lanes"] == lanes):
        with suppress(OSError):  # a home that cannot be written: the next process checks again
            write_aside(file, (json.dumps({"of": key, "answer": answer.value}) + "\n").encode())
    return answer


def run_check(command: Sequence[str], seconds: float) -> Answer:
    """Run a check for at most so many seconds and return the answer in its last line."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        said, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):  # not even killed, if it waits for a GPU
            process.communicate(timeout=10)
        return Answer(failure=f"its check did not end within {seconds:g} seconds")
    lines = said.strip().splitlines()
    if process.returncode == 0 and lines:
        with suppress(ValueError):
            return Answer(json.loads(lines[-1]))
    last = errors.strip().splitlines()[-1:] or ["it said nothing"]
    return Answer(failure=shorten(f"its check ended with status {process.returncode}: {last[0]}", 200))
