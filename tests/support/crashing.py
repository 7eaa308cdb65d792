"""Runs a small study that is hit at one of its points: around each commit, fsync and rename, and each exchange.

    python -m tests.support.crashing

reads lines of JSON, [mode, points, url, folder], forks a run for each out of a process that has imported and trained
already, and answers with [exit status, points passed, last line]. Modes: `none`; `die` at the point, as by kill -9;
`once`: the call there fails; `ever`: it and every later one of its kind fail. Several points: each for a fork of the
run before it, so that a recovery is hit, too.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import psycopg
from sqlalchemy.engine.default import DefaultDialect

import storage.control.session
from graft.launching.enrolling import open_controller
from search.steering.controller import Controller
from spaces.errors import GraftError
from spaces.progress import Progress
from spaces.records import Directives, Offer, Report
from tests.support.launches import SPACE
from workers.engine.speed.timing import model_steps_per_second
from workers.pool import Saving, inline

STUDY = "tiny"
DIED = 99
SIZES = {"search.trials": "4", "search.group": "4", "training.steps": "6", "training.validate_every": "3"}


class Points:
    """Counts the points that a run passes, and does what is to be done at one of them."""

    def __init__(self, mode: str, at: int) -> None:
        self.mode, self.at, self.passed, self.hit = mode, at, 0, ""

    def point(self, kind: str, error: Callable[[], BaseException]) -> None:
        """Pass a point."""
        self.passed += 1
        here = self.passed == self.at
        if here:
            self.hit = kind
        if here and self.mode == "die":
            os._exit(DIED)
        if (here and self.mode == "once") or (self.mode == "ever" and self.hit == kind):
            raise error()

    def around(self, owner: Any, name: str, kind: str, error: Callable[[], BaseException]) -> None:
        """Set a point before each call of a function, and one after it."""
        plain = getattr(owner, name)

        def guarded(*arguments: Any) -> Any:
            self.point(f"before {kind}", error)
            answer = plain(*arguments)
            self.point(f"after {kind}", error)
            return answer

        setattr(owner, name, guarded)


class Exchanged:
    """A study whose every exchange is a remote call: its request or its answer may be lost."""

    def __init__(self, study: Controller, points: Points) -> None:
        self.study, self.points = study, points

    def exchange(self, reports: list[Report], offer: Offer) -> Directives:
        self.points.point("request", _lost)
        directives = self.study.exchange(reports, offer)
        self.points.point("answer", _lost)
        return directives

    def renew(self, worker: str) -> bool:
        return self.study.renew(worker)

    def handle_crash(self, worker: str) -> None:
        self.study.handle_crash(worker)

    def handle_departure(self, worker: str) -> None:
        self.study.handle_departure(worker)

    def sweep(self) -> None:
        self.study.sweep()

    def request_stop(self) -> None:
        self.study.request_stop()

    def progress(self) -> Progress:
        return self.study.progress()

    def close(self) -> None:
        self.study.close()


def _lost() -> GraftError:
    return GraftError("the call was lost")


def _no_disk() -> OSError:
    return OSError(5, "Input/output error")


def _no_commit(url: str) -> Callable[[], BaseException]:
    if url.startswith("sqlite"):
        return lambda: sqlite3.OperationalError("disk I/O error")
    return lambda: psycopg.OperationalError("server closed the connection unexpectedly")


def run(mode: str, at: int, url: str, folder: str) -> tuple[int, str]:
    """Run the study to its end, or to its point: exit status, and points passed with the last line."""
    storage.control.session.FIRST_PAUSE, storage.control.session.AWAY_SECONDS = 0.01, 0.3
    points = Points(mode, at)
    if mode != "none":
        points.around(DefaultDialect, "do_commit", "commit", _no_commit(url))
        points.around(os, "fsync", "fsync", _no_disk)
        points.around(os, "replace", "replace", _no_disk)
    saving = Saving(folder, STUDY, 0.0)
    try:
        study = open_controller(url, STUDY, saving)
        try:
            inline.run(Exchanged(study, points), device="cpu", width=2, workers=1, saving=saving)
        finally:
            study.close()
    except GraftError as error:
        return 2, f"{points.passed} {error}"
    return 0, f"{points.passed} done"


def main() -> None:
    """Warm up, then fork a run for each line."""
    from graft.plugins.families import families
    from spaces import load

    trial = load(SPACE, families(), SIZES).sample(0, lambda draw: 0.5)
    model_steps_per_second(trial, width=2, device="cpu", seconds=0)
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        mode, at, url, folder = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            status, said = run(mode, at, url, folder)
            os.write(writer, said.encode()[:4000])
            os._exit(status)
        os.close(writer)
        with os.fdopen(reader) as answers:
            said = answers.read()
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]), flush=True)


if __name__ == "__main__":
    main()
