"""Puts a space into the queue, for the command line, a notebook and HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graft.launching.enrolling import new_study
from storage import QueueEntry, StoreRequest, Terms, request_queue

if TYPE_CHECKING:
    from spaces.space import Space


def submit(url: str, space: Space, *, study: str | None = None, terms: Terms | None = None) -> QueueEntry | None:
    """Queue a checked space as `study` (None: the space's name), with the plug-ins that are in use.

    Returns the entry, or None if another process writes the database; the next service then takes
    the submission. A queued study keeps its entry. Raises StudyError if it has another owner or
    space.
    """
    new = new_study(space.name if study is None else study, space)
    return request_queue(url, StoreRequest.of_study(new, terms or Terms()))
