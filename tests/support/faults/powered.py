"""The program whose power is cut: a study that is trained, its checkpoints, and a queue, on SQLite.

    python -m tests.support.faults.powered FOLDER SEED TRIALS [SYNCHRONOUS]

SYNCHRONOUS: how the log of commits is synchronised, in place of what Graft sets.
What somebody may rely on from then on is in the file `answered`: a line of JSON for each report, checkpoint and
request.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from search.steering.controller import Controller
from spaces.records import Checkpoint, Trial
from spaces.space import Space
from storage import ControlledStudy, Store, StoreRequest, Terms, open_reader, open_store
from storage.databases.mailbox import Mailbox
from storage.store_request import REVOCATION
from tests.support.controller import FakeWorker
from tests.support.databases import new_study
from tests.support.faults.power import ANSWERED
from tests.support.queue import STUDY
from tests.support.search_spaces import PLAIN, space
from workers.engine.checkpoints import Archive, SavedTrial, Snapshot

NAME = "study"
_LANES = 3


def make_space(trials: int) -> Space:
    """Return the space of the study, whose sampler draws each trial from its number alone."""
    return space(PLAIN, trials=trials)


def state_of(number: int, step: int) -> Tensor:
    """Return what a checkpoint has of a trial: 4,000 bytes, so that it lies in several sectors."""
    return torch.arange(1000) * (number + 1) + step


def read_state(archive: Archive, checkpoint: Checkpoint) -> Tensor | None:
    """Return the state that a checkpoint names; None if its file is missing or damaged."""
    snapshot = archive.read(checkpoint.path, checkpoint.sha256)
    saved = snapshot and snapshot.state(checkpoint)
    return saved.tensors["state"] if saved else None


class SavingWorker(FakeWorker):
    """Lanes whose states are kept in checkpoint files, from which they go on."""

    def __init__(self, name: str, lanes: int, archive: Archive) -> None:
        super().__init__(name, lanes)
        self._archive = archive
        self._first_steps: dict[tuple[int, int], int] = {}

    def save(self) -> tuple[Checkpoint, ...]:
        """Write a file with the states of the lanes that have made a step here."""
        here = [(trial, step) for trial, step in self.lanes.values() if step > self.first_step(trial)]
        if not here:
            return ()
        trials = [SavedTrial(trial.number, trial.fence, step, step) for trial, step in here]
        states = torch.stack([state_of(trial.number, trial.step) for trial in trials])
        return self._archive.write(self.name, Snapshot("{}", trials, {"state": states}))

    def first_step(self, trial: Trial) -> int:
        """Return where it goes on: from the newest checkpoint that is whole, as an engine does."""
        start = (trial.number, trial.fence)
        if start not in self._first_steps:
            self._first_steps[start] = self._read_first_step(trial)
        return self._first_steps[start]

    def _read_first_step(self, trial: Trial) -> int:
        for checkpoint in trial.checkpoints:
            state = read_state(self._archive, checkpoint)
            if state is not None:
                assert state.equal(state_of(trial.number, checkpoint.step)), "a torn file was taken for a good one"
                return checkpoint.step
        return 0


def open_archive(folder: Path) -> Archive:
    """Return the checkpoints of the study."""
    return Archive(str(folder / "checkpoints"), NAME)


@contextmanager
def controlling(folder: Path, trials: int) -> Iterator[tuple[Store, ControlledStudy]]:
    """Open the database, which is made if it is not there, and claim its study."""
    url = f"sqlite:///{folder}/graft.db"
    with open_store(url) as store:
        with open_reader(url) as reader:
            ids = {row["name"]: row["id"] for row in reader.studies().iter_rows(named=True)}
        study_id = ids[NAME] if NAME in ids else new_study(store, NAME)
        objective = make_space(trials).search.objective
        yield store, store.take_control(study_id, policy="full", objective=objective, keep_open=True)


class Powered:
    """The program, one process after the other, until its study has ended."""

    def __init__(self, folder: Path, seed: int, trials: int, synchronous: str | None) -> None:
        self._folder, self._trials, self._synchronous = folder, trials, synchronous
        self._chance = random.Random(seed)
        self._box = Mailbox(folder / "graft.db.queue")
        self._archive = open_archive(folder)
        self._generations = count()
        self._asked = 0
        self._answers = os.open(folder / ANSWERED, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def run(self) -> None:
        """Train to the end; now and then the process ends and another one goes on."""
        while True:
            with controlling(self._folder, self._trials) as (store, study):
                connection: Any = store._session._connection  # pyright: ignore[reportPrivateUsage]
                driver = connection.connection.driver_connection
                if self._synchronous:
                    driver.execute(f"PRAGMA synchronous={self._synchronous}")
                driver.execute("PRAGMA wal_autocheckpoint=20")  # the log is begun again many times
                if self._train(store, study):
                    return

    def _train(self, store: Store, study: ControlledStudy) -> bool:
        """Train for a while; True at the end of the study."""
        self._answer("begun", NAME)  # from here on trials that ran may begin again, and what they reported may go
        controller = Controller.begin(make_space(self._trials), study, keep_checkpoints=self._archive.tidy)
        generation = next(self._generations)
        workers = [SavingWorker(f"{name}{generation}", _LANES, self._archive) for name in ("a", "b")]
        while not all(worker.done for worker in workers):
            if self._chance.random() < 0.03:
                return False
            if self._chance.random() < 0.2:
                self._ask(store)
            if self._chance.random() < 0.2:
                store.take_requests()
            worker = self._chance.choice([worker for worker in workers if not worker.done])
            reports = worker.train([number for number in worker.lanes if self._chance.random() < 0.7])
            saved = worker.save() if self._chance.random() < 0.3 else ()
            worker.obey(controller.exchange(reports, replace(worker.offer(), saved=saved)))
            for report in reports:
                self._answer("report", report.number, report.step, report.state)
            for checkpoint in saved:
                self._answer("saved", checkpoint.number, checkpoint.step)
        return True

    def _ask(self, store: Store) -> None:
        """Somebody submits a study, or makes a token and revokes it, by messages that are done later."""
        self._asked += 1
        name = f"asked-{self._asked}"
        if self._chance.random() < 0.5:
            self._box.post(StoreRequest.of_study(replace(STUDY, name=name), Terms()).to_json())
            self._answer("submitted", name)
            return
        row = {"role": "read", "digest": name, "seconds": None}
        store.carry_out(StoreRequest(action="make_token", study=name, row=row))
        self._answer("made", name)
        self._box.post(StoreRequest(action="revoke_token", study=name).to_json(), REVOCATION)
        self._answer("revoked", name)

    def _answer(self, *what: str | int) -> None:
        os.write(self._answers, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    path, seed, trials, *synchronous = sys.argv[1:]
    Powered(Path(path), int(seed), int(trials), *synchronous or [None]).run()
