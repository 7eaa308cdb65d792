"""Faults of random kinds, each over after a while, and counted when it happened; and those of a server's own."""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from tests.support.faults.proxy import Proxy
from tests.support.faults.server import MortalServer

Strike = Callable[[], bool]
"""Does its harm, and counts it when it has happened; False if there was nothing to harm."""
AWAY_SECONDS = (0.1, 1.5)
"""How long a server or the network is away."""
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'toy'"


@dataclass(kw_only=True)
class Weather(ABC):
    """Strikes when it is told to; `tick` ends what is to end, often."""

    chance: random.Random
    folder: Path
    """Where what is struck finds files that ask something of it."""
    url: str = ""
    """Of the database, for what happens to its file."""
    server: MortalServer | None = None
    """None: the database is a file."""
    proxy: Proxy | None = None
    fired: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    """What did not come out of a fault that should have."""
    _ends: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """When, and what then puts an end to a fault that lasts."""
    _fate: Path | None = None
    """The file that asks for a fault inside a process; gone when it has happened."""
    _chosen: Strike | None = None
    """What waits for its victim: a launcher is always there, and would be struck most if others were passed over."""
    _away: bool = False
    """Whether the server or the network is away; one at a time."""

    @abstractmethod
    def kinds(self) -> Sequence[Strike]:
        """Return what may happen, each about as often."""

    @property
    def total(self) -> Mapping[str, int]:
        """Kind of fault -> how many fired, those included that the proxy held ready for the next COMMIT."""
        lost = self.proxy.lost if self.proxy else {}
        return {**self.fired, **{f"{what} lost": count for what, count in lost.items()}}

    def strike(self) -> bool:
        """One fault; False if its kind has no victim yet, and is to be tried again."""
        chosen = self._chosen or self.chance.choice(self.kinds())
        struck = False
        with suppress(psutil.NoSuchProcess):
            struck = chosen()
        self._chosen = None if struck else chosen
        return struck

    def tick(self) -> None:
        """End the faults that have lasted long enough."""
        due = [end for moment, end in self._ends if moment <= time.monotonic()]
        self._ends = [(moment, end) for moment, end in self._ends if moment > time.monotonic()]
        for end in due:
            end()
        if self._fate and not self._fate.exists():
            self.fired[self._fate.name] += 1
            self._fate = None

    @property
    def is_calm(self) -> bool:
        """Whether no fault lasts."""
        return not self._ends

    def calm(self) -> None:
        """End every fault now."""
        for _, end in self._ends:
            end()
        self._ends = []
        if self._fate:
            self._fate.unlink(missing_ok=True)
        if self.proxy:
            self.proxy.restore()

    def server_kinds(self) -> Sequence[Strike]:
        """Return what befalls a server, and the way to it."""
        return [self._database, self._network, self._session] if self.server and self.proxy else []

    def _session(self) -> bool:
        """Let the server end the sessions, and only that."""
        assert self.server
        if self._away:
            return False
        with suppress(psycopg.Error):
            self.server.server.execute(_TERMINATE)
            self.fired["session ended"] += 1
            return True
        return False

    def _database(self) -> bool:
        assert self.server
        if self._away:
            return False
        harm, end = self.chance.choice(
            [
                (self.server.stop_at_once, self.server.start),
                (self.server.kill, self.server.start),
                (self.server.freeze, self.server.thaw),
            ]
        )
        self._send_away(harm, end)
        self.fired["database"] += 1
        return True

    def _network(self) -> bool:
        """Return what waits for the next COMMIT the proxy counts when it has happened."""
        assert self.proxy
        if self._away:
            return False
        kind = self.chance.choice(["cut", "freeze", "answer", "request"])
        if kind in ("answer", "request"):
            self.proxy.lose("answer" if kind == "answer" else "request")
            return True
        self._send_away(self.proxy.cut if kind == "cut" else self.proxy.freeze, self.proxy.restore)
        self.fired["network"] += 1
        return True

    def _send_away(self, harm: Callable[[], None], end: Callable[[], None]) -> None:
        def back() -> None:
            end()
            self._away = False

        harm()
        self._away = True
        self.later(self.chance.uniform(*AWAY_SECONDS), back)

    def later(self, seconds: float, end: Callable[[], None]) -> None:
        """Have a fault ended after so many seconds."""
        self._ends.append((time.monotonic() + seconds, end))
