"""The process that listens: it takes an address and answers requests until it is stopped."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import wait

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from graft.web.app import create_app
from graft.web.checking import warm_up
from graft.web.security.access import read_tokens
from graft.web.security.guard import Counts
from graft.web.settings import LOOPBACK_NAMES, AddressError, Settings, is_loopback
from storage import migrate_if_older, open_reader

LOWEST_PRIORITY = 19
"""Niceness: the server gets what training on the same cores leaves."""
_CONNECTIONS = 500
"""Connections that are open at one time; further ones are answered with 503."""
_LOOK_SECONDS = 0.5
"""Seconds between looks whether anything trains."""
_LEAVE_SECONDS = 2
"""Seconds that event streams may go on when the server is stopped."""


def plan_settings(settings: Settings, host: str) -> Settings:
    """Return the settings of a server that listens on `host`, with its own names beside the given.

    Any address but loopback needs tokens. Raises AddressError if there are none, or for what is no
    address; StorageError if there is no database.
    """
    migrate_if_older(settings.database)
    open_reader(settings.database).close()
    beyond = not is_loopback(host)
    needs_token = beyond or settings.needs_token
    if needs_token and not any(token.revoked_at is None for token in read_tokens(settings.database)):
        reason = f"--host {host}: other machines reach it" if beyond else "--tokens"
        raise AddressError(f"{reason}, so it needs a token; make one: search token make NAME --role read")
    hosts = LOOPBACK_NAMES | ({host} if host not in ("0.0.0.0", "::") else set())
    names = frozenset(name.lower() for name in hosts | settings.hosts)
    return replace(settings, hosts=names, needs_token=needs_token)


def serve(settings: Settings, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Tell `announce` the address and answer until SIGINT or SIGTERM; AddressError if taken."""
    warm_up()
    os.nice(LOWEST_PRIORITY)
    with _listen(host, port) as listener:
        announce(_address(listener))
        uvicorn.Server(configure(settings)).run(sockets=[listener])


@contextmanager
def serving(
    settings: Settings, host: str, port: int, say: Callable[[str], None], trains: Callable[[], bool] = lambda: True
) -> Generator[str]:
    """Answer requests beside the block and yield the address; raises AddressError as `serve` does.

    A process of its own answers, at the lowest priority: a thread would take the interpreter's lock
    from training. It ends with this process, however that ends; if it ends before, `say` gets a
    line. `trains`: whether anything trains now, asked a few times a second with
    `settings.processor`. Early requests wait for the process, as the address is taken already.
    """
    context = multiprocessing.get_context("spawn")
    is_training = context.RawValue("b", True)
    with _listen(host, port) as listener:
        values = (settings, listener, is_training)
        process = context.Process(target=_answer_beside, args=values, name="the process of HTTP")
        process.start()
        address = _address(listener)
    is_over = threading.Event()

    def watch() -> None:
        while not wait([process.sentinel], _LOOK_SECONDS):
            is_training.value = trains()
        if not is_over.is_set():
            say(f"{process.name} has ended, and nothing answers over HTTP any more; studies go on")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield address
    finally:
        is_over.set()
        process.terminate()
        process.join(2 * _LEAVE_SECONDS)
        process.kill()


def _answer_beside(settings: Settings, listener: socket.socket, is_training: ctypes.c_byte) -> None:
    """Answer requests in a process of its own, until the one that started it ends."""

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent
        parent.join()
        os._exit(0)

    warm_up()
    os.nice(LOWEST_PRIORITY)
    # Ctrl-C stops training first, and this process when nothing trains any more. A session of its
    # own would not do: Linux shares the processor out among sessions first (autogroup), and this
    # one would have as much as all that trains.
    os.setpgid(0, 0)
    threading.Thread(target=end_with_parent, daemon=True).start()
    uvicorn.Server(configure(settings, lambda: bool(is_training.value))).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    plain = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in plain else socket.AF_INET
        return socket.create_server((plain, port), family=family)
    except OSError as error:
        raise AddressError(f"--host {host} --port {port}: {error.strerror or error}; choose another --port") from None


def _address(listener: socket.socket) -> str:
    host, port, *_ = listener.getsockname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def configure(settings: Settings, trains: Callable[[], bool] = lambda: True) -> uvicorn.Config:
    """Return the configuration of uvicorn for these settings; `trains` as of `create_app`."""
    return uvicorn.Config(
        create_app(settings, trains),
        http=_limit_connections(settings),
        log_config=None,
        access_log=False,
        # A request says who asks only where a named proxy says it.
        proxy_headers=bool(settings.proxies),
        forwarded_allow_ips=[*settings.proxies],
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_LEAVE_SECONDS,
        ws="none",
    )


def _limit_connections(settings: Settings) -> type[H11Protocol]:
    """Return HTTP with limits: seconds for the head of a request, connections of an address.

    The guard sees a request only after its head, for which uvicorn waits without end: clients that
    send a byte now and then would keep all connections, as would one client that opens them all.
    """
    seconds = settings.body_seconds
    counts = Counts(1 << 30, settings.connections_each)

    class Impatient(H11Protocol):
        _giving_up: asyncio.TimerHandle | None = None
        _address: str | None = None
        """The address of a connection that is counted."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            peer = transport.get_extra_info("peername")
            address = peer[0] if peer else ""
            is_counted = address not in settings.proxies
            if is_counted and not counts.take(address):
                transport.abort()
                return
            self._address = address if is_counted else None
            super().connection_made(transport)
            self._watch_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            if self not in self.connections:
                return  # it was refused, and uvicorn knows nothing of it
            if self._address is not None:
                counts.give_back(self._address)
            super().connection_lost(exc)
            if self._giving_up:
                self._giving_up.cancel()

        def _watch_head(self) -> None:
            """Give up some time after a head is first awaited, unless it is all there by then."""
            is_awaited = self.conn.their_state is h11.IDLE
            if is_awaited and self._giving_up is None:
                self._giving_up = self.loop.call_later(seconds, self.transport.close)
            elif not is_awaited and self._giving_up:
                self._giving_up.cancel()
                self._giving_up = None

    return Impatient
