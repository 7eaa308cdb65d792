"""A service with four studies queued, in a storm: it is started again whenever it ends, and what it did is audited.

The workers of a service are threads of it: to kill one is to kill the service. What the database has recorded leaves
the service through a pipe, before any worker is answered, and is compared with what the database says in the end.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from spaces.errors import GraftError
from storage import QueueEntry, open_reader
from tests.support.databases import raw
from tests.support.faults.auditor import Finding
from tests.support.faults.toy import BEAT_SECONDS, LEASE_SECONDS, SELF_STOP_SECONDS, SWEEP_SECONDS
from tests.support.launches import SPACE, TRIALS, Launched, Numbers, kill, numbers, search

STUDIES: Mapping[str, Sequence[str]] = {
    "a": ("--seed", "6"),
    "b": ("--seed", "7", "--set", "model.width=12"),
    "c": ("--seed", "8"),
    "d": ("--seed", "9"),
}
"""Name -> what makes it another study: three have packs of the same shapes, and two of these are of one class."""
TERMS: Mapping[str, Sequence[str]] = {
    "a": ("--owner", "ann"),
    "b": ("--owner", "bo", "--weight", "2"),
    "c": ("--owner", "ann", "--priority", "1"),
    "d": ("--owner", "cy", "--max-lanes", "4"),
}
STEPS, VALIDATE_EVERY = 400, 100
REPORTS = len(STUDIES) * TRIALS * STEPS // VALIDATE_EVERY
SIZES = ("--steps", str(STEPS), "--set", f"training.validate_every={VALIDATE_EVERY}")
WORKERS, LANES = 2, 8
PLACE = ("--workers", str(WORKERS), "--pack", str(LANES))
RESTART_SECONDS = 0.2
PATIENCE = 180.0
"""Seconds that the service has to end when it is to."""
LOSE = "lease lost"
"""The file that makes the controller tell one worker that its lease has run out; gone when it has."""
HOLD = "hold"
"""The file that makes the service train slowly: faults come while there is something to train."""
HOLD_SECONDS = 3.0
"""At most, before each step of a pack."""
_SERVES = re.compile("serves .* lanes on ")
_BEFORE = """
import json, os, time
import search.steering.leases as leases
import workers.pool.heartbeat as heartbeat
from search.steering.controller import Controller
from storage.control.controlled_study import ControlledStudy
from workers.pool.worker import Worker

leases.LEASE_SECONDS, leases.SWEEP_SECONDS, heartbeat.BEAT_SECONDS, heartbeat.SELF_STOP_SECONDS = {seconds}
pipe = os.open({pipe!r}, os.O_WRONLY)
record, renew, train = ControlledStudy.record, Controller.renew, Worker._train_steps

def record_and_tell(study, reports, *more):
    ended = record(study, reports, *more)
    for report in reports:
        told = [study.id, report.number, report.step, report.state, [tuple(one) for one in report.metrics]]
        os.write(pipe, json.dumps(told).encode() + b"\\n")
    return ended

def renew_or_lose(controller, worker):
    try:
        os.unlink({lose!r})
    except FileNotFoundError:
        return renew(controller, worker)
    return False

def train_slowly(worker, pack):
    until = time.monotonic() + {hold_seconds}
    while os.path.exists({hold!r}) and time.monotonic() < until:
        time.sleep(0.05)
    return train(worker, pack)

ControlledStudy.record, Controller.renew, Worker._train_steps = record_and_tell, renew_or_lose, train_slowly
"""


@dataclass(kw_only=True)
class Evidence:
    """What was seen from outside."""

    recorded: Counter[tuple[int, int, int, str]] = field(default_factory=Counter[tuple[int, int, int, str]])
    """Study's id, trial, step and state of a report -> how often it was acknowledged."""
    values: dict[tuple[int, int, int, str, str, str], float | None] = field(default_factory=dict)
    """The same without the state, name, variant and condition of a number in it."""
    priorities: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    """Study -> the last acknowledged priority, and those that were asked for since and not answered."""
    wrong: list[Finding] = field(default_factory=list[Finding])


@dataclass(kw_only=True)
class MortalService:
    """The service of a database with the four studies queued, one process after the other. A context manager."""

    folder: Path
    url: str
    """As the service reaches the database."""
    direct: str
    """As those who look do."""
    evidence: Evidence = field(default_factory=Evidence)
    ends: Counter[str] = field(default_factory=Counter[str])
    """How its processes ended -> how often."""
    _process: Launched | None = None
    _lines: list[str] = field(default_factory=list[str])
    _due: tuple[int, str] | None = None
    """Status and last line with which the present process is to end; None: it is to go on."""
    _due_by: float = 0.0
    _ended: float = -1.0

    def __enter__(self) -> Self:
        self._pipe = self.folder / "recorded"
        os.mkfifo(self._pipe)
        # Open for writing, too, so that it never reads as ended between two services.
        self._reader = os.fdopen(os.open(self._pipe, os.O_RDWR))
        threading.Thread(target=self._listen, daemon=True).start()
        for name, options in STUDIES.items():
            search(
                self.folder, "submit", SPACE, "--name", name, *options, *SIZES, *TERMS[name], "--storage", self.direct
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        while self.runs():
            time.sleep(0.02)

    # ------------------------------------------------------------------------------------------- for the storm

    def process(self) -> psutil.Process | None:
        """Return the service that runs now, and has said that it serves."""
        process = self._process
        if process is None or process.poll() is not None or self._due or not self.is_serving:
            return None
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(process.pid)
        return None

    @property
    def is_serving(self) -> bool:
        """Whether the present process has said that it serves."""
        return any(_SERVES.match(line) for line in self._lines)

    def is_service(self) -> bool:
        """Whether the database knows the present process as its service."""
        process = self._process
        with suppress(GraftError), open_reader(self.direct) as reader:
            return process is not None and f"process {process.pid} " in (reader.service() or "")
        return False

    def expect(self, status: int, words: str) -> None:
        """Set how the present process is to end."""
        self._due, self._due_by = (status, words), time.monotonic() + PATIENCE

    def runs(self) -> bool:
        """Whether a process of it runs; notes how one ended, and kills one that does not end though it should."""
        process = self._process
        if process is not None and process.poll() is not None:
            self._note_end(process)
        elif process is not None and self._due and time.monotonic() > self._due_by:
            self.evidence.wrong.append(Finding("stuck", f"the service did not end in {PATIENCE:g} s: {self._due}"))
            self._due = -signal.SIGKILL, ""
            kill(process)
        return self._process is not None

    def tend(self) -> None:
        """Start the service when it does not run. To be called often."""
        if not self.runs() and time.monotonic() > self._ended + RESTART_SECONDS:
            self._start()

    def kill(self) -> None:
        """End it by kill -9."""
        if self._process:
            self.expect(-signal.SIGKILL, "")
            kill(self._process)

    def finish(self) -> None:
        """Stop the service, which has nothing to do any more."""
        service, process = self.process(), self._process
        if process and service:
            self.expect(130, "stopped with everything kept")
            service.send_signal(signal.SIGTERM)
            while self.runs():
                time.sleep(0.02)

    def is_done(self) -> bool:
        """Whether all studies are done."""
        with suppress(GraftError):
            return [entry.state for entry in self.entries().values()] == ["done"] * len(STUDIES)
        return False

    def entries(self) -> Mapping[str, QueueEntry]:
        """Study -> its entry; raises StorageError while the database is away."""
        with open_reader(self.direct) as reader:
            return {entry.study: entry for entry in reader.queue()}

    # ------------------------------------------------------------------------------------------------- its own

    def _start(self) -> None:
        names = {"pipe": str(self._pipe), "lose": str(self.folder / LOSE), "hold": str(self.folder / HOLD)}
        seconds = (LEASE_SECONDS, SWEEP_SECONDS, BEAT_SECONDS, SELF_STOP_SECONDS)
        before = _BEFORE.format(**names, seconds=seconds, hold_seconds=HOLD_SECONDS)
        arguments = ("serve", *PLACE, "--checkpoints", str(self.folder / "checkpoints"), "--checkpoint-every", "1")
        self._process = Launched(self.folder, [*arguments, "--storage", self.url], before)
        self._lines, self._due = [], None
        threading.Thread(target=self._read, args=(self._process, self._lines), daemon=True).start()

    def _read(self, process: Launched, lines: list[str]) -> None:
        with suppress(ValueError):  # closed
            lines.extend(line.rstrip("\n") for line in process.stderr)

    def _note_end(self, process: Launched) -> None:
        time.sleep(0.05)  # for the last lines
        status, last = process.returncode, next(reversed(self._lines), "")
        self.ends[f"status {status}"] += 1
        expected, words = self._due or (0, "nothing")
        is_due = self._due is not None and status == expected and re.match(words, last)
        # A server may be away when a service begins, or not know yet that the one before is dead.
        is_early = status == 2 and not self.is_serving and not self.url.startswith("sqlite")
        if not (is_due or is_early) or any("Traceback" in line for line in self._lines):
            said = " | ".join(self._lines[-3:])
            self.evidence.wrong.append(
                Finding("crash", f"the service ended with status {status}, due {self._due}: {said}")
            )
        process.close()
        self._process, self._ended = None, time.monotonic()

    def _listen(self) -> None:
        for line in self._reader:
            study, number, step, state, metrics = json.loads(line)
            for name, variant, condition, value in metrics:
                self.evidence.values[study, number, step, name, variant, condition] = value
            self.evidence.recorded[study, number, step, state] += 1


# --------------------------------------------------------------------------------------------------- what is asked


@dataclass(kw_only=True)
class Asker:
    """A person who changes the queue meanwhile; what was answered must hold."""

    service: MortalService
    chance: random.Random
    asked: Counter[str] = field(default_factory=Counter[str])
    _paused: str | None = None

    def ask(self) -> None:
        """Change something: the priority of a study, or whether it is paused."""
        if self._paused:
            self.resume()
            return
        study = self.chance.choice([*STUDIES])
        if self.chance.random() < 0.5:
            if self._send("pause", study):
                self._paused = study
            return
        priority, known = self.chance.randrange(-5, 6), self.service.evidence.priorities
        before = known.get(study, {1 if study == "c" else 0})
        if self._send("reprioritise", study, "--priority", str(priority)):
            known[study] = {priority}
        else:
            known[study] = before | {priority}

    def resume(self) -> None:
        """Resume what is paused; the database must still have it so."""
        if not self._paused:
            return
        with suppress(GraftError):
            state = self.service.entries()[self._paused].state
            if state != "paused":
                self.service.evidence.wrong.append(Finding("lost", f"{self._paused} was paused, and is {state}"))
        if self._send("resume", self._paused):
            self._paused = None

    def _send(self, action: str, *arguments: str) -> bool:
        """Whether the request was answered: done, or durable."""
        process = Launched(self.service.folder, ["queue", action, *arguments, "--storage", self.service.direct], "pass")
        try:
            _, said = process.communicate(120)
        finally:
            kill(process)
            process.wait()
            process.close()
        self.asked[f"{action}{'' if process.returncode == 0 else ' refused'}"] += 1
        if "Traceback" in said or process.returncode not in (0, 2):
            self.service.evidence.wrong.append(
                Finding("crash", f"{action}: status {process.returncode}: {said[-300:]}")
            )
        return process.returncode == 0


# --------------------------------------------------------------------------------------------------------- the audit


def audit(service: MortalService, undisturbed: Numbers) -> Iterator[Finding]:
    """Yield the promises that are broken when all studies are to be done."""
    evidence = service.evidence
    yield from evidence.wrong
    names = dict(raw(service.direct, "SELECT id, name FROM studies"))
    entries = service.entries()
    for study, entry in entries.items():
        if (entry.state, entry.lanes) != ("done", 0):
            yield Finding("stuck", f"study {study} is {entry.state} with {entry.lanes} lanes: {entry.reason}")
        if entry.priority not in evidence.priorities.get(study, {entry.priority}):
            yield Finding("lost", f"{study} has priority {entry.priority}, not {evidence.priorities[study]}")
    if entries.keys() != STUDIES.keys():
        yield Finding("lost", f"the queue has {sorted(entries)}")
    trials = raw(service.direct, "SELECT study_id, number, state, steps FROM trials")
    ended = {(study, number): (state, steps) for study, number, state, steps in trials}
    if len(trials) != TRIALS * len(STUDIES):
        yield Finding("count", f"there are {len(trials)} trials")
    for (study, number), (state, steps) in ended.items():
        if (state, steps) != ("finished", STEPS):
            yield Finding("stuck", f"trial {number} of {names[study]} is {state} at step {steps}")
    for (study, number, step, state), times in evidence.recorded.items():
        if state != "running" and ended.get((study, number)) != (state, step):
            yield Finding("lost", f"trial {number} of {names[study]} was {state} at step {step}")
        if state != "running" and times > 1:
            yield Finding("doubled", f"trial {number} of {names[study]} ended {times} times")
    table = numbers(service.direct)
    for (study, number, step, name, variant, condition), value in evidence.values.items():
        whole = (names[study], number, step, name, variant, condition)
        if whole not in table or table[whole] != value:
            yield Finding("lost", f"{whole} was {value}, and is {table.get(whole, 'not there')}")
    differing = [key for key in undisturbed.keys() | table.keys() if undisturbed.get(key, 0.5) != table.get(key, -0.5)]
    for key in sorted(differing)[:20]:
        yield Finding("value", f"{key} is {table.get(key)}, and {undisturbed.get(key)} where nothing happens")
    if raw(service.direct, "SELECT DISTINCT state FROM studies") != [("finished",)]:
        yield Finding("ending", "not all studies are finished")


def launch_undisturbed(folder: Path) -> Numbers:
    """Return what launches of the four studies leave, one after the other."""
    for name, options in STUDIES.items():
        search(folder, "launch", SPACE, "--study", name, *options, *SIZES, *PLACE, seconds=600)
    return numbers(f"sqlite:///{folder}/graft.db")
