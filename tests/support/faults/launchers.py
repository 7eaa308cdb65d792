"""The launchers of a farm, one at a time: the next is started when one has ended without having finished the study."""

from __future__ import annotations

import multiprocessing.process
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import psutil

from tests.support.faults.farm import DONE, FAILED, LOG, Farm, launch
from tests.support.faults.history import events

RESTART_SECONDS = 0.2
"""Between the end of a launcher and the next."""
MOST_CRASHES = 20
_EXPECTED = (DONE, FAILED, -signal.SIGKILL)


class Launchers:
    """Forks launchers from a process that has imported all they need; the storm finds its victims here."""

    def __init__(self, farm: Farm) -> None:
        self.done = False
        """Whether a launcher has finished the study."""
        self.crashes: list[str] = []
        """Launchers that ended as no launcher should."""
        self._farm = farm
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([launch.__module__])
        self._statuses = Counter[int]()
        self._process = self._new()
        self._ended: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the launcher, and every worker that any launcher employed."""
        self._process.kill()
        self._process.join()
        for event in events(self._farm.folder):
            if event.kind == "employed":
                with suppress(psutil.NoSuchProcess):
                    process = psutil.Process(event.process)
                    if event.writer in process.cmdline():
                        process.kill()

    def tend(self) -> bool:
        """Start the next launcher when it is time; whether the study is finished. To be called often."""
        if self.done or self._process.is_alive():
            return self.done
        if self._ended is None:
            self._note_end()
        elif time.monotonic() > self._ended + RESTART_SECONDS:
            self._process, self._ended = self._new(), None
        return self.done

    def launcher(self) -> psutil.Process | None:
        """Return the one that runs now."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid) if self._process.is_alive() else None
        return None

    def workers(self) -> Sequence[psutil.Process]:
        """Its workers that live, frozen or not."""
        with suppress(psutil.NoSuchProcess):
            launcher = self.launcher()
            children = launcher.children() if launcher else []
            return [worker for worker in children if worker.status() != psutil.STATUS_ZOMBIE]
        return []

    def wait_for_failure(self, seconds: float) -> bool:
        """Whether the launcher that runs now gives up in so many seconds."""
        self._process.join(seconds)
        return self._process.exitcode == FAILED

    def refuses(self, url: str, words: str, seconds: float) -> bool | None:
        """Whether a second launcher, by this URL, gives up with these words; None if the first ended meanwhile.

        The second one is one of the farm: between two connections of the first it may get the study, and what it does
        then belongs to the history.
        """
        log = self._farm.folder / LOG
        said = log.stat().st_size if log.exists() else 0
        second = self._context.Process(target=launch, args=(replace(self._farm, url=url),))
        second.start()
        second.join(seconds)
        second.kill()
        second.join()
        refused = second.exitcode == FAILED and words in (log.read_text()[said:] if log.exists() else "")
        if not refused:
            self._process.join(seconds)  # who has lost the study to the second one hears of it when it writes
        return refused if self._process.is_alive() else None

    def notes(self) -> list[str]:
        """How the launchers ended, and what those that gave up had to say, each line once."""
        log = self._farm.folder / LOG
        said = Counter(log.read_text().splitlines() if log.exists() else ())
        ended = ", ".join(f"{count} with status {status}" for status, count in sorted(self._statuses.items()))
        return [f"launchers ended: {ended}", *(f"{count} times: {line}" for line, count in said.most_common(10))]

    def _new(self) -> multiprocessing.process.BaseProcess:
        process = self._context.Process(target=launch, args=(self._farm,))
        process.start()
        return process

    def _note_end(self) -> None:
        self._ended = time.monotonic()
        status = self._process.exitcode
        assert status is not None
        self._statuses[status] += 1
        self.done = status == DONE
        if status not in _EXPECTED:
            self.crashes.append(f"a launcher ended with status {status}")
            if len(self.crashes) == MOST_CRASHES:
                raise RuntimeError(f"{MOST_CRASHES} launchers crashed: no storm, each ends as soon as it starts")
