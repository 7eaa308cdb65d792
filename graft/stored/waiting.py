"""Waiting until a study no longer runs, in whatever process, by its database alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from graft.stored.studies import read_state
from spaces.errors import StudyError
from storage import QueueEntry
from storage.frames import Reader
from storage.frames.study import StudyReader

LOOK_SECONDS = 1.0
"""Seconds between two looks at the database."""

WaitResult = Literal["finished", "failed", "stopped", "interrupted", "timeout"]


def wait_for_study(
    reader: Reader,
    name: str,
    timeout: float | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> WaitResult:
    """Wait until the study is finished, failed or stopped, at most `timeout` seconds; return which.

    A study in a service's queue is waited for while its entry waits, runs or is paused; a cancelled
    one is `stopped`. `interrupted` is a study whose process is gone, and `timeout` one that still
    runs. Raises StudyError if the study does not exist, or is deleted meanwhile.
    """
    if timeout is not None and not timeout >= 0:
        raise StudyError(f"timeout: {timeout!r} must be at least 0 seconds")
    ends_at = None if timeout is None else clock() + timeout
    before: WaitResult | None = None
    while True:
        end = _look(reader, name)
        # An ending process writes the state before it releases the study. A look may fall between
        # the two, so that a study counts as interrupted only if the next look agrees.
        if end is not None and (end != "interrupted" or before == end):
            return end
        before = end
        left = LOOK_SECONDS if ends_at is None else ends_at - clock()
        if left <= 0:
            return "timeout"
        sleep(min(LOOK_SECONDS, left))


def _look(reader: Reader, name: str) -> WaitResult | None:
    """Return how the study ended; None while it is run or will be."""
    study = reader.study(name)
    state = read_state(reader, study.row)
    if state == "finished":
        return "finished"
    entry = next((entry for entry in reader.queue() if entry.study == name), None)
    if (entry and entry.is_open) or study.holder():
        return None
    if state == "failed" or (entry and entry.state == "failed" and not _has_run_since(study, entry)):
        return "failed"
    return "interrupted" if state == "interrupted" else "stopped"


def _has_run_since(study: StudyReader, entry: QueueEntry) -> bool:
    """Return True if a worker trained for the study after its entry in the queue ended, as in a launch."""
    return entry.ended_at is not None and study.workers()["heartbeat_at"].gt(entry.ended_at).any()
