"""A storm over a service with four studies queued: its process, its leases, its database and the way to it."""

from __future__ import annotations

import functools
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from graft.web.security.access import make_token
from spaces.errors import GraftError
from storage import StoreRequest, revoke_token
from storage.databases.mailbox import Mailbox
from storage.store_request import REVOCATION
from tests.support.databases import raw
from tests.support.faults.auditor import Finding, Verdict
from tests.support.faults.proxy import Proxy
from tests.support.faults.server import MortalServer
from tests.support.faults.service import HOLD, LOSE, PLACE, REPORTS, STUDIES, Asker, MortalService, audit
from tests.support.faults.service import launch_undisturbed as launch_in
from tests.support.faults.toy import LEASE_SECONDS
from tests.support.faults.weather import Strike, Weather
from tests.support.launches import TRIALS, Launched, Numbers, kill

INTERVAL_SECONDS = 2.0
"""Between two faults, on average."""
SETTLE_SECONDS = 120.0
"""Without a report, or an answer: then something is stuck."""
PROGRESS_SECONDS = 15.0
TICK_SECONDS = 0.02
TRAINED_IN_STORM = 0.75
"""Of all reports."""
ASKS_A_FAULT = 0.3
"""Requests to the queue for each fault."""
HELD_SECONDS = (0.5, 3.0)
"""How long another one keeps a file locked: less than a writer waits."""


@dataclass(kw_only=True)
class ServiceStorm(Weather):
    """What befalls a service."""

    service: MortalService
    _struck_at: float = 0.0
    _tokens: int = 0
    """That somebody began to make."""
    _revoked_tokens: set[str] = field(default_factory=set[str])
    """Those of which it was answered that they are revoked, or that it is durable."""

    def kinds(self) -> Sequence[Strike]:
        """Those of the process, and those of the database."""
        kinds: list[Strike] = [self._killed, self._stopped, self._frozen, self._lease, self._second, self._revoked]
        if not self.server:
            kinds += [self._busy, self._full, self._deleted, self._poisoned]
        return [*kinds, *self.server_kinds()]

    def strike(self) -> bool:
        struck = super().strike()
        self._struck_at = time.monotonic() if struck else self._struck_at
        return struck

    def _killed(self) -> bool:
        process = self.service.process()
        if process:
            self.service.kill()
            self.fired["service killed"] += 1
        return process is not None

    def _stopped(self) -> bool:
        process = self.service.process()
        if process:
            self.service.expect(130, "stopped with everything kept; `search serve` goes on")
            process.send_signal(signal.SIGTERM)
            self.fired["service stopped"] += 1
        return process is not None

    def _frozen(self) -> bool:
        """For less or more than its workers' leases last."""
        process = self.service.process()
        if not process or process.status() == psutil.STATUS_STOPPED:
            return False
        process.suspend()
        self.fired["service frozen"] += 1
        self.later(self.chance.uniform(0.2, 2) * LEASE_SECONDS, lambda: _resume(process))
        return True

    def _lease(self) -> bool:
        """Tell a worker that its lease has run out, so that it begins again; counted when it has happened."""
        if self._fate:
            return False
        self._fate = self.folder / LOSE
        self._fate.touch()
        return True

    def _second(self) -> bool:
        """Start a second service, which is refused while the first one runs undisturbed."""
        process = self.service.process()
        if not process or self._away or time.monotonic() < self._struck_at + 2:
            return False
        # One that is frozen, or has not come back to its server yet, may have lost its lock: the second would take it.
        if process.status() == psutil.STATUS_STOPPED or not self.service.is_service():
            return False
        second = Launched(self.folder, ["serve", *PLACE, "--storage", self.service.direct], "pass")
        try:
            _, said = second.communicate(SETTLE_SECONDS)
        finally:
            kill(second)
            second.wait()
            second.close()
        if second.returncode != 2 or "stop it first" not in said:
            self.wrong.append(f"a second service was not refused: status {second.returncode}, {said[-200:]!r}")
        self.fired["second service"] += 1
        return True

    def _busy(self) -> bool:
        """Another program reads the file in one long transaction, or even has its write lock."""
        if not self.service.process():
            return False
        path = self.url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        connection.execute(self.chance.choice(["BEGIN", "BEGIN IMMEDIATE"]))
        connection.execute("SELECT count(*) FROM metrics").fetchone()
        self.later(self.chance.uniform(*HELD_SECONDS), connection.close)
        self.fired["file busy"] += 1
        return True

    def _full(self) -> bool:
        """Let the service write no further in a file than a fresh log needs: a commit finds the disk full."""
        process = self.service.process()
        if not process:
            return False
        _, ceiling = process.rlimit(psutil.RLIMIT_FSIZE)
        self.service.expect(2, "error: .*the disk refuses")
        process.rlimit(psutil.RLIMIT_FSIZE, (20_000, ceiling))
        self.fired["disk full"] += 1
        return True

    def _poisoned(self) -> bool:
        """Somebody leaves among the requests what no process can do."""
        name = self._queue() / f"{time.time_ns():020}-storm.json"
        poison: Sequence[Callable[[], object]] = (
            name.mkdir,
            lambda: name.symlink_to("nowhere"),
            lambda: name.write_text('{"action": "submit"'),
            lambda: name.write_text(StoreRequest(action="pause", study="a").to_json().replace("null", "1e400")),
            lambda: name.write_text(StoreRequest(action="pause", study="a").to_json().replace('"a"', f"{10**30}")),
        )
        self.chance.choice(poison)()
        self.fired["request poisoned"] += 1
        return True

    def _revoked(self) -> bool:
        """Make a token and revoke it a moment later, by whichever process writes the file then."""
        self._tokens += 1
        name = f"storm-{self._tokens}"
        if self.server:
            with suppress(GraftError):  # the server goes away between the two
                make_token(self.service.direct, name, "admin")
                revoke_token(self.service.direct, name)
                self._revoked_tokens.add(name)
        else:
            box, row = Mailbox(self._queue()), {"role": "admin", "digest": name, "seconds": None}
            box.post(StoreRequest(action="make_token", study=name, row=row).to_json())
            box.post(StoreRequest(action="revoke_token", study=name).to_json(), REVOCATION)
            self._revoked_tokens.add(name)
        self.fired["token revoked"] += name in self._revoked_tokens
        return name in self._revoked_tokens

    def _queue(self) -> Path:
        """Return the folder of requests to the process that writes the file."""
        folder = Path(f"{self.url.removeprefix('sqlite:///')}.queue")
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def check_queue(self) -> list[Finding]:
        """Every request must have been done, or moved aside; every token that was revoked opens nothing."""
        stuck = [] if self.server else [path.name for path in self._queue().glob("*.json")]
        findings = [Finding("fault", f"requests were never taken in: {stuck[:5]}")] if stuck else []
        revoked = {name for (name,) in raw(self.service.direct, "SELECT name FROM tokens WHERE revoked_at IS NOT NULL")}
        if missing := self._revoked_tokens - revoked:
            findings.append(Finding("lost", f"tokens were revoked, and are not: {sorted(missing)[:5]}"))
        return findings

    def _deleted(self) -> bool:
        """Take the file away; the service gives up, and what it saved is put back."""
        path = Path(self.url.removeprefix("sqlite:///"))
        if not self.service.process():
            return False
        kept, saved = path.with_name("kept"), path.with_name(f"{path.name}.rescue")
        os.link(path, kept)  # should the service end of itself just now, nobody saves what it had
        self.service.expect(2, "error: .*was deleted under this run, which stops; all that it held is in ")
        path.unlink()
        while self.service.runs():
            self.tick()
            time.sleep(TICK_SECONDS)
        os.replace(saved if saved.exists() else kept, path)
        kept.unlink(missing_ok=True)
        self.fired["file deleted"] += 1
        return True


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()


@functools.cache
def launch_undisturbed() -> Numbers:
    """All metrics of the four studies, launched one after the other with nothing happening to them."""
    with tempfile.TemporaryDirectory() as folder:
        return launch_in(Path(folder))


def storm_over_service(
    database: str, url: str, direct: str, server: MortalServer | None, proxy: Proxy | None, faults: int, seed: int
) -> Verdict:
    """Let so many faults happen to a service of the database, leave it in peace, and audit what it did."""
    undisturbed, chance = launch_undisturbed(), random.Random(seed)
    with (
        tempfile.TemporaryDirectory() as path,
        MortalService(folder=Path(path), url=url, direct=direct) as service,
    ):
        storm = ServiceStorm(chance=chance, folder=Path(path), url=url, server=server, proxy=proxy, service=service)
        asker = Asker(service=service, chance=chance)
        _weather(storm, asker, faults)
        storm.calm()
        (Path(path) / HOLD).unlink(missing_ok=True)
        _settle(service, asker)
        service.finish()
        wrong = [Finding("fault", line) for line in storm.wrong]
        findings = [*wrong, *audit(service, undisturbed), *storm.check_queue()]
        return Verdict(
            database=f"{database}, service",
            trials=TRIALS * len(STUDIES),
            faults=storm.total,
            acknowledged=service.evidence.recorded.total(),
            findings=findings,
            notes=[f"services ended: {_told(service.ends)}", f"asked of the queue: {_told(asker.asked)}"],
        )


def _weather(storm: ServiceStorm, asker: Asker, faults: int) -> None:
    """Strike until enough faults have fired, or all studies are done."""
    service, chance, begin = storm.service, storm.chance, time.monotonic()
    strike = tell = begin
    while sum(storm.total.values()) < faults:
        service.tend()
        storm.tick()
        _hold(storm, sum(storm.total.values()) / faults)
        now = time.monotonic()
        if now >= strike and service.is_done():
            return
        if now >= strike and storm.strike():
            strike = time.monotonic() + chance.uniform(0.5, 1.5) * INTERVAL_SECONDS
            if chance.random() < ASKS_A_FAULT and storm.is_calm:
                asker.ask()
        if now >= tell:
            fired = sum(storm.total.values())
            print(f"{now - begin:.0f} s: {fired} of {faults} faults fired", file=sys.stderr, flush=True)
            tell += PROGRESS_SECONDS
        time.sleep(TICK_SECONDS)


def _hold(storm: ServiceStorm, fired: float) -> None:
    """Have the service train slowly while more of its reports than of the faults have come.

    It makes a step now and then even so: the last faults are to find something to train, too.
    """
    hold = storm.folder / HOLD
    if len(storm.service.evidence.recorded) > fired * REPORTS * TRAINED_IN_STORM:
        hold.touch()
    else:
        hold.unlink(missing_ok=True)


def _settle(service: MortalService, asker: Asker) -> None:
    """Wait until all studies are done, or nothing has been recorded for a long time."""
    recorded, since = -1, time.monotonic()
    while not service.is_done() and time.monotonic() < since + SETTLE_SECONDS:
        service.tend()
        asker.resume()
        now = service.evidence.recorded.total()
        if now != recorded:
            recorded, since = now, time.monotonic()
        time.sleep(10 * TICK_SECONDS)


def _told(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
