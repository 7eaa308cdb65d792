"""The log of a pack worker: a few lines that say why it is slow or gone."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from spaces.messages import shorten_numbers
from spaces.records import Directives, Offer, Report
from workers.pool.exchanger import Exchange

_LOG = logging.getLogger("graft.pool")


def begin_log() -> None:
    """Write all our lines to standard error, with the time; once in a process."""
    ours = logging.getLogger("graft")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)


def log_file() -> str:
    """Return the file of this process's standard error; empty if it is none or unknown."""
    try:
        file = os.readlink("/proc/self/fd/2")
    except OSError:
        return ""
    return file if Path(file).is_file() else ""


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, which is the telling one of Ray's."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def log_exchange(exchange: Exchange) -> Exchange:
    """Return the exchange with a line for trials placed, stopped, failed or diverged."""

    def logging_exchange(reports: Sequence[Report], offer: Offer) -> Directives:
        for report in reports:
            if report.error is not None:
                _LOG.warning("trial %d %s at step %d: %s", report.number, report.state, report.step, report.error)
        directives = exchange(reports, offer)
        if directives.start or directives.stop:
            started = [trial.number for trial in directives.start]
            _LOG.info(
                "%s: %d lanes free; starts %s; stops %s",
                offer.worker, offer.lanes, _join_numbers(started), _join_numbers(directives.stop),
            )  # fmt: skip
        return directives

    return logging_exchange


def _join_numbers(numbers: Sequence[int]) -> str:
    """Return `12 trials: 3, 4, 5 ... 70`, or `none`."""
    if not numbers:
        return "none"
    return f"{len(numbers)} trials: {shorten_numbers(numbers)}"
