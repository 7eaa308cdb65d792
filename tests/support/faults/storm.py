"""What befalls a farm of toy workers, its launcher and its database."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from tests.support.faults.farm import CLOCK, FATES
from tests.support.faults.history import events
from tests.support.faults.weather import Strike, Weather

PATIENCE = 120.0
"""Seconds that a launcher has to notice that its file is gone, or that it is the second one."""


class Target(Protocol):
    """Where the launcher and its workers are to be found."""

    def launcher(self) -> psutil.Process | None:
        """Return the launcher that runs now."""
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
class Storm(Weather):
    """What befalls a farm."""

    target: Target
    freeze_seconds: float
    """How long a worker is frozen: two leases."""

    def kinds(self) -> Sequence[Strike]:
        """Those of launcher and workers, and those of the database."""
        kinds: list[Strike] = [self._launcher, self._worker, self._frozen, self._exchange, self._clock, self._second]
        if self.url and not self.server:
            kinds += [self._file, self._full]
        return [*kinds, *self.server_kinds()]

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
            self.later(self.freeze_seconds, lambda: _resumed(victim))
        return bool(workers)

    def _exchange(self) -> bool:
        if self._fate:
            return False
        self._fate = self.folder / self.chance.choice(FATES)
        self._fate.touch()
        return True

    def _clock(self) -> bool:
        """Ask for a jump of the database's clock by hours, back or forth; once done the request's file is gone."""
        clock = self.folder / CLOCK
        if clock.exists() or not self.target.launcher():
            return False
        clock.write_text(str(self.chance.choice([-90_000, -7_200, 7_200, 90_000])))
        self.fired["clock"] += 1
        return True

    def _second(self) -> bool:
        """Launch the study again, for a file by another name of it; that is refused while the first launch runs."""
        if self._away or not self._claimed():
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
        """Delete or replace the file; the launcher gives up, and what it saved is put back."""
        path = Path(self.url.removeprefix("sqlite:///"))
        if not self._claimed():
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

    def _claimed(self) -> bool:
        """Whether the launcher that runs has the study: before that it holds nothing of it, and refuses nobody."""
        launcher = self.target.launcher()
        opened = {event.process for event in events(self.folder) if event.kind == "opened"}
        return launcher is not None and launcher.pid in opened

    def _full(self) -> bool:
        """Let the launcher write no further than its log has now, or a little more: a commit finds the disk full."""
        launcher = self.target.launcher()
        log = Path(f"{self.url.removeprefix('sqlite:///')}-wal")
        if not launcher or not log.exists():
            return False
        _, ceiling = launcher.rlimit(psutil.RLIMIT_FSIZE)
        launcher.rlimit(psutil.RLIMIT_FSIZE, (log.stat().st_size + self.chance.randrange(20_000), ceiling))
        self.fired["disk full"] += 1
        return True


def _resumed(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
