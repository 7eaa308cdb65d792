"""The program run as a person runs it, in processes of its own, which may be killed; and what it leaves behind."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import cli
from spaces.errors import GraftError
from storage import open_reader
from tests.databases import raw

ROOT = Path(cli.__file__).parents[1]
SPACE = str(ROOT / "tests" / "tiny_space.yaml")
TRIALS = 48
PROGRAM = "from cli.main import main; main()"

Metrics = dict[tuple[int, int, str, str], float]
"""(number, step, name, variant) -> value."""


@contextmanager
def running(folder: Path, *arguments: str, before: str = "pass") -> Iterator[subprocess.Popen[str]]:
    """The program in a process group of its own, of which nothing is left at the end; `before` is run first in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{before}; {PROGRAM}", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill(process)
        process.wait()
        assert process.stderr
        process.stderr.close()


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def ended(process: subprocess.Popen[str], status: int, seconds: float = 120) -> list[str]:
    """The lines on stderr of a process that ends with this status."""
    _, error = process.communicate(timeout=seconds)
    assert process.returncode == status, error
    assert "Traceback" not in error, error
    return error.splitlines()


def search(folder: Path, *arguments: str, status: int = 0, before: str = "pass") -> list[str]:
    """Run the program to its end; the lines on stderr."""
    with running(folder, *arguments, before=before) as process:
        return ended(process, status)


def wait_until(reached: Callable[[], bool], seconds: float = 60) -> None:
    """Look often; a study that is not yet there has not reached anything."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(GraftError):
            if reached():
                return
        time.sleep(0.05)
    pytest.fail(f"not reached in {seconds:g} s", pytrace=False)


def counts(url: str, study: str = "tiny") -> dict[str, int]:
    """Trials by state, asked while the study runs."""
    with open_reader(url) as reader:
        return {**reader.counts(study)}


def finished(url: str, study: str = "tiny") -> int:
    return counts(url, study).get("finished", 0)


def states(url: str) -> dict[str, int]:
    """Trials by state, once nothing runs."""
    return dict(Counter(state for (state,) in raw(url, "SELECT state FROM trials")))


def metrics(url: str) -> Metrics:
    """All metrics of the only study; every key is there once."""
    rows = raw(
        url, "SELECT number, step, name, variant, value FROM metrics JOIN trials ON trials.id = metrics.trial_id"
    )
    found = {row[:4]: row[4] for row in rows}
    assert len(found) == len(rows)
    return found


def check_complete(url: str) -> None:
    """All trials finished once, each with its metrics at every due step, as if nothing had happened."""
    trials = raw(url, "SELECT number, state, steps, config FROM trials ORDER BY number")
    assert [(number, state) for number, state, *_ in trials] == [(number, "finished") for number in range(TRIALS)]
    found = metrics(url)
    for number, _, steps, config in trials:
        planned = _parsed(config)["training"]["steps"]
        due = {*range(20, planned, 20), planned}
        assert steps == planned
        assert {key[1] for key in found if key[0] == number and key[2] == "tvd"} == due
    assert found.keys() == undisturbed().keys()
    assert found == pytest.approx(undisturbed(), rel=1e-9, abs=1e-9)
    assert raw(url, "SELECT state FROM studies") == [("finished",)]


def _parsed(config: Any) -> Any:
    return json.loads(config) if isinstance(config, str) else config


@functools.cache
def undisturbed() -> Metrics:
    """What a run that nobody disturbs leaves, on one worker."""
    with tempfile.TemporaryDirectory() as folder:
        search(Path(folder), "launch", SPACE, "--workers", "1")
        return metrics(f"sqlite:///{folder}/graft.db")
