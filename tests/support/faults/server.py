"""A PostgreSQL server that is killed, frozen and started again on the same data."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.databases import Installation, Server, installed, place_for_server

_GONE_SECONDS = 20.0


class MortalServer:
    """A running server; none of its deaths is a shutdown, so that it recovers from its log at each start."""

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._process: subprocess.Popen[bytes] = installation.start()

    @property
    def server(self) -> Server:
        """Where to reach it while it runs."""
        return self._installation.server

    @property
    def socket(self) -> Path:
        """Its Unix socket."""
        return self._installation.folder / ".s.PGSQL.5432"

    def start(self) -> None:
        """Start it again, if it does not run; returns when it answers."""
        if self._process.poll() is not None:
            self._process = self._installation.start()

    def stop_at_once(self) -> None:
        """Stop the server at once, as its administrator may: every process of it ends without a word to its clients."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """End by kill -9 the process that started all others, which end when they notice."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Stop the clock of all its processes; connections stay open and say nothing."""
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.suspend()

    def thaw(self) -> None:
        """Let them go on."""
        for process in self._family():
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _end(self, how: signal.Signals) -> None:
        """Wait until nothing of it is left, as a new server refuses to start beside children of the old one."""
        family = self._family()
        self._process.send_signal(how)
        self._process.wait(_GONE_SECONDS)
        _, left = psutil.wait_procs(family, timeout=_GONE_SECONDS)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=_GONE_SECONDS)

    def _family(self) -> list[psutil.Process]:
        """Return the server's processes, each a group of its own, the first one first."""
        with suppress(psutil.NoSuchProcess):
            first = psutil.Process(self._process.pid)
            return [first, *first.children(recursive=True)]
        return []


@contextmanager
def mortal_server() -> Generator[MortalServer]:
    """Yield a server of its own; nothing is left of it at the end."""
    with installed(place_for_server()) as installation:
        mortal = MortalServer(installation)
        try:
            yield mortal
        finally:
            mortal.thaw()
            mortal.stop_at_once()
