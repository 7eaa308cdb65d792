"""A processor budget for answers: training beside them keeps its cores.

The lowest priority is not enough where cores share caches, memory and clock rates: a busy process
slows its neighbours though it never takes their place. So the processor seconds of this process are
paid out of a bucket (token bucket: Turner, "New directions in communications", IEEE Communications
Magazine 24(10), 1986) that fills at a fraction of a core. It holds enough for a person in a
browser; a program that asks in a loop waits for it to fill.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graft.web.security.guard import Rates
from graft.web.security.refusals import RefusalError, answer

LONGEST_WAIT = 30.0
"""Seconds of the longest wait; a longer one is refused with 503."""
_URGENT_RATE, _URGENT_BURST = 3.0, 30
"""Opened pages, scripts and styles that do not wait: per second in the long run, and at once."""
_FIRST_COST = 0.03
"""Processor seconds of an answer, while none was made."""
_SMOOTHING = 0.1
"""Weight of the newest answer in the mean cost of one."""
_SOONEST = 0.005
"""Seconds between two looks at a bucket."""


@final
class Bucket:
    """Processor seconds that may be used: at most `burst`, and a debt of at most as much."""

    def __init__(
        self,
        rate: float,
        burst: float,
        *,
        is_needed: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        """`rate`: seconds that come in each second (cores); `used`: those of this process so far.

        `is_needed`: whether anything trains; where nothing does, the bucket stays full.
        """
        self.rate, self.burst = rate, burst
        self._is_needed, self._clock, self.used = is_needed, clock, used
        self._left, self._since, self._counted = burst, clock(), used()

    @property
    def is_needed(self) -> bool:
        """True if answers are to be held back at all."""
        return self._is_needed()

    def level(self) -> float:
        """Return the seconds that are left; below 0 they are owed."""
        since, counted = self._since, self._counted
        self._since, self._counted = self._clock(), self.used()
        left = self._left + (self._since - since) * self.rate - (self._counted - counted)
        # One answer that takes a minute must not close the pages for five.
        self._left = min(max(left, -self.burst), self.burst) if self.is_needed else self.burst
        return self._left

    @property
    def is_low(self) -> bool:
        """True if less than half is left."""
        return self.level() < self.burst / 2


@dataclass(kw_only=True)
class Waits:
    """Counts of the requests that waited since the server began."""

    answers: int = 0
    seconds: float = 0.0
    refused: int = 0


@final
class Budget:
    """Holds requests back while the bucket is empty, in their order.

    Event streams never wait, as they are few and ask for little; neither do pages that a person
    opens, up to some a second. Both are paid for all the same.
    """

    def __init__(self, app: ASGIApp, bucket: Bucket, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._bucket = bucket
        self._clock = clock
        self._urgent = Rates(_URGENT_RATE, _URGENT_BURST, clock)
        self._turn = anyio.Lock()
        self._open = 0
        """Answers that are being made: each will cost about as much as those before."""
        self._cost = _FIRST_COST
        self._answered = bucket.used()
        self.waits = Waits()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._bucket.is_needed or scope["path"].endswith("/events"):
            await self._app(scope, receive, send)
            return
        is_document = dict(scope["headers"]).get(b"sec-fetch-dest") == b"document"
        is_page = is_document or scope["path"].startswith("/static/")
        try:
            # A person who opens pages, and not too many, does not wait.
            if not is_page or self._urgent.take(""):
                await self._wait()
        except TimeoutError:
            self.waits.refused += 1
            reason = "studies train, and what answers may take of the processor is used up"
            refusal = RefusalError(503, reason, {"Retry-After": "10"})
            await answer(refusal, scope)(scope, receive, send)
            return
        await self._answer(scope, receive, send)

    async def _wait(self) -> None:
        """Wait until the bucket has more than open answers cost; TimeoutError in the end."""
        if self._missing() < 0 and not self._turn.locked():
            return
        began = self._clock()
        async with self._turn:  # the first of those who wait looks, and the others stand behind it
            while (missing := self._missing()) >= 0:
                if self._clock() > began + LONGEST_WAIT:
                    raise TimeoutError
                await anyio.sleep(min(max(missing / self._bucket.rate, _SOONEST), 1.0))
        self.waits.answers += 1
        self.waits.seconds += self._clock() - began

    def _missing(self) -> float:
        return self._open * self._cost - self._bucket.level()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._open += 1
        is_open = True

        def note_made() -> None:
            """Record that an answer is made; a slow client may take its time to receive it."""
            nonlocal is_open
            if is_open:
                is_open = False
                self._open -= 1
                counted, self._answered = self._answered, self._bucket.used()
                self._cost += _SMOOTHING * (self._answered - counted - self._cost)

        async def send_and_note(message: Message) -> None:
            if message["type"] == "http.response.start":
                note_made()
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            note_made()
