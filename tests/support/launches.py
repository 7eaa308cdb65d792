"""The program run as a person runs it, in processes of its own, which may be killed; and what it leaves behind."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import cli
from spaces.errors import GraftError
from storage import open_reader
from tests.support.databases import raw

ROOT = Path(cli.__file__).parents[1]
SPACE = str(ROOT / "tests" / "support" / "tiny_space.yaml")
TRIALS = 48

Metrics = dict[tuple[int, int, str, str], float]
"""(number, step, name, variant) -> value."""
Numbers = dict[tuple[str, int, int, str, str, str], float | None]
"""(study, number, step, name, variant, condition) -> value."""


class Launched:
    """The program in a process group of its own, forked from a process that has imported all of it already.

    Importing torch takes longer than what most launches do. The fork has this process's environment, its own session
    and working directory, and stdout closed; it has never launched before, as Polars' threads would not survive a fork.
    The interface is that of `subprocess.Popen`.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], before: str) -> None:
        self._pipe = Path(tempfile.mkdtemp(), "stderr")
        os.mkfifo(self._pipe)
        # Opening for reading without blocking lets the child open the other end whenever it gets there.
        reader = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
        # What keeps the pipe open until the child has it: without a writer it would read as ended.
        self._writer = os.open(self._pipe, os.O_WRONLY)
        os.set_blocking(reader, True)
        self.stderr = os.fdopen(reader)
        self._process = FORKS.Process(
            target=run_program, args=(str(folder), list(arguments), before, str(self._pipe), dict(os.environ))
        )
        self._process.start()
        assert self._process.pid
        self.pid = self._process.pid
        self.returncode: int | None = None
        """The exit status, negative for a signal; None while it runs."""
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing happens to a process that has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; TimeoutExpired if it still runs after `timeout` seconds."""
        self._waiter.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("search", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        """Nothing of stdout, and all of stderr, once it has ended."""
        text: list[str] = []
        thread = threading.Thread(target=lambda: text.append(self.stderr.read()), daemon=True)
        thread.start()
        self.wait(timeout)
        thread.join(240)
        return None, "".join(text)

    def close(self) -> None:
        """Forget it once it has ended."""
        self.stderr.close()
        shutil.rmtree(self._pipe.parent)

    def _wait(self) -> None:
        """Wait in the one thread that reads the exit status, then let go of the pipe's other end."""
        self._process.join()
        self.returncode = self._process.exitcode
        os.close(self._writer)


def run_program(folder: str, arguments: list[str], before: str, stderr: str, environment: dict[str, str]) -> None:
    """Turn the fork into a process as a shell would start it, and run the program."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, target, flags in ((0, os.devnull, os.O_RDONLY), (1, os.devnull, os.O_WRONLY), (2, stderr, os.O_WRONLY)):
        handle = os.open(target, flags)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115
    sys.argv = ["search", *arguments]
    exec(before, {})
    from cli.main import main

    main()


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.support.preloaded"])


@contextmanager
def running(folder: Path, *arguments: str, before: str = "pass") -> Generator[Launched]:
    """Yield the program in a process group of its own, which ends with it; `before` is run first in it."""
    process = Launched(folder, arguments, before)
    try:
        yield process
    finally:
        kill(process)
        process.wait()
        process.close()


def kill(process: Launched) -> None:
    """SIGKILL to the whole process group; before it has one, to the process."""
    with suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def ended(process: Launched, status: int, seconds: float = 300) -> list[str]:
    """Return the lines on stderr of a process that ends with this status."""
    _, error = process.communicate(timeout=seconds)
    assert process.returncode == status, error
    assert "Traceback" not in error, error
    return error.splitlines()


def search(folder: Path, *arguments: str, status: int = 0, before: str = "pass", seconds: float = 300) -> list[str]:
    """Run the program to its end, which must come in so many seconds; the lines on stderr."""
    with running(folder, *arguments, before=before) as process:
        return ended(process, status, seconds)


def wait_until(reached: Callable[[], bool], seconds: float = 240) -> None:
    """Look often, patiently, as the machine may be busy; a study that is not yet there has not reached anything."""
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
        return {**reader.study(study).counts()}


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
    values = {row[:4]: row[4] for row in rows}
    assert len(values) == len(rows)
    return values


def numbers(url: str) -> Numbers:
    """All metrics of all studies of a database."""
    rows = raw(
        url,
        "SELECT studies.name, number, step, metrics.name, variant, condition, value FROM metrics "
        "JOIN trials ON trials.id = trial_id JOIN studies ON studies.id = study_id",
    )
    return {row[:6]: row[6] for row in rows}


def check_complete(url: str) -> None:
    """All trials finished once, each with its metrics at every due step, as if nothing had happened."""
    trials = raw(url, "SELECT number, state, steps, config FROM trials ORDER BY number")
    assert [(number, state) for number, state, *_ in trials] == [(number, "finished") for number in range(TRIALS)]
    values = metrics(url)
    for number, _, steps, config in trials:
        planned = _parsed(config)["training"]["steps"]
        due = {*range(20, planned, 20), planned}
        assert steps == planned
        assert {key[1] for key in values if key[0] == number and key[2] == "tvd"} == due
    assert values.keys() == undisturbed().keys()
    assert values == pytest.approx(undisturbed(), rel=1e-9, abs=1e-9)
    assert raw(url, "SELECT state FROM studies") == [("finished",)]


def _parsed(config: Any) -> Any:
    return json.loads(config) if isinstance(config, str) else config


@functools.cache
def undisturbed() -> Metrics:
    """Return what a run that nobody disturbs leaves, on one worker."""
    with tempfile.TemporaryDirectory() as folder:
        search(Path(folder), "launch", SPACE, "--workers", "1")
        return metrics(f"sqlite:///{folder}/graft.db")
