"""The commands status and wait: a study's status, once or repeatedly, and waiting for its end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cli.options import FORMATS, INTERRUPTED, NestedFormat, OptionError, Storage, Study, check_format, storage_url
from cli.tables import show, show_json, show_text
from spaces.messages import one_line, shorten_numbers

if TYPE_CHECKING:
    from graft.stored.status import Status
    from graft.stored.waiting import WaitResult
    from storage.frames import Reader

_LISTED_WORKERS = 16
REFRESH_SECONDS = 2.0
LINE_SECONDS = 15.0
_PROMETHEUS = "prometheus"
_FORMATS = (*FORMATS, _PROMETHEUS)
_EXITS: Mapping[WaitResult, int] = {"finished": 0, "failed": 1, "stopped": 3, "interrupted": 4, "timeout": 124}
"""The result of waiting -> exit status of `search wait`; 2 is for a mistake in the call."""


def status(
    study: Annotated[str | None, typer.Argument(help="Name of the study; without one prometheus has all.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until the study is no longer running.")] = False,
    storage: Storage = None,
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="|".join(_FORMATS), callback=check_format(_FORMATS), help="How to write the answer."
        ),
    ] = "table",
) -> None:
    """Say where a study stands: trials by state, the best one, rate and time left.

    Example: search status set-complement --watch
    """
    if watch and form != "table":
        raise OptionError(f"--watch is for people; leave out --format {form}")
    if form == _PROMETHEUS:
        from graft.exports.interchange.prometheus import prometheus

        show_text(prometheus(storage_url(storage), study).rstrip())
        return
    if study is None:
        raise OptionError(f"status needs the name of a study; --format {_PROMETHEUS} goes without")
    from graft.stored.status import read_status
    from storage.frames import open_reader

    with open_reader(storage_url(storage)) as reader:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(reader, study)
        elif form == "table":
            show_text(_describe(read_status(reader, study)))
        else:
            show(read_status(reader, study).to_frame(), form)


def wait(
    study: Study,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Wait no longer. Default: as long as it takes.")
    ] = None,
    storage: Storage = None,
    form: NestedFormat = "table",
) -> None:
    """Wait until a study is finished, failed or stopped, in any process, and print which.

    Exit status 0: finished, 1: failed, 3: stopped or cancelled, 4: interrupted, its process is
    gone, 124: not ended within --timeout. A study in the queue is waited for, also while it is
    paused. One that is not being run returns at once.

    Example: search wait set-complement --timeout 3600
    """
    from graft.stored.waiting import wait_for_study
    from storage.frames import open_reader

    with open_reader(storage_url(storage)) as reader:
        try:
            outcome = wait_for_study(reader, study, timeout)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if form == "json":
        show_json({"format": 1, "study": study, "outcome": outcome})
    else:
        show_text(outcome)
    if _EXITS[outcome]:
        raise typer.Exit(_EXITS[outcome])


def _watch(reader: Reader, study: str) -> None:
    from rich.live import Live

    if sys.stdout.isatty():
        with Live(auto_refresh=False) as live:
            for now in _read_repeatedly(reader, study, REFRESH_SECONDS):
                live.update(Text(_describe(now)), refresh=True)
    else:
        for now in _read_repeatedly(reader, study, LINE_SECONDS):
            show_text(f"{study}: " + "; ".join(text for _, text in _facts(now)[1:]))


def _read_repeatedly(reader: Reader, study: str, seconds: float) -> Iterator[Status]:
    """Yield the study's status every so many seconds, the last time when it no longer runs."""
    from graft.stored.status import read_status

    while True:
        now = read_status(reader, study)
        yield now
        if now.state != "running":
            return
        time.sleep(seconds)


def _describe(now: Status) -> str:
    """Return the facts about a study, a line each, aligned."""
    facts = _facts(now)
    width = max(len(label) for label, _ in facts)
    return "\n".join(f"{label:<{width}} {text}" for label, text in facts)


def _facts(now: Status) -> list[tuple[str, str]]:
    """Return label and text of each known fact about a study, the text on one line."""
    from graft.launching.progress_text import describe_time_left

    progress = now.progress
    counts = [f"{count:,} {state}" for state, count in sorted(progress.counts.items())]
    waiting = progress.planned - sum(progress.counts.values())
    if waiting > 0:
        counts.append(f"{waiting:,} not started")
    state = now.state
    if state == "interrupted":
        state = f"interrupted: its controller is gone; resume it with `search resume {now.study}`"
    facts = [
        ("study", now.study),
        ("state", state),
        *([("note", now.note)] if now.note else []),
        *([("tags", ", ".join(now.tags))] if now.tags else []),
        *(("changed", change) for change in now.changes),
        ("trials", f"{progress.ended:,} of {progress.planned:,} ended: {', '.join(counts)}"),
        ("steps", f"{progress.steps:,}"),
    ]
    if progress.utilisation is not None:
        share = f"{progress.utilisation:.1%}".replace("%", " %")
        facts.append(("lane utilisation", f"{share} ({progress.model_steps:,} of {progress.lane_room:,} lane-steps)"))
    if progress.best is not None:
        facts.append(("best", f"{progress.objective} {progress.best:.6g} (trial {progress.best_number})"))
    if now.running:
        facts.append(("running", f"{len(now.running):,} trials: {shorten_numbers(now.running)}"))
    rates = [(now.trials_per_minute, "trials/min"), (now.steps_per_second, "model-steps/s")]
    if any(rate for rate, _ in rates):
        shown = [f"{rate:,.0f} {unit}" if rate >= 100 else f"{rate:.3g} {unit}" for rate, unit in rates if rate]
        facts.append(("rate", ", ".join(shown)))
    if progress.time_left:
        facts.append(("ETA", describe_time_left(progress.time_left)))
    facts += [("worker", line) for line in now.workers[:_LISTED_WORKERS]]
    if len(now.workers) > _LISTED_WORKERS:
        more = f"{len(now.workers) - _LISTED_WORKERS:,} more"
        facts.append(("", f"{more}: `search query \"SELECT id, host, log FROM workers WHERE state = 'running'\"`"))
    return [(label, one_line(text)) for label, text in facts]  # a note may be of another person
