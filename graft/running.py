"""A study written into the database, and opened for running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graft.families import families, version
from spaces.errors import GraftError, StudyError
from spaces.records import Directives, Offer, Report, State
from storage import StudyMemory, open_reader, open_store

if TYPE_CHECKING:
    from spaces.space import Space
    from workers.engine.checkpoints import Archive
    from workers.pool import Saving


def enrol(url: str, name: str, space: Space) -> bool:
    """Write the study into the database; True if it is new.

    Raises StudyError if the name is taken by a study of another space, or a running controller holds the database.
    """
    with open_store(url) as store, open_reader(url) as reader:
        rows = {row["name"]: row for row in reader.studies().iter_rows(named=True)}
        if name not in rows:
            search = space.search
            store.create_study(
                name,
                space=space.text,
                space_hash=space.hash,
                objective=search.objective,
                seed=search.seed,
                trials=search.trials,
                version=version(),
            )
            return True
    if rows[name]["space_hash"] != space.hash:
        raise StudyError(
            f"study {name!r} exists with another space; give this one another name with --study, "
            f"or go on with the old one by `search resume {name}`"
        )
    return False


def find_study(url: str, name: str) -> Mapping[str, Any]:
    """The study's row in the database; StudyError with the choices if there is no such study."""
    with open_reader(url) as reader:
        return reader.study(name)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a running study stands, for the display and the closing line."""

    planned: int
    counts: Mapping[State, int]
    objective: str
    best: float | None
    best_number: int | None
    model_steps: int
    """Training steps made by this controller's workers, summed over lanes."""
    utilisation: float | None
    """Share of lane-steps that trained a trial; None before the first step."""
    stopping: bool
    """Whether a stop was asked for."""


class RunningStudy:
    """A study opened for running: the controller on top of its claimed database, in one process."""

    def __init__(self, url: str, name: str, saving: Saving | None = None, place: str | None = None) -> None:
        """`saving`: where checkpoints go; `place`: what is noted of that for the next launch, None: as it was.

        Raises StudyError if there is no such study, or another process runs it.
        """
        from search.steering.controller import Controller
        from spaces import parse

        row = find_study(url, name)
        space = parse(row["space"], f"the space of study {name}", families())
        self._objective = space.search.objective
        self._comparable = space.has_one_objective
        self._study: int = row["id"]
        self._archive = _archive(saving)
        self._store = open_store(url)
        self._done = False
        try:
            self._store.claim(self._study, policy=space.search.history, objective=self._objective)
            self._store.set_state(self._study, "running")
            if place is not None:
                self._store.set_checkpoints(self._study, place)
            self._controller = Controller.begin(space, StudyMemory(self._store, self._study))
            self._workers: set[str] = set()
            self._tidy()
        except BaseException:
            self._store.close()
            raise

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Record, decide, answer."""
        directives = self._controller.exchange(reports, offer)
        self._done = self._done or (directives.done and not self._controller.progress().stopping)
        self._workers.add(offer.worker)
        if offer.saved:
            self._tidy()
        self._controller.sweep()
        return directives

    def renew(self, worker: str) -> bool:
        """The worker lives; False if its lease ran out. Waits for nothing."""
        return self._controller.renew(worker)

    def sweep(self) -> None:
        """Workers that fell silent lose their trials."""
        self._controller.sweep()

    def handle_crash(self, worker: str) -> None:
        """The worker died: its trials go back to the queue."""
        self._controller.handle_crash(worker)

    def handle_departure(self, worker: str) -> None:
        """The worker went down with its machine: its trials go back to the queue."""
        self._controller.handle_departure(worker)

    def request_stop(self) -> None:
        """From now on every worker is told to stop; what it trained goes back to the queue."""
        self._controller.request_stop()

    def progress(self) -> Standing:
        """Where the study stands."""
        progress = self._controller.progress()
        return Standing(
            planned=progress.planned,
            counts=progress.counts,
            objective=str(self._objective),
            best=progress.best if self._comparable else None,
            best_number=progress.best_number if self._comparable else None,
            model_steps=progress.lane_steps,
            utilisation=progress.lane_steps / progress.lane_room if progress.lane_room else None,
            stopping=progress.stopping,
        )

    def close(self) -> None:
        """Write how the run ended, if the database still lets us, and release it."""
        with suppress(GraftError):
            self._controller.close()
            self._store.set_state(self._study, "finished" if self._done else "stopped")
            self._workers.clear()
            self._tidy()
        self._store.close()

    def _tidy(self) -> None:
        """Remove the checkpoints from which no trial goes on."""
        if self._archive:
            self._archive.tidy(self._store.checkpoint_paths(self._study), self._workers)


def _archive(saving: Saving | None) -> Archive | None:
    from workers.engine.checkpoints import Archive

    return Archive(saving.place, saving.study) if saving else None
