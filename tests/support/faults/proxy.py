"""A TCP proxy in front of a PostgreSQL server that cuts, freezes, and loses a COMMIT or the answer to it.

It speaks as much of the protocol as that needs: a client's first message has a length and no type, all others are a
type byte and a length that counts itself (PostgreSQL documentation, "Frontend/Backend Protocol", "Message Formats").
"""

from __future__ import annotations

import asyncio
import struct
import threading
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Loss = Literal["answer", "request"]

_ENCRYPTION = {80877103, 80877104}
"""The codes of SSLRequest and GSSENCRequest, which come before the start-up message."""
_READY = b"Z"
"""ReadyForQuery: the server's last word on a request."""


class Proxy:
    """Passes everything until it is told otherwise; calls come from any thread and return when they are in force."""

    def __init__(self, server: Path) -> None:
        """`server`: its Unix socket."""
        self.port = 0
        """On 127.0.0.1; the same for as long as the proxy lives."""
        self.lost: Counter[Loss] = Counter()
        """What was armed and has happened since."""
        self._server = server
        self._armed: Loss | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._door: asyncio.Server | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.restore()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def restore(self) -> None:
        """Accept and pass everything; what a freeze held back goes on its way."""
        self._armed = None
        self._call(self._open())

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._call(self._shut())

    def freeze(self) -> None:
        """Accept connections and pass not a byte."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def lose(self, what: Loss) -> None:
        """At the next COMMIT, close its connection: before the server hears of it, or before the client has the answer.

        A COMMIT that nothing follows, as it ends a transaction that only read, counts as any other.
        """
        self._armed = what

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    async def _open(self) -> None:
        self._flowing.set()
        if self._door is None:
            self._door = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._door.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        self._flowing.set()
        if self._door:
            self._door.close()
            self._door = None
        links = [*self._links]
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)
        await asyncio.sleep(0)  # aborted transports close at the loop's next turn

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        link = self._loop.create_task(self._serve(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        """One connection, until one of its ends or the proxy closes it."""
        try:
            await self._flowing.wait()
            greeting = await _greeting(reader, writer)
            server_reader, server_writer = await asyncio.open_unix_connection(self._server)
            try:
                server_writer.write(greeting)
                await self._join(reader, writer, server_reader, server_writer)
            finally:
                server_writer.transport.abort()
        except (OSError, EOFError):
            pass  # the client went away, or the server does not run
        finally:
            writer.transport.abort()

    async def _join(
        self, client: StreamReader, to_client: StreamWriter, server: StreamReader, to_server: StreamWriter
    ) -> None:
        """Carry messages both ways until one way ends."""
        link = _Link(self)
        ways = [
            self._loop.create_task(link.requests(client, to_server)),
            self._loop.create_task(link.answers(server, to_client)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def flowing(self) -> None:
        """Wait while the proxy is frozen."""
        await self._flowing.wait()

    def disarm(self) -> Loss | None:
        """Return what is to be lost at this COMMIT; the next one passes."""
        armed, self._armed = self._armed, None
        return armed


class _Link:
    """The two ways of one connection."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._deaf = False
        """Whether the client hears no more of the server."""

    async def requests(self, client: StreamReader, server: StreamWriter) -> None:
        """From the client to the server."""
        while True:
            message = await _message(client)
            await self._proxy.flowing()
            loss = self._proxy.disarm() if _is_commit(message) else None
            if loss == "request":
                self._proxy.lost[loss] += 1
                return
            self._deaf = self._deaf or loss == "answer"
            server.write(message)
            await server.drain()

    async def answers(self, server: StreamReader, client: StreamWriter) -> None:
        """From the server to the client."""
        while True:
            message = await _message(server)
            await self._proxy.flowing()
            if not self._deaf:
                client.write(message)
                await client.drain()
            elif message[:1] == _READY:
                self._proxy.lost["answer"] += 1
                return


async def _greeting(reader: StreamReader, writer: StreamWriter) -> bytes:
    """Return the client's start-up message; a wish for encryption before it is declined, as the server would."""
    while True:
        head = await reader.readexactly(8)
        length, code = struct.unpack("!II", head)
        if code not in _ENCRYPTION:
            return head + await reader.readexactly(length - 8)
        writer.write(b"N")
        await writer.drain()


async def _message(reader: StreamReader) -> bytes:
    head = await reader.readexactly(5)
    (length,) = struct.unpack("!I", head[1:])
    return head + await reader.readexactly(length - 4)


def _is_commit(message: bytes) -> bool:
    """Whether it is a simple query that says COMMIT and nothing else, as psycopg commits."""
    return message[:1] == b"Q" and message[5:].rstrip(b"\0").strip(b"; \n").upper() == b"COMMIT"
