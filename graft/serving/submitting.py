"""A space is put into the queue: the one door of the command line, of a notebook and of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graft.launching.enrolling import new_study
from storage import QueueEntry, StoreRequest, Terms, request_queue

if TYPE_CHECKING:
    from spaces.space import Space


def submit(url: str, space: Space, *, study: str | None = None, terms: Terms | None = None) -> QueueEntry | None:
    """Queue a space as a study, with the plug-ins from outside that are in use (`spaces.plugins.active.using`).

    `space`: checked by its draws before, as `read_space` of a launch does; `study`: its name, None: the
    space's. The entry; None: another process that is no service writes the database, and the next service takes the
    submission up. A study that is in the queue already stays as it is. Raises StudyError if it is another
    owner's, or exists with another space.
    """
    return request_queue(
        url, StoreRequest.of_study(new_study(space.name if study is None else study, space), terms or Terms())
    )
