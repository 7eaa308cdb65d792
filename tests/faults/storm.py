"""What befalls a farm: faults of random kinds, each over after a while, and counted when it happened."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from tests.faults.farm import FATES
from tests.faults.proxy import Proxy
from tests.faults.server import MortalServer

Strike = Callable[[], bool]
"""Does its harm, and counts it when it has happened; False if there was nothing to harm."""
AWAY_SECONDS = (0.1, 1.5)
"""How long a server or the network is away."""


class Target(Protocol):
    """Where the launcher and its workers are to be found."""

    def launcher(self) -> psutil.Process | None:
        """The launcher that runs now."""
        ...

    def workers(self) -> Sequence[psutil.Process]:
        """Its workers, frozen ones included."""
        ...


@dataclass(kw_only=True)
class Storm:
    """Strikes when it is told to; `tick` ends what is to end, often."""

    target: Target
    chance: random.Random
    folder: Path
    """Of the histories."""
    freeze_seconds: float
    """How long a worker is frozen: two leases."""
    server: MortalServer | None = None
    """None: the database is a file."""
    proxy: Proxy | None = None
    fired: Counter[str] = field(default_factory=Counter[str])
    _ends: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    """When, and what then puts an end to a fault that lasts."""
    _fate: Path | None = None
    """The file that asks for the fate of an exchange; gone when it has happened."""
    _chosen: Strike | None = None
    """What waits for its victim: a launcher is always there, and would be struck most if others were passed over."""
    _away: bool = False
    """Whether the server or the network is away; one at a time."""

    @property
    def total(self) -> Mapping[str, int]:
        """Kind of fault -> how many fired, those included that the proxy held ready for the next COMMIT."""
        lost = self.proxy.lost if self.proxy else {}
        return {**self.fired, **{f"{what} lost": count for what, count in lost.items()}}

    def strike(self) -> bool:
        """One fault; False if its kind has no victim yet, and is to be tried again."""
        kinds: list[Strike] = [self._launcher, self._worker, self._frozen, self._exchange]
        if self.server and self.proxy:
            kinds += [self._database, self._network]
        chosen = self._chosen or self.chance.choice(kinds)
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

    def calm(self) -> None:
        """End every fault now."""
        for _, end in self._ends:
            end()
        self._ends = []
        if self._fate:
            self._fate.unlink(missing_ok=True)
        if self.proxy:
            self.proxy.restore()

    def _launcher(self) -> bool:
        launcher = self.target.launcher()
        if launcher:
            launcher.kill()
            self.fired["launcher"] += 1
        return launcher is not None

    def _worker(self) -> bool:
        workers = self.target.workers()
        if workers:
            self.chance.choice(workers).kill()
            self.fired["worker"] += 1
        return bool(workers)

    def _frozen(self) -> bool:
        workers = [worker for worker in self.target.workers() if worker.status() != psutil.STATUS_STOPPED]
        if workers:
            victim = self.chance.choice(workers)
            victim.suspend()
            self.fired["frozen worker"] += 1
            self._later(self.freeze_seconds, lambda: _resumed(victim))
        return bool(workers)

    def _exchange(self) -> bool:
        if self._fate:
            return False
        self._fate = self.folder / self.chance.choice(FATES)
        self._fate.touch()
        return True

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
        """What waits for the next COMMIT the proxy counts when it has happened."""
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
        self._later(self.chance.uniform(*AWAY_SECONDS), back)

    def _later(self, seconds: float, end: Callable[[], None]) -> None:
        self._ends.append((time.monotonic() + seconds, end))


def _resumed(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
