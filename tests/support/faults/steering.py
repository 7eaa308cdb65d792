"""The calls of a running study that the farm makes, one class of honest ones and several that break a promise.

Whatever the real calls come to look like, the farm knows them from here alone.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from graft.launching.enrolling import open_controller
from spaces.progress import Progress
from spaces.records import Directives, Offer, Report

_JUMP_SQLITE = "UPDATE workers SET lease_until = strftime('%Y-%m-%d %H:%M:%f000', lease_until, '{} seconds')"
_JUMP_POSTGRESQL = "UPDATE workers SET lease_until = lease_until + interval '{} seconds'"


class Steering:
    """A study that this process runs; calls may come from any thread."""

    def __init__(self, url: str, study: str) -> None:
        self._study = open_controller(url, study)
        self._turn = threading.Lock()

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        """Record, decide, answer."""
        with self._turn:
            return self._study.exchange(reports, offer)

    def handle_crash(self, worker: str) -> None:
        """Record that the worker's process is known to be dead."""
        with self._turn:
            self._study.handle_crash(worker)

    def renew(self, worker: str) -> bool:
        """Record that the worker is alive; returns False if its lease ran out."""
        return self._study.renew(worker)

    def sweep(self) -> None:
        """Workers that fell silent lose their trials."""
        with self._turn:
            self._study.sweep()

    def jump(self, seconds: float) -> None:
        """Let the database's clock jump: what that does to leases, moving the leases does."""
        with self._turn:
            study: Any = self._study._study  # pyright: ignore[reportPrivateUsage] - the connection that writes
            columns = {"sqlite": _JUMP_SQLITE, "postgresql": _JUMP_POSTGRESQL}
            study.session.transact(
                lambda connection: connection.exec_driver_sql(columns[connection.dialect.name].format(-seconds))
            )

    def progress(self) -> Progress:
        """Where the study stands."""
        return self._study.progress()

    def close(self) -> None:
        """Write how the run ended, and let go of the database."""
        with self._turn:
            self._study.close()


class Hasty(Steering):
    """Acknowledges a worker's reports when they come, and records those of several calls together."""

    def __init__(self, url: str, study: str) -> None:
        super().__init__(url, study)
        self._calls: dict[str, list[Sequence[Report]]] = {}

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        calls = self._calls.setdefault(offer.worker, [])
        calls.append(reports)
        if len(calls) < 6:
            return Directives()
        del self._calls[offer.worker]
        return super().exchange([report for call in calls for report in call], offer)


class Forgetful(Steering):
    """Leaves out every tenth report of a trial that goes on."""

    _seen = 0

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self._seen += len(reports)
        kept = reports[1:] if self._seen % 10 == 0 and reports and reports[0].state == "running" else reports
        return super().exchange(kept, offer)


class Confused(Steering):
    """Records what two lanes of a pack say at the same time under each other's numbers."""

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        if len(reports) == 2 and all(report.state == "running" for report in reports):
            report, other = reports
            reports = [replace(report, metrics=other.metrics), replace(other, metrics=report.metrics)]
        return super().exchange(reports, offer)


class Repeating(Steering):
    """Records every report a second time, one step later."""

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        again = [replace(report, step=report.step + 1) for report in reports if report.state == "running"]
        return super().exchange([*reports, *again], offer)


class Unfenced(Steering):
    """Calls every start of a trial the first one."""

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        directives = super().exchange(reports, offer)
        return replace(directives, start=tuple(replace(trial, fence=1) for trial in directives.start))


STEERINGS: Mapping[str, type[Steering]] = {
    "honest": Steering,
    "hasty": Hasty,
    "forgetful": Forgetful,
    "confused": Confused,
    "repeating": Repeating,
    "unfenced": Unfenced,
}
