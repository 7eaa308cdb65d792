"""The command status: where a study stands, once or again and again."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, get_args

import polars as pl
import typer
from rich.live import Live
from rich.text import Text

from cli.live import duration
from cli.options import Format, OptionError, Storage, Study, storage_url
from cli.tables import show, show_text
from spaces.reading.transfer_section import has_one_objective
from spaces.records import TERMINAL, State
from storage.frames import Reader, open_reader

WINDOW = timedelta(minutes=10)
"""The rate at which trials end is that of the last minutes."""
_SHOWN_WORKERS = 16
REFRESH_SECONDS = 2.0
LINE_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a study stands, by its database."""

    study: str
    state: str
    """`running`, `stopped`, `finished`, `failed`; `interrupted`: called running, but nobody is at it."""
    planned: int
    counts: Mapping[State, int]
    objective: str
    direction: str
    best: float | None
    best_number: int | None
    running: tuple[int, ...]
    """Numbers of the running trials."""
    steps: int
    """Training steps of all trials together."""
    trials_per_minute: float | None
    steps_per_second: float | None
    """Of the running trials, since each was started."""
    lane_steps: int
    """Training steps that lanes of packs made, in all launches; those of trials that started anew included."""
    lane_room: int
    """What they would have been with no lane free."""
    workers: tuple[str, ...]
    """Who trains now: name, host, device, and where its log is."""

    @property
    def utilisation(self) -> float | None:
        """Share of lane-steps that trained a trial; None before the first one is known."""
        return self.lane_steps / self.lane_room if self.lane_room else None

    @property
    def ended(self) -> int:
        """Trials that will not train again."""
        return sum(count for state, count in self.counts.items() if state in TERMINAL)

    @property
    def eta_seconds(self) -> float | None:
        """Until all trials have ended at the present rate; None if no trial ended lately."""
        left = max(self.planned - self.ended, 0)
        return 60 * left / self.trials_per_minute if self.trials_per_minute else None


def status(
    study: Study,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until the study is no longer running.")] = False,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """Say where a study stands: trials by state, the best one, rate and time left.

    Example: search status set-complement --watch
    """
    if watch and form != "table":
        raise OptionError(f"--watch is for people; leave out --format {form}")
    with open_reader(storage_url(storage)) as reader:
        if watch:
            with contextlib.suppress(KeyboardInterrupt):
                _watch(reader, study)
        elif form == "table":
            show_text(_lines(read_status(reader, study)))
        else:
            show(_frame(read_status(reader, study)), form)


def read_status(reader: Reader, name: str) -> Status:
    """Where the study stands now; raises StudyError if there is none of that name."""
    row = reader.study(name)
    now = _clock(reader)
    running = reader.trials(name, where="state = 'running'", columns=("number", "steps", "parent_step", "started_at"))
    best, number = (has_one_objective(row["space"]) and reader.best(name)) or (None, None)
    state = believed_state(reader, row)
    busy = state == "running"
    lane_steps, lane_room = reader.lane_steps(name)
    return Status(
        study=name,
        state=state,
        planned=row["trials"],
        counts=reader.counts(name),
        objective=row["objective"],
        direction=row["direction"],
        best=best,
        best_number=number,
        running=tuple(running["number"]),
        steps=row["steps"] + running.select(pl.col("steps") - pl.col("parent_step").fill_null(0)).to_series().sum(),
        trials_per_minute=_ending_rate(reader, row["id"], running, now) if busy else None,
        steps_per_second=_training_rate(running, now) if busy else None,
        lane_steps=lane_steps,
        lane_room=lane_room,
        workers=tuple(_workers(reader, name)),
    )


def _workers(reader: Reader, name: str) -> Iterator[str]:
    """Who trains now, where, and where what it says of itself can be read, a line each."""
    living = reader.workers(name).filter(pl.col("state") == "running", pl.col("lease_until") > _clock(reader))
    for worker, host, device, log in living["id", "host", "device", "log"].iter_rows():
        yield f"{worker} on {host} ({device})" + (f", log {log}" if log else "")


def believed_state(reader: Reader, row: Mapping[str, Any]) -> str:
    """The state of a row of `studies`; `interrupted` for one that calls itself running, but that nobody holds."""
    return "interrupted" if row["state"] == "running" and not reader.holder(row["name"]) else row["state"]


def _ending_rate(reader: Reader, study_id: int, running: pl.DataFrame, now: datetime) -> float | None:
    """Trials that ended per minute of the last minutes; None if none did."""
    since = now - WINDOW
    [(ended, first)] = reader.query(
        "SELECT count(*) AS ended, min(started_at) AS first FROM trials"
        f" WHERE study_id = {study_id} AND finished_at > '{since:%Y-%m-%d %H:%M:%S}'"
    ).rows()
    if not ended:
        return None
    started = min((time for time in (_time(first), *running["started_at"]) if time is not None), default=since)
    return ended / max((now - max(started, since)).total_seconds() / 60, 1 / 60)


def _training_rate(running: pl.DataFrame, now: datetime) -> float | None:
    seconds = (pl.lit(now) - pl.col("started_at")).dt.total_microseconds() / 1e6
    rate = running.select((pl.col("steps") / seconds.clip(lower_bound=1.0)).sum()).item()
    return rate or None


def _clock(reader: Reader) -> datetime:
    """The database's own clock: all stored times are by it."""
    now = _time(reader.query("SELECT CURRENT_TIMESTAMP AS now").item())
    assert now is not None
    return now


def _time(value: str | datetime | None) -> datetime | None:
    """A time that a query computed: SQLite gives text, in UTC."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value


def _watch(reader: Reader, study: str) -> None:
    if sys.stdout.isatty():
        with Live(auto_refresh=False) as live:
            for now in _refreshed(reader, study, REFRESH_SECONDS):
                live.update(Text(_lines(now)), refresh=True)
    else:
        for now in _refreshed(reader, study, LINE_SECONDS):
            show_text(f"{study}: " + "; ".join(text for _, text in _facts(now)[1:]))


def _refreshed(reader: Reader, study: str, seconds: float) -> Iterator[Status]:
    """Where the study stands, again and again, the last time when it is no longer running."""
    while True:
        now = read_status(reader, study)
        yield now
        if now.state != "running":
            return
        time.sleep(seconds)


def _lines(now: Status) -> str:
    facts = _facts(now)
    width = max(len(label) for label, _ in facts)
    return "\n".join(f"{label:<{width}} {text}" for label, text in facts)


def _facts(now: Status) -> list[tuple[str, str]]:
    """What a person wants to know, label and text; what is not known is left out."""
    counts = [f"{count:,} {state}" for state, count in sorted(now.counts.items())]
    waiting = now.planned - sum(now.counts.values())
    if waiting > 0:
        counts.append(f"{waiting:,} not started")
    facts = [
        ("study", now.study),
        ("state", _state(now)),
        ("trials", f"{now.ended:,} of {now.planned:,} ended: {', '.join(counts)}"),
        ("steps", f"{now.steps:,}"),
    ]
    if now.utilisation is not None:
        facts.append(("lane utilisation", _share(now.utilisation, now.lane_steps, now.lane_room)))
    if now.best is not None:
        facts.append(("best", f"{now.objective} {now.best:.6g} (trial {now.best_number})"))
    if now.running:
        facts.append(("running", f"{len(now.running):,} trials: {_numbers(now.running)}"))
    rates = [(now.trials_per_minute, "trials/min"), (now.steps_per_second, "model-steps/s")]
    if any(rate for rate, _ in rates):
        facts.append(("rate", ", ".join(f"{_rate(rate)} {unit}" for rate, unit in rates if rate)))
    if now.eta_seconds is not None:
        facts.append(("ETA", duration(now.eta_seconds)))
    shown = now.workers[:_SHOWN_WORKERS]
    facts += [("worker", line) for line in shown]
    if len(shown) < len(now.workers):
        more = f"{len(now.workers) - len(shown):,} more"
        facts.append(("", f"{more}: `search query \"SELECT id, host, log FROM workers WHERE state = 'running'\"`"))
    return facts


def _share(utilisation: float, steps: int, room: int) -> str:
    """`97.3 % (1,234,567 of 1,268,000 lane-steps)`"""
    return f"{utilisation:.1%} ({steps:,} of {room:,} lane-steps)".replace("%", " %", 1)


def _state(now: Status) -> str:
    if now.state == "interrupted":
        return f"interrupted: its controller is gone; go on with `search resume {now.study}`"
    return now.state


def _numbers(numbers: tuple[int, ...]) -> str:
    """`3, 4, 5 ... 70`: enough to look at one of them."""
    first = ", ".join(map(str, numbers[:8]))
    return first if len(numbers) <= 8 else f"{first} ... {numbers[-1]}"


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _frame(now: Status) -> pl.DataFrame:
    """One row for programs."""
    counts = {state: now.counts.get(state, 0) for state in get_args(State)}
    row = {
        "study": now.study,
        "state": now.state,
        "planned": now.planned,
        "ended": now.ended,
        **counts,
        "objective": now.objective,
        "direction": now.direction,
        "best": now.best,
        "best_number": now.best_number,
        "steps": now.steps,
        "trials_per_minute": now.trials_per_minute,
        "steps_per_second": now.steps_per_second,
        "eta_seconds": now.eta_seconds,
        "lane_steps": now.lane_steps,
        "lane_room": now.lane_room,
        "utilisation": now.utilisation,
    }
    return pl.DataFrame([row], schema_overrides=_NULLABLE)


_NULLABLE = {"best": pl.Float64(), "best_number": pl.Int64()} | dict.fromkeys(
    ("trials_per_minute", "steps_per_second", "eta_seconds", "utilisation"), pl.Float64()
)
