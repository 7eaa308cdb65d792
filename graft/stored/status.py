"""The status of a study, read from its database alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Self, get_args

import polars as pl

from graft.stored.differences import Difference
from graft.stored.studies import read_best, read_state
from search.steering.time_left import REMEMBERED, EndedTrial, OpenTrial, estimate_time_left, is_stage_one
from spaces.progress import Progress, TimeLeft
from spaces.records import State
from storage.frames import Reader
from storage.frames.study import StudyReader
from storage.row_values import read_time

WINDOW = timedelta(minutes=10)
"""The time over which the rate of ending trials is taken."""
_OF_RUNNING = ("number", "steps", "parent_step", "fence", "started_at")
_OWN_STEPS = "steps - coalesce(parent_step, 0) AS own_steps"
_PLANNED = "CAST(config->'training'->>'steps' AS integer) AS planned"


@dataclass(frozen=True, kw_only=True)
class Status:
    """The status of a study by its database."""

    study: str
    state: str
    """`running`, `stopped`, `finished`, `failed`, or `interrupted` if its process is gone."""
    direction: str
    progress: Progress
    """The progress of all launches together."""
    running: tuple[int, ...]
    """Numbers of the running trials."""
    trials_per_minute: float | None
    steps_per_second: float | None
    """The rate of the running trials since each was started."""
    seconds: float | None
    """Seconds from the launch until now, or until the last trial ended; None before that."""
    workers: tuple[str, ...]
    """The running workers: name, host, device and log."""
    note: str
    tags: tuple[str, ...]
    changes: tuple[str, ...]
    """A line for each change of the space since the launch."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the status that a server sends, in which every tuple is a list."""
        fields: dict[str, Any] = dict(values)
        fields |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        progress = Progress(**fields.pop("progress"))
        left = progress.time_left and TimeLeft(*progress.time_left)
        return cls(progress=replace(progress, time_left=left), **fields)

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until all trials have ended, the middle of `progress.time_left`, or None."""
        left = self.progress.time_left
        return None if left is None else (left.least + left.most) / 2

    def to_frame(self) -> pl.DataFrame:
        """Return the status as one row for programs."""
        progress = self.progress
        row = {
            "study": self.study,
            "state": self.state,
            "planned": progress.planned,
            "ended": progress.ended,
            **{state: progress.counts.get(state, 0) for state in get_args(State)},
            "objective": progress.objective,
            "direction": self.direction,
            "best": progress.best,
            "best_number": progress.best_number,
            "steps": progress.steps,
            "trials_per_minute": self.trials_per_minute,
            "steps_per_second": self.steps_per_second,
            "eta_seconds": self.eta_seconds,
            "eta_least_seconds": progress.time_left and progress.time_left.least,
            "eta_most_seconds": progress.time_left and progress.time_left.most,
            "lane_steps": progress.model_steps,
            "lane_room": progress.lane_room,
            "utilisation": progress.utilisation,
        }
        return pl.DataFrame([row], schema_overrides=_NULLABLE)


_RATES = ("trials_per_minute", "steps_per_second", "utilisation")
_ETAS = ("eta_seconds", "eta_least_seconds", "eta_most_seconds")
_NULLABLE = {"best_number": pl.Int64()} | dict.fromkeys(("best", *_RATES, *_ETAS), pl.Float64())


def read_status(reader: Reader, name: str) -> Status:
    """Return the present status of a study; raises StudyError if there is none of that name."""
    study = reader.study(name)
    row = study.row
    now = read_clock(reader)
    running = study.trials(where="state = 'running'", columns=_OF_RUNNING)
    best, number = read_best(reader, row)
    state = read_state(reader, row)
    is_running = state == "running"
    model_steps, lane_room = study.count_steps()
    until = now if is_running else read_last_ends(reader, row["id"])["last"][0]
    return Status(
        study=name,
        state=state,
        direction=row["direction"],
        progress=Progress(
            planned=row["trials"],
            counts=study.counts(),
            objective=" and ".join(filter(None, (row["objective"], row["second_objective"]))),
            best=best,
            best_number=number,
            steps=row["steps"] + running.select(pl.col("steps") - pl.col("parent_step").fill_null(0)).to_series().sum(),
            model_steps=model_steps,
            lane_room=lane_room,
            time_left=_estimate_time_left(reader, study, now) if is_running else None,
        ),
        running=tuple(running["number"]),
        trials_per_minute=_ending_rate(reader, row["id"], running, now) if is_running else None,
        steps_per_second=_training_rate(running, now) if is_running else None,
        seconds=until and max((until - row["created_at"]).total_seconds(), 0.0),
        workers=tuple(_describe_workers(study, now)),
        note=row["note"],
        tags=tuple(json.loads(row["tags"])),
        changes=tuple(_describe_changes(study)),
    )


def read_running(reader: Reader, row: Mapping[str, Any], most: int) -> pl.DataFrame:
    """Return worker, number, steps and planned (steps) of a study's running trials, by worker."""
    return reader.query(
        f"SELECT worker, number, steps, {_PLANNED} FROM trials WHERE study_id = {row['id']} AND state = 'running'"
        f" ORDER BY worker, number LIMIT {most}"
    )


def _describe_changes(study: StudyReader) -> Iterator[str]:
    columns = "created_at", "trials", "differences"
    for at, trials, differences in study.changes().select(columns).iter_rows():
        words = ", ".join(str(Difference(*change)) for change in json.loads(differences))
        yield f"{words} ({at:%Y-%m-%d %H:%M} UTC, after {trials:,} trials)"


def _describe_workers(study: StudyReader, now: datetime) -> Iterator[str]:
    """Yield a line for each worker with a valid lease: name, host, device and log."""
    living = study.workers().filter(pl.col("state") == "running", pl.col("lease_until") > now)
    for worker, host, device, log in living["id", "host", "device", "log"].iter_rows():
        yield f"{worker} on {host} ({device})" + (f", log {log}" if log else "")


def read_last_ends(reader: Reader, study: int | None = None) -> pl.DataFrame:
    """Return name and `last`, the end of the last trial or null, of all studies or of one id."""
    ends = "SELECT max(finished_at) FROM trials WHERE study_id = studies.id"
    chosen = "" if study is None else f" WHERE id = {study}"
    rows = reader.query(f"SELECT name, ({ends}) AS last FROM studies{chosen}")
    times = [(name, last and read_time(last)) for name, last in rows.iter_rows()]
    return pl.DataFrame(times, {"name": pl.String(), "last": pl.Datetime("us", "UTC")}, orient="row")


def _ending_rate(reader: Reader, study_id: int, running: pl.DataFrame, now: datetime) -> float | None:
    """Return the trials that ended per minute of the last minutes; None if none ended."""
    since = now - WINDOW
    [(ended, first)] = reader.query(
        "SELECT count(*) AS ended, min(started_at) AS first FROM trials"
        f" WHERE study_id = {study_id} AND finished_at > '{since:%Y-%m-%d %H:%M:%S}'"
    ).rows()
    if not ended:
        return None
    starts = [first and read_time(first), *running["started_at"]]
    started = min((time for time in starts if time is not None), default=since)
    return ended / max((now - max(started, since)).total_seconds() / 60, 1 / 60)


def _estimate_time_left(reader: Reader, study: StudyReader, now: datetime) -> TimeLeft | None:
    """Estimate the time until all trials have ended from stored rows (`estimate_time_left`).

    The speed is that of the newest trials that ended after one start, else unknown. A resumed trial
    counts as if it had had its lane from its last reported step, and trials that were never started
    as long as the newest ones. None in stage one of a transfer while trials wait.
    """
    of_study = f"FROM trials WHERE study_id = {study.row['id']}"
    newest = f"ORDER BY id DESC LIMIT {REMEMBERED}"
    started = reader.query(f"SELECT {_PLANNED}, params {of_study} AND started_at IS NOT NULL {newest}")
    waiting = study.row["trials"] - sum(count for state, count in study.counts().items() if state != "queued")
    early = [is_stage_one(json.loads(params)) for params in started["params"]]
    if not early or (waiting > 0 and early[0]):
        return None
    planned = started["planned"].filter(pl.Series(early) == early[0])
    times = f"started_at, finished_at, fence, {_OWN_STEPS}, coalesce(parent_step, 0) AS first_step, {_PLANNED}"
    once = f"AND fence = 1 AND started_at IS NOT NULL AND finished_at IS NOT NULL {newest}"
    ended = [
        EndedTrial(
            row["planned"] - row["first_step"], row["own_steps"], _seconds(row["started_at"], row["finished_at"])
        )
        for row in reader.query(f"SELECT {times} {of_study} {once}").iter_rows(named=True)
    ]
    running = [
        OpenTrial(row["planned"] - row["first_step"], max(_seconds(row["started_at"], now), 0.0))
        if row["fence"] == 1
        else OpenTrial(row["planned"] - row["first_step"] - row["own_steps"], 0.0)
        for row in reader.query(f"SELECT {times} {of_study} AND state = 'running'").iter_rows(named=True)
    ]
    return estimate_time_left(ended, running, max(waiting, 0), sum(planned) / len(planned))


def _seconds(start: str | datetime, end: str | datetime) -> float:
    return (read_time(end) - read_time(start)).total_seconds()


def _training_rate(running: pl.DataFrame, now: datetime) -> float | None:
    """Return the steps per second of all running trials, by those that were started only once."""
    once = running.filter(pl.col("fence") == 1)
    own_steps = pl.col("steps") - pl.col("parent_step").fill_null(0)
    seconds = (pl.lit(now) - pl.col("started_at")).dt.total_microseconds() / 1e6
    rate = once.select((own_steps / seconds.clip(lower_bound=1.0)).mean()).item()
    return rate * len(running) if rate else None


def read_clock(reader: Reader) -> datetime:
    """Return the time by the database's own clock, which all stored times are by."""
    return read_time(reader.query("SELECT CURRENT_TIMESTAMP AS now").item())
