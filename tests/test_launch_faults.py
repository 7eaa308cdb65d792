"""What a launch survives: kill -9 at any moment, a full disk, and two of it at once."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.databases import raw
from tests.launches import (
    ROOT,
    SPACE,
    check_complete,
    ended,
    metrics,
    running,
    search,
    states,
    undisturbed,
)

KILLS = {"sqlite": 10, "postgresql": 3}
SMALL_FILES = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))"

NURSERY = """
import json, os, sys
import search.controller, workers.pool.inline
from cli.launch import load_space
from cli.main import main
from workers.pool.timing import model_steps_per_second

trial = load_space(sys.argv[1], {}).sample(0, lambda draw: 0.5)
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

It has not launched: Polars' threads do not survive a fork.
"""


class Nursery:
    """Starts launches fast, one at a time, each a process group of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def killed_after(self, seconds: float, *arguments: str) -> bool:
        """Launch, and kill -9 after so long; False if it had ended by itself."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(arguments), file=self._process.stdin, flush=True)
        child = int(self._process.stdout.readline())
        over, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not over:
            os.killpg(child, signal.SIGKILL)
        return os.WIFSIGNALED(int(self._process.stdout.readline()))


@contextmanager
def open_nursery() -> Iterator[Nursery]:
    command = [sys.executable, "-c", NURSERY, SPACE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield Nursery(process)
        assert process.stdin
        process.stdin.close()


def test_killed_at_random_moments_a_study_ends_as_if_nothing_had_happened(url: str, tmp_path: Path):
    moments = random.Random(20)
    launch = ("launch", SPACE, "--storage", url, "--workers", "2", "--pack", "4")
    with open_nursery() as nursery:
        killed = sum(
            nursery.killed_after(moments.uniform(0.1, 3), *launch) for _ in range(KILLS[url.partition(":")[0]])
        )
    assert killed > KILLS[url.partition(":")[0]] / 2  # the rest found nothing left to do
    print(killed, states(url))
    search(tmp_path, *launch)
    check_complete(url)
