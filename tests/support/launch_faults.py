"""A nursery: launches of the real program that a test may kill."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from spaces.errors import GraftError
from tests.support.launches import (
    ROOT,
    SPACE,
    finished,
)

NURSERY = """
import json, os, sys
import search.steering.controller, workers.pool.inline
from cli.main import main
from graft.launching.planning.reading import read_space
from workers.engine.speed.timing import model_steps_per_second

trial = read_space(sys.argv[1], {}).sample(0, lambda draw: 0.5)
model_steps_per_second(trial, width=2, device="cpu", seconds=0)
print("ready", flush=True)
for line in iter(sys.stdin.readline, ""):
    child = os.fork()
    if not child:
        os.setsid()
        sys.argv = ["search", *json.loads(line)]
        main()
    print(child, flush=True)
    print(os.waitpid(child, 0)[1], flush=True)
"""
"""Forks one launch after another out of a process that has imported and trained already, which takes seconds.

It has not launched: Polars' threads do not survive a fork, nor do those of OpenMP, so it has one thread of these.
"""


class Nursery:
    """Starts launches fast, one at a time, each a process group of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def killed(self, moment: Callable[[], bool], *arguments: str) -> bool:
        """Launch, and kill -9 at the moment; False if it had ended by itself."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        child = int(self._process.stdout.readline())
        while not select.select([self._process.stdout], [], [], 0.02)[0]:
            if moment():
                os.killpg(child, signal.SIGKILL)
                break
        return os.WIFSIGNALED(int(self._process.stdout.readline()))


@contextmanager
def open_nursery() -> Iterator[Nursery]:
    command = [sys.executable, "-c", NURSERY, SPACE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield Nursery(process)
        assert process.stdin
        process.stdin.close()


def after(url: str, trials: int, seconds: float) -> Callable[[], bool]:
    """Whether it is so long since so many trials were finished."""
    since: list[float] = []

    def reached() -> bool:
        with suppress(GraftError):
            if not since and finished(url) >= trials:
                since.append(time.monotonic())
        return bool(since) and time.monotonic() >= since[0] + seconds

    return reached
