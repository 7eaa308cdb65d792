"""The service, which runs several studies of a database's queue at a time over the same workers."""

from __future__ import annotations

import select
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

from graft.launching.checkpoints import Checkpoints
from graft.launching.employing import open_cluster
from graft.launching.placement import Placement
from graft.launching.process.crash_record import CrashRecord
from graft.launching.progress_text import closing_line
from graft.serving.lanes import LaneShares
from graft.serving.running import Pool, StudyRun
from spaces.errors import ChangedError, ClusterError, GraftError, RowError, StorageError, StudyError
from spaces.plugins.importing import explain
from storage import AwayError, QueueEntry, open_reader, open_store
from storage.databases.database import QUEUE_TOPIC

if TYPE_CHECKING:
    from workers.pool.ray.ray_pool import RayPool

LOOK_SECONDS = 0.25
"""Seconds between two looks at the queue, unless the database tells that it has changed."""
NOTE_SECONDS = 2.0
"""Seconds between two writings of each study's lanes."""
MOST_STUDIES = 8
"""The default number of studies of one class and those above it that are run at a time."""
_TO_RUN = ("waiting", "running")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a service at any time."""

    studies: int = MOST_STUDIES
    """The most studies of a class and those above it."""
    owner_lanes: int | None = None
    """The most lanes of one owner's studies together; None for any number."""


@final
class Service:
    """Serves one database (context manager); `run` is called once.

    Each study has the controller, fences, leases and numbers of a launch. Requests are kept in the
    database, so that a killed service resumes when it is started again.
    """

    def __init__(
        self,
        database: str,
        *,
        placement: Placement,
        checkpoints: Checkpoints,
        limits: Limits | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Open the database for a resolved `placement`; `say` is called with lines for people.

        Raises StudyError if another process serves or alone writes the database, or the cluster
        cannot be used; StorageError if the database cannot be written.
        """
        from workers.pool.turns import Turns

        _check_device(placement)
        self._limits = limits or Limits()
        self._say = say
        self._runs: dict[int, StudyRun] = {}
        self._noted: dict[int, tuple[int, float, str]] = {}
        self._noted_at = -NOTE_SECONDS
        self._record = CrashRecord.of_service(database)
        with ExitStack() as opened:
            self.store = opened.enter_context(open_store(database))
            self.store.lock_service()
            self._listener = opened.enter_context(open_reader(database))
            self._cluster = opened.enter_context(open_cluster(placement, shared=True))
            self._slots, width = _count_lanes(placement, self._cluster)
            self._shares = LaneShares(self._slots, width, self._limits.owner_lanes)
            self._opened = opened.pop_all()
        self._bell = self._listener.listen(QUEUE_TOPIC)
        self._pool = Pool(
            database=database,
            store=self.store,
            placement=placement,
            cluster=self._cluster,
            checkpoints=checkpoints,
            shares=self._shares,
            turns=Turns(),
            packs=defaultdict(list),
            say=say,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._opened.close()

    @property
    def lanes(self) -> int:
        """The number of lanes that are shared out now."""
        return self._shares.lanes

    @property
    def is_training(self) -> bool:
        """True while a study is being run."""
        return bool(self._runs)

    def run(self, stop_requested: Callable[[], bool] = lambda: False, *, until_empty: bool = False) -> None:
        """Run the queue until a stop is requested, or with `until_empty` until it is done.

        Running studies are then stopped with everything kept. Raises StorageError if the database
        cannot be written any more, ClusterError if the cluster is gone.
        """
        # A crash is blamed on a study only if the last service ran no other study.
        crash = self._record.read()
        interrupted = [entry.study_id for entry in self._read_queue() if entry.state == "running"]
        crashes = {interrupted[0]: crash} if crash and len(interrupted) == 1 else {}
        with self._record:
            try:
                while not stop_requested():
                    self._look_at_cluster()
                    self.store.take_requests()
                    self._follow(self._read_queue())
                    self._begin_more(self._read_queue(), crashes)
                    self._note()
                    is_idle = until_empty and not self._runs
                    if is_idle and not any(entry.state in _TO_RUN for entry in self._read_queue()):
                        return
                    self._wait()
            finally:
                self._stop_all()

    def _read_queue(self) -> list[QueueEntry]:
        """Return the sound entries, open or run here; a study whose entry was edited by hand fails."""
        entries, strange = self.store.queue.open_entries([*self._runs])
        for entry in strange:
            # A study that runs is not changed.
            if entry.is_to_run and entry.study_id not in self._runs:
                self.store.queue.note_end(entry.study_id, "failed", entry.fault)
                self._say(f"{entry.study}: failed: {entry.fault}")
        return entries

    def _wait(self) -> None:
        """Wait until it is time to look at the queue again, or the database reports a change."""
        if self._bell is None:
            time.sleep(LOOK_SECONDS)
            return
        try:
            select.select([self._bell], [], [], LOOK_SECONDS)
            self._listener.hush()
        except AwayError:  # regular looks are enough
            self._bell = None

    def _look_at_cluster(self) -> None:
        """Share out the lanes of the cluster's devices; raises ClusterError if it is gone."""
        if self._cluster is None:
            return
        self._cluster.check()
        if self._cluster.slots != self._slots:
            self._slots = self._cluster.slots
            self._shares.use_slots(self._slots)
            self._say(f"the cluster has {len(self._slots):,} workers now, {self.lanes:,} lanes")

    def _follow(self, entries: Sequence[QueueEntry]) -> None:
        """Stop paused and cancelled studies, take over new terms, and note the ends of others."""
        by_id = {entry.study_id: entry for entry in entries}
        for study_id, run in [*self._runs.items()]:
            entry = by_id.get(study_id, run.entry)
            if not run.thread.is_alive():
                del self._runs[study_id]
                self._end(run)
            elif entry.state in ("paused", "cancelled"):
                run.stopping.set()
            elif entry != run.entry:
                run.entry = entry
                self._shares.update(entry)

    def _end(self, run: StudyRun) -> None:
        """Note how a study ended; raises StorageError if the database cannot be written now."""
        queue, entry, progress = self.store.queue, run.entry, run.progress
        self._noted.pop(entry.study_id, None)
        if isinstance(run.error, ClusterError):
            queue.note_stop(entry.study_id)  # the service ends, and reports why
        elif isinstance(run.error, AwayError | ChangedError):
            # Its row was read while the server was away (if it stays so, the next write raises), or changed since.
            queue.note_stop(entry.study_id)
            cause = "the database does not answer: " if isinstance(run.error, AwayError) else ""
            self._say(f"{entry.study}: waits, as {cause}{run.error}")
        elif isinstance(run.error, StorageError) and not isinstance(run.error, RowError):
            # A reader finds a deleted file simply missing. The writing connection has it open:
            # it saves the content and raises an error with the place.
            queue.sound_entries()
            raise run.error
        elif run.error is not None:
            line = _describe(run.error, self._pool.database)
            queue.note_end(entry.study_id, "failed", line)
            self._say(f"{entry.study}: failed: {line}")
        elif progress and progress.stopping:
            if not run.stopping.is_set():
                queue.note_end(entry.study_id, "paused", "it was stopped by `search stop`")
            queue.note_stop(entry.study_id)
            self._say(f"{entry.study}: stopped with everything kept")
        else:
            queue.note_end(entry.study_id, "done")
            seconds = time.monotonic() - run.started
            self._say(closing_line(entry.study, progress, seconds) if progress else f"{entry.study}: finished before")

    def _stop_all(self) -> None:
        """Stop every study with everything kept; they wait for the next service."""
        runs = [*self._runs.values()]
        self._runs.clear()
        for run in runs:
            run.stopping.set()
        # All threads end first: an error that ends the process while one is inside torch aborts it.
        while any(run.thread.is_alive() for run in runs):
            time.sleep(LOOK_SECONDS / 5)
        for run in runs:
            self._end(run)

    def _begin_more(self, entries: Sequence[QueueEntry], crashes: dict[int, str]) -> None:
        """Run waiting studies while there is room, in the queue's order; a crash is used once."""
        for entry in entries:
            if entry.state not in _TO_RUN or entry.study_id in self._runs:
                continue
            above = sum(run.entry.priority >= entry.priority for run in self._runs.values())
            if above >= self._limits.studies:
                reason = f"waits: {above} studies of its class or above run, the most at a time"
                self._note_one(entry.study_id, 0, 0.0, reason)
                continue
            if holder := self.store.find_holder(entry.study_id, entry.study):
                self._note_one(entry.study_id, 0, 0.0, f"waits: it is being run by {holder}")
                continue
            self.store.queue.note_start(entry.study_id)
            run = StudyRun(self._pool, entry, crashes.pop(entry.study_id, None))
            try:
                run.start()
            except RuntimeError:  # the machine has no thread left: the service ends, and the study waits
                self._shares.remove(entry.study_id)
                self.store.queue.note_stop(entry.study_id)
                raise
            self._runs[entry.study_id] = run
            self._say(f"{entry.study}: runs, {entry.trials:,} trials")

    def _note(self) -> None:
        """Write each study's lanes and share, if it is time."""
        if time.monotonic() < self._noted_at + NOTE_SECONDS:
            return
        self._noted_at = time.monotonic()
        for study_id, run in self._runs.items():
            standing = self._shares.standing(study_id)
            if standing and not run.stopping.is_set():
                self._note_one(study_id, standing.lanes, round(standing.share, 3), standing.reason)

    def _note_one(self, study_id: int, lanes: int, share: float, reason: str) -> None:
        if self._noted.get(study_id) != (lanes, share, reason):
            self._noted[study_id] = lanes, share, reason
            self.store.queue.note_lanes(study_id, lanes=lanes, share=share, reason=reason)


def _count_lanes(placement: Placement, cluster: RayPool | None) -> tuple[Sequence[int], int]:
    """Return the numbers of the workers of each study, and the lanes of each worker."""
    from workers.engine.machine.devices import default_width, inline_workers

    if cluster:
        return cluster.slots, placement.width or default_width(cluster.device)
    device, count = str(placement.device), placement.workers
    if placement.executor == "processes":
        count = placement.process_count()
    return range(count or inline_workers(device)), placement.width or default_width(device)


def _check_device(placement: Placement) -> None:
    """Raise StudyError unless the placement decides on which devices trials train."""
    from workers.engine.machine.devices import gpus

    if placement.executor == "ray" and placement.ray_address is None:
        raise StudyError("a service on Ray needs --ray-address; on the devices of this machine, --devices")
    if placement.executor in ("processes", "ray"):
        return
    if (count := gpus()) > 1 and placement.device == "cuda":
        choices = ",".join(f"cuda:{index}" for index in range(count))
        raise StudyError(
            f"--device: this machine has {count} GPUs; write --devices cuda for all of them, or choose of {choices}"
        )


def _describe(error: BaseException, database: str) -> str:
    """Return an error in one line, and damage of a row that was edited by hand as such."""
    from graft.launching.process.memory_limits import describe_shortage
    from storage.checking import describe_damage

    text = str(error) if isinstance(error, GraftError) else describe_shortage(error) or str(explain(error) or "")
    text = text or describe_damage(database)
    return " ".join((text or f"{type(error).__name__}: {error}").split())
