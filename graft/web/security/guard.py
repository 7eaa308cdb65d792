"""The checks of a request before it reaches a route.

They come in the order of their costs: the server's name, the origin of a page's request, the rate,
the token, the body. All are made on loopback, too: a page of another site can send requests there,
and a name that somebody else controls can lead there (DNS rebinding).
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import final
from urllib.parse import urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graft.web.security.access import COOKIE, LOCAL, Holder
from graft.web.security.refusals import RefusalError, answer
from graft.web.settings import Settings

_READING = ("GET", "HEAD")
_CLIENTS = 10_000
"""Clients whose rate is remembered."""
_FREE = ("/login", "/static/")
"""Paths that a browser without a token gets to."""
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

FindHolder = Callable[[str], Holder | None]
"""Token -> its holder, or None. Raises RefusalError where that cannot be looked up."""


@final
class Guard:
    """Lets good requests pass to the application, with their Holder in `request.state.holder`."""

    def __init__(self, app: ASGIApp, settings: Settings, find_holder: FindHolder) -> None:
        self._app = app
        self._settings = settings
        self._find_holder = find_holder
        self._rates = Rates(settings.rate, settings.burst)
        self._turns = Turns(settings.answers_each, settings.waiting_each)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        read: list[Message] = []

        async def receive_again() -> Message:
            """Give the body that was already read, and then what the client sends."""
            return read.pop() if read else await receive()

        try:
            body = await self._check(scope, receive)
            read.append({"type": "http.request", "body": body, "more_body": False})
            # A stream is open for minutes, and counted by itself.
            is_stream = scope["path"].endswith("/events")
            async with nullcontext() if is_stream else self._turns.turn(name_client(scope)):
                await self._app(scope, receive_again, send_with_headers)
        except RefusalError as refusal:
            await answer(refusal, scope)(scope, receive, send_with_headers)

    async def _check(self, scope: Scope, receive: Receive) -> bytes:
        """Return the body of a request that passes; raises RefusalError."""
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        # The server must be called by one of its names, and not by none or several.
        given = headers.getlist("host")
        host = given[0] if len(given) == 1 else ""
        name, colon, port = host.rpartition(":")  # of [::1]:8000 the port, of [::1] none
        name = (name if colon and port.isdecimal() else host).lower()
        if name not in self._settings.hosts:
            raise RefusalError(421, f"this server is not called {name[:60]!r}; --allow-host adds a name")
        # What a page of another site asks for is refused, except for following a link to here.
        method, origin = scope["method"], headers.get("origin")
        if origin is not None:
            asking = None  # what is no URL
            with suppress(ValueError):
                asking = urlsplit(origin).netloc.lower()
            if asking != headers["host"].lower():
                raise RefusalError(403, "a request of a page from another origin")
        follows = method in _READING and headers.get("sec-fetch-mode") == "navigate"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not follows:
            raise RefusalError(403, "a request of a page from another site")
        wait = self._rates.take(name_address(scope))
        if wait:
            again = {"Retry-After": str(int(wait) + 1)}
            raise RefusalError(429, "too many requests; wait a little", again)
        state["holder"] = await self._authenticate(scope["path"], headers)
        state["token"] = state["holder"] and state["holder"].name
        return await self._read_body(method, headers, receive)

    async def _authenticate(self, path: str, headers: Headers) -> Holder | None:
        if not self._settings.needs_token:
            return LOCAL
        kind, _, token = headers.get("authorization", "").partition(" ")
        token = token.strip()
        if kind.lower() != "bearer":  # a browser sends its cookie
            token = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        holder = await anyio.to_thread.run_sync(self._find_holder, token) if token else None
        if holder is None and not path.startswith(_FREE):
            reason = "this token is not known, or was revoked" if token else "a token is needed: Authorization: Bearer"
            raise RefusalError(401, reason, {"WWW-Authenticate": "Bearer"})
        return holder

    async def _read_body(self, method: str, headers: Headers, receive: Receive) -> bytes:
        """Return all of the body; nothing for methods that only read."""
        if method in _READING:
            return b""
        most, seconds = self._settings.largest_body, self._settings.body_seconds
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise RefusalError(413, f"the body has more than {most:,} bytes")
        parts = bytearray()
        try:
            with anyio.fail_after(seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RefusalError(400, "the connection broke before the body had ended")
                    parts += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(parts) > most:
                        raise RefusalError(413, f"the body has more than {most:,} bytes")
        except TimeoutError:
            raise RefusalError(408, f"the body took more than {seconds:g} seconds") from None
        return bytes(parts)


@final
class Rates:
    """A bucket for each client: `burst` requests at once, and `rate` more each second."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> float:
        """Take one request out of a client's bucket: 0, or the seconds until there is one."""
        now = self._clock()
        left, since = self._buckets.pop(client, (float(self._burst), now))
        left = min(left + (now - since) * self._rate, self._burst)
        wait = max(0.0, (1 - left) / self._rate)
        self._buckets[client] = (left if wait else left - 1, now)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        return wait


@final
class Counts:
    """Things of which so many may be open at one time, and so many of each key."""

    def __init__(self, most: int, each: int) -> None:
        self._most, self._each = most, each
        self._open = 0
        self._of = Counter[str]()

    def of(self, key: str) -> int:
        """Return how many of a key are open."""
        return self._of[key]

    def take(self, *keys: str) -> bool:
        """Open one that counts for all these keys, if there may be one more."""
        if self._open >= self._most or any(self._of[key] >= self._each for key in keys):
            return False
        self._open += 1
        self._of.update(keys)
        return True

    def give_back(self, *keys: str) -> None:
        """Close one that was opened for these keys."""
        self._open -= 1
        self._of.subtract(keys)
        for key in keys:
            if not self._of[key]:
                del self._of[key]


@final
class Turns:
    """Lets the answers for each client be made a few at a time, so that none delays the others."""

    def __init__(self, at_once: int, waiting: int) -> None:
        self._at_once, self._most = at_once, at_once + waiting
        self._turns: dict[str, anyio.Semaphore] = {}
        self._asked = Counter[str]()

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncGenerator[None]:
        """Wait until one more answer may be made for the client; 429 if too many wait."""
        if self._asked[client] >= self._most:
            raise RefusalError(429, "too many requests of yours wait for their answers", {"Retry-After": "5"})
        self._asked[client] += 1
        try:
            async with self._turns.setdefault(client, anyio.Semaphore(self._at_once)):
                yield
        finally:
            self._asked[client] -= 1
            if not self._asked[client]:
                del self._asked[client], self._turns[client]


def name_address(scope: Scope) -> str:
    """Return the address of the client."""
    return (scope.get("client") or ("",))[0]


def name_client(scope: Scope) -> str:
    """Return the person for whom a request is made, as `token NAME`; without tokens the address."""
    holder: Holder | None = scope["state"]["holder"]
    return f"token {holder.name}" if holder and holder.digest else name_address(scope)
