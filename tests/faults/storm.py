"""What befalls a farm: faults of random kinds, each over after a while, and counted when it happened."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil
import psycopg

from tests.faults.farm import CLOCK, FATES
from tests.faults.history import events
from tests.faults.proxy import Proxy
from tests.faults.server import MortalServer

Strike = Callable[[], bool]
"""Does its harm, and counts it when it has happened; False if there was nothing to harm."""
AWAY_SECONDS = (0.1, 1.5)
"""How long a server or the network is away."""

PATIENCE = 20.0
"""Seconds that a launcher has to notice that its file is gone, or that it is the second one."""
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'toy'"


class Target(Protocol):
    """Where the launcher and its workers are to be found."""

    def launcher(self) -> psutil.Process | None:
        """The launcher that runs now."""
        ...

    def workers(self) -> Sequence[psutil.Process]:
        """Its workers, frozen ones included."""
        ...

    def wait_for_failure(self, seconds: float) -> bool:
        """Whether the launcher gives up in so many seconds."""
        ...

    def refuses(self, url: str, words: str, seconds: float) -> bool | None:
        """Whether a second launcher gives up with these words; None if the first did not run all the time."""
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
        kinds: list[Strike] = [self._launcher, self._worker, self._frozen, self._exchange, self._clock, self._second]
        if self.server and self.proxy:
            kinds += [self._database, self._network, self._session]
        elif self.url:
            kinds += [self._file, self._full]
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

    def _clock(self) -> bool:
        """The database's clock jumps by hours, back or forth; when the launcher has done it, its file is gone."""
        clock = self.folder / CLOCK
        if clock.exists() or not self.target.launcher():
            return False
        clock.write_text(str(self.chance.choice([-90_000, -7_200, 7_200, 90_000])))
        self.fired["clock"] += 1
        return True

    def _second(self) -> bool:
        """A second launch of the study, for a file by another name of it, is refused while the first one runs."""
        if self._away or not self.target.launcher():
            return False
        path, url = Path(self.url.removeprefix("sqlite:///")), self.url
        alias = path.with_name("alias.db")
        if self.url.startswith("sqlite") and self.chance.random() < 0.5:
            alias.symlink_to(path)
            url = f"sqlite:///{alias}"
        elif self.url.startswith("sqlite"):
            Path(f"{path}.lock").unlink(missing_ok=True)
        refused = self.target.refuses(url, "stop it first", PATIENCE)
        alias.unlink(missing_ok=True)
        if refused is False:
            self.wrong.append(f"a second launch by {url} was not refused")
        self.fired["second launch"] += refused is not None
        return refused is not None

    def _file(self) -> bool:
        """The file is deleted or replaced; the launcher gives up, and what it saved is put back."""
        launcher, path = self.target.launcher(), Path(self.url.removeprefix("sqlite:///"))
        opened = {event.process for event in events(self.folder) if event.kind == "opened"}
        if launcher is None or launcher.pid not in opened:  # who has not claimed the study holds nothing of it
            return False
        kept = path.with_name("kept")
        os.link(path, kept)  # should the launcher end of itself just now, nobody saves what it had
        harm = self.chance.choice(["deleted", "replaced"])
        if harm == "replaced":
            other = path.with_name("other.db")
            other.write_bytes(b"")
            os.replace(other, path)
        else:
            path.unlink()
        gave_up = self.target.wait_for_failure(PATIENCE)
        saved = path.with_name(f"{path.name}.rescue")
        if saved.exists():
            os.replace(saved, path)
            kept.unlink()
        else:
            os.replace(kept, path)
            if gave_up:
                self.wrong.append("the launcher gave up and left no rescue file")
        self.fired[f"file {harm}"] += gave_up
        return gave_up

    def _full(self) -> bool:
        """The launcher may not write beyond what its log has now, or a little more: a commit finds the disk full."""
        launcher = self.target.launcher()
        log = Path(f"{self.url.removeprefix('sqlite:///')}-wal")
        if not launcher or not log.exists():
            return False
        _, ceiling = launcher.rlimit(psutil.RLIMIT_FSIZE)
        launcher.rlimit(psutil.RLIMIT_FSIZE, (log.stat().st_size + self.chance.randrange(20_000), ceiling))
        self.fired["disk full"] += 1
        return True

    def _session(self) -> bool:
        """The server ends the launcher's session, and only that."""
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
