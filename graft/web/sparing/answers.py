"""Answers of a moment ago are given again: ten people at one study cost little more than one.

A page never shows anything older than the change that made it ask: an event stream that tells of a
change forgets all that is kept, and so does each request that writes.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graft.web.security.access import Holder

FRESH_SECONDS = 1.0
"""Seconds that an answer may be old."""
STALE_SECONDS = 10.0
"""Seconds that it may be old where the processor is short (`budget`)."""
_READING = ("GET", "HEAD")
_LARGEST = 1 << 18
"""Bytes of an answer that is kept."""
_MOST = 256
"""Answers that are kept."""

_Key = tuple[str, bytes, Holder | None]


@final
class Answers:
    """Keeps what the application behind it answers to GET, by address and by holder."""

    def __init__(
        self, app: ASGIApp, lifetime: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`lifetime`: seconds that an answer may be old now, 0 if none is given again."""
        self._app, self._lifetime, self._clock = app, lifetime, clock
        self._kept: OrderedDict[_Key, tuple[float, tuple[Message, ...]]] = OrderedDict()
        self._era = 0
        """Counts how often all was forgotten: an answer that was begun before is not kept."""
        self.given = 0
        """Number of answers that were given again."""

    def forget(self) -> None:
        """Forget what was answered before, as something has changed."""
        self._kept.clear()
        self._era += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_http = scope["type"] == "http"
        if not is_http or scope["method"] != "GET" or scope["path"].startswith("/static/"):
            try:
                await self._app(scope, receive, send)
            finally:
                if is_http and scope["method"] not in _READING:
                    self.forget()  # what is kept is older than what was written
            return
        key = scope["path"], scope["query_string"], scope["state"]["holder"]
        made, messages = self._kept.get(key, (-math.inf, ()))
        if self._clock() < made + self._lifetime():
            self.given += 1
            for message in messages:
                await send(_copy(message))
            return
        era, sent, made = self._era, list[Message](), self._clock()

        async def send_and_keep(message: Message) -> None:
            sent.append(_copy(message))
            if not _may_be_kept(sent):
                sent[:] = [{}]  # a stream: what has been sent is let go
            await send(message)

        await self._app(scope, receive, send_and_keep)
        if era == self._era and _may_be_kept(sent) and self._lifetime():
            self._kept[key] = made, tuple(sent)
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)


def _copy(message: Message) -> Message:
    """Return a copy whose headers may be added to."""
    return {**message, "headers": [*message["headers"]]} if "headers" in message else {**message}


def _may_be_kept(messages: list[Message]) -> bool:
    """Return True for a small page or table that was found, and is not for one holder alone."""
    if not messages or messages[0].get("status") != 200:
        return False
    headers = dict(messages[0]["headers"])
    streams = headers.get(b"content-type", b"").startswith(b"text/event-stream")
    size = sum(len(message.get("body", b"")) for message in messages[1:])
    return not streams and b"set-cookie" not in headers and size <= _LARGEST
