"""Server-sent events: the changes of a study, as long as the client listens."""

from __future__ import annotations

from collections.abc import AsyncIterable, Generator
from contextlib import suppress
from typing import Annotated

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from graft.web.events import Follower
from graft.web.reading import OpenReader, OpenStudy, settings_of
from graft.web.security.guard import Counts, name_address, name_client
from graft.web.security.refusals import RefusalError
from graft.web.sparing import Sparing
from spaces.errors import StorageError, StudyError
from storage.databases.database import study_topic

router = APIRouter(tags=["events"])

_SECONDS = 1.0
"""Seconds between looks at the database, unless it tells of a change before."""
_LONGEST = 300
"""Looks of one stream; a browser then connects again by itself, and its token is asked again."""
_RETRY = 2_000
"""Milliseconds after which a browser connects again."""


def take_stream(request: Request) -> Generator[None]:
    """Take one of the streams that a server has at a time; refused with 503 if there is none left.

    A person, and a client's address, have some of them at most, so that others find one.
    """
    settings, client = settings_of(request), name_client(request.scope)
    counts: Counts = request.app.state.streams
    keys = {client, name_address(request.scope)}
    if not counts.take(*keys):
        is_own = any(counts.of(key) >= settings.streams_each for key in keys)
        of = f"{settings.streams_each} event streams of yours" if is_own else f"{settings.streams} event streams"
        raise RefusalError(503, f"{of} are open, as many as there may be", {"Retry-After": "10"})
    try:
        yield
    finally:
        counts.give_back(*keys)


def read_cursor(
    after: Annotated[str | None, Query(max_length=40, description="The id of the last event that you got.")] = None,
    last_event_id: Annotated[str | None, Header(max_length=40)] = None,
) -> int | None:
    """Return where a stream goes on; a browser that connects again says it by a header."""
    text = last_event_id or after
    if text and not (text.isascii() and text.isdecimal() and len(text) < 18):
        raise RefusalError(400, f"{text[:40]!r} is no cursor; use the id of an event")
    return int(text) if text else None


@router.get("/studies/{study}/events", response_class=EventSourceResponse, dependencies=[Depends(take_stream)])
async def send_events(
    request: Request, cursor: Annotated[int | None, Depends(read_cursor)], stored: OpenStudy, reader: OpenReader
) -> AsyncIterable[ServerSentEvent]:
    """Yield an event `change` now and as trials start or end: `data` is a Change, `id` the cursor.

    A stream ends after some minutes; connect again with the last id, and miss nothing.
    """
    with suppress(StorageError):  # the stream ends; who connects again is told what is wrong
        follower = await anyio.to_thread.run_sync(Follower, reader, stored, cursor)
        bell = await anyio.to_thread.run_sync(reader.listen, study_topic(stored.row["id"]))
        for _ in range(_LONGEST):
            digest: str = request.state.holder.digest
            if digest and await anyio.to_thread.run_sync(reader.find_token, digest) is None:
                return  # its token was revoked, or has expired
            try:
                change = await anyio.to_thread.run_sync(follower.look)
            except StudyError:  # deleted or renamed
                yield ServerSentEvent(event="gone", data={})
                return
            if change is not None:
                _forget_answers(request)
                yield ServerSentEvent(event="change", data=change, id=str(follower.cursor), retry=_RETRY)
            if change is not None and change.more:
                continue
            if bell is None:
                await anyio.sleep(_SECONDS)
                continue
            with anyio.move_on_after(_SECONDS):
                await anyio.wait_readable(bell)
            await anyio.to_thread.run_sync(reader.hush)


def _forget_answers(request: Request) -> None:
    """Forget kept answers, as a client that hears of a change asks at once for the new state."""
    sparing: Sparing | None = request.app.state.sparing
    if sparing:
        sparing.answers.forget()
