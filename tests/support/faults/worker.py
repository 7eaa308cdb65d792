"""A toy worker, a process of its own: `python -m tests.support.faults.worker NAME LANES PACE FOLDER CALLS BEATS`.

It has the manners of a real one (one structure at a time, free lanes refilled, nothing kept that it is told to drop)
and trains by `tests.support.faults.toy`. PACE is the seconds that a step of all its lanes takes; none once
FOLDER/calm exists.
CALLS and BEATS are open connections to its launcher; it ends when the launcher does.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from spaces.records import Checkpoint, Directives, Metric, Offer, Report, Trial
from tests.support.faults.history import Event, History, Kind
from tests.support.faults.toy import BEAT_SECONDS, SELF_STOP_SECONDS, Training, fate_of
from workers.pool import heartbeat as heartbeat
from workers.pool.exchanger import Exchanger
from workers.pool.heartbeat import Heartbeat

CALM = "calm"
"""The file that ends the slow time."""
EXCHANGE_SECONDS = 0.5
SAVE_SECONDS = 0.5
_GONE = (EOFError, OSError)
"""What a connection raises when its other end has died."""


@dataclass(kw_only=True)
class LaneTrial:
    """A trial and how far it is."""

    trial: Trial
    training: Training


@dataclass(kw_only=True)
class ToyWorker:
    """Trains what the controller gives it, and writes down what it saw."""

    name: str
    width: int
    pace: float
    exchange: Callable[[Sequence[Report], Offer], Directives]
    history: History
    folder: Path
    renew: Callable[[], bool] = lambda: True
    lanes: dict[int, LaneTrial] = field(default_factory=dict[int, LaneTrial])
    steps: int = 0
    """Of all lanes together since the last offer."""
    saved: tuple[Checkpoint, ...] = ()
    """What the next offer says of a checkpoint."""
    written: float = field(default_factory=time.monotonic)
    """When the last checkpoint was written."""

    def run(self) -> None:
        """Exchange and train until the controller is done with this worker, or its lease has run out."""
        reports: list[Report] = []
        with Exchanger(self.exchange) as exchanger, Heartbeat(self.renew) as heartbeat:
            while heartbeat.alive():
                exchanger.send(reports, self._offer())
                directives, journal = self._await_answer(exchanger, heartbeat)
                if directives is None or directives.lease_lost:
                    break
                self._note(reports, directives)
                if directives.done:
                    return
                self._apply(directives)
                self._save(asked=directives.save)
                reports = [report for report in journal if report.number not in directives.stop]
                if not (reports or self.saved or directives.save):
                    reports = self._train()
        self.history.add(Event(kind="lost"))

    def _await_answer(self, exchanger: Exchanger, heartbeat: Heartbeat) -> tuple[Directives | None, list[Report]]:
        """Return the answer, and what the lanes say until it comes; None if the lease ran out meanwhile."""
        journal: list[Report] = []
        directives = exchanger.answer(EXCHANGE_SECONDS)
        while directives is None and heartbeat.alive():
            journal += self._train()
            directives = exchanger.answer(0.0 if self.lanes else EXCHANGE_SECONDS)
        return directives, journal

    def _save(self, *, asked: bool) -> None:
        """Write where the lanes stand, if the controller asks or it is time, under a name that no file had."""
        if not self.lanes or not (asked or time.monotonic() > self.written + SAVE_SECONDS):
            return
        self.written = time.monotonic()
        lanes = [*self.lanes.values()]
        states = [[*running.trial.start, running.training.step, running.training.word] for running in lanes]
        content = json.dumps(states).encode()
        path = self.folder / f"{self.name}-{time.monotonic_ns()}.json"
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        self.saved = tuple(
            Checkpoint(*running.trial.start, running.training.step, str(path), row, digest)
            for row, running in enumerate(lanes)
        )

    def _offer(self) -> Offer:
        structure = next((running.trial.structure for running in self.lanes.values()), None)
        steps, self.steps = self.steps, 0
        saved, self.saved = self.saved, ()
        return Offer(
            worker=self.name,
            lanes=self.width - len(self.lanes),
            structure=structure,
            host="toy",
            device="toy",
            steps=steps,
            holds=tuple(running.trial.start for running in self.lanes.values()),
            saved=saved,
        )

    def _note(self, reports: Sequence[Report], directives: Directives) -> None:
        """Write what is recorded now. A report on a trial that is to be dropped may have come too late for that."""
        for report in reports:
            if report.number not in directives.stop:
                self.history.add(_event_of("acknowledged", report))

    def _apply(self, directives: Directives) -> None:
        for number in directives.stop:
            running = self.lanes.pop(number, None)
            self.history.add(Event(kind="dropped", number=number, fence=running.trial.fence if running else 0))
        for trial in directives.start:
            self.history.add(Event(kind="started", number=trial.number, fence=trial.fence))
            self.lanes[trial.number] = LaneTrial(trial=trial, training=_resumed(trial))

    def _train(self) -> list[Report]:
        """All lanes, until one has something to say or the controller should be asked for news."""
        if not self.lanes:
            time.sleep(EXCHANGE_SECONDS / 5)
        reports: list[Report] = []
        end = time.monotonic() + EXCHANGE_SECONDS
        while self.lanes and not reports and time.monotonic() < end:
            time.sleep(0 if (self.folder / CALM).exists() else self.pace)
            for running in self.lanes.values():
                running.training.advance()
            self.steps += len(self.lanes)
            reports = [_report(running) for running in self.lanes.values() if running.training.is_due()]
        for report in reports:
            self.history.add(_event_of("reported", report))
            if report.state != "running":
                del self.lanes[report.number]
        return reports


def _resumed(trial: Trial) -> Training:
    """From the newest checkpoint that is whole; from the beginning if none is."""
    for checkpoint in trial.checkpoints:
        content = Path(checkpoint.path).read_bytes()
        if hashlib.sha256(content).hexdigest() == checkpoint.sha256:
            number, fence, step, word = json.loads(content)[checkpoint.row]
            assert (number, fence, step) == checkpoint[:3]
            return Training(config=trial.config, seed=trial.seed, step=step, word=word)
    return Training(config=trial.config, seed=trial.seed)


def _report(running: LaneTrial) -> Report:
    training = running.training
    fate = fate_of(training.config, training.seed)
    state = fate.state if training.step == fate.step else "running"
    return Report(
        number=running.trial.number,
        step=training.step,
        metrics=tuple(Metric(*key, value) for key, value in training.metrics().items()),
        state=state,
        error=None if state in ("running", "finished") else "as it was to be",
        fence=running.trial.fence,
    )


def _event_of(kind: Kind, report: Report) -> Event:
    return Event(kind=kind, number=report.number, fence=report.fence, step=report.step, state=report.state)


def main() -> None:
    name, width, pace, folder, calls, beats = sys.argv[1:]
    history = History(Path(folder), name)
    history.add(Event(kind="employed", process=os.getpid()))
    line = Connection(int(calls))

    def exchange(reports: Sequence[Report], offer: Offer) -> Directives:
        line.send((tuple(reports), offer))
        return line.recv()

    beat = Connection(int(beats))

    def renew() -> bool:
        try:
            beat.send("alive")
            return beat.recv()
        except _GONE:
            os._exit(0)

    heartbeat.BEAT_SECONDS, heartbeat.SELF_STOP_SECONDS = BEAT_SECONDS, SELF_STOP_SECONDS
    with suppress(*_GONE):
        ToyWorker(
            name=name,
            width=int(width),
            pace=float(pace),
            exchange=exchange,
            renew=renew,
            history=history,
            folder=Path(folder),
        ).run()
    os._exit(0)  # threads of it may still wait for a launcher that is dead


if __name__ == "__main__":
    main()
