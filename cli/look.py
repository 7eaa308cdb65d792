"""Commands that look at what is stored: studies, trials, show, query; status and export have files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

import polars as pl
import typer
import yaml

from cli.export import PARAMETER, export, unpacked
from cli.options import Format, NestedFormat, OptionError, Storage, Study, storage_url
from cli.status import believed_state, status
from cli.tables import aligned, show, show_json, show_text
from graft.files import cell, one_line
from spaces.errors import StudyError
from spaces.records import TERMINAL
from storage.frames import TRIALS, Reader, open_reader

SECONDS = 300.0
"""How long the database may work on an answer that a person described in SQL."""
_LISTED = tuple(name for name in TRIALS if name not in ("id", "study_id", "fence", "draws", "config"))
_PREFERRED = ("optimizer.learning_rate", "model.", "optimizer.", "averaging.", "task.")
"""The order in which params stand in a table for people, which may be too narrow for all."""
_TIMES = {"started": "started_at", "ended": "finished_at"}
_SECTIONS = ("task", "model", "optimizer", "averaging", "learning", "training")


def register(app: typer.Typer) -> None:
    """Add the commands that look at a database to the program."""
    for command in (studies, status, trials, show_trial, query, export):
        app.command("show" if command is show_trial else None)(command)


def studies(storage: Storage = None, form: Format = "table") -> None:
    """List the studies of a database, how far they are, and the best objective of each.

    Example: search studies --storage graft.db
    """
    with open_reader(storage_url(storage)) as reader:
        rows = [_study_row(reader, row) for row in reader.studies().iter_rows(named=True)]
    show(pl.DataFrame(rows, schema=_STUDY_COLUMNS), form)


def trials(
    study: Study,
    where: Annotated[str | None, typer.Option(help="SQL condition; params.<path> is a sampled value.")] = None,
    sort: Annotated[str | None, typer.Option(help="SQL order, for example 'steps DESC'. Default: number.")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only the first N: of --sort, else of the objective.")] = None,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """List the trials of a study with the params that differ; programs get every column.

    Example: search trials set-complement --where "params.optimizer.learning_rate > 1e-3" --top 10
    """
    with open_reader(storage_url(storage), SECONDS) as reader:
        frame = unpacked(reader.trials(study, where=where, sort=sort, top=top, columns=_LISTED))
    show(_for_people(frame) if form == "table" else frame, form)


def show_trial(
    study: Study,
    number: Annotated[int, typer.Argument(help="Number of the trial.")],
    storage: Storage = None,
    form: NestedFormat = "table",
) -> None:
    """Show one trial: its configuration, its draws, and its metrics over the steps.

    Example: search show set-complement 17
    """
    with open_reader(storage_url(storage)) as reader:
        row = stored_trial(reader, study, number)
        metrics = stored_metrics(reader, row["id"])
        objective = reader.study(study)["objective"]
    for name in ("params", "draws", "config"):
        row[name] = json.loads(row[name])
    if form == "json":
        show_json({**row, "metrics": metrics.to_dicts()})
    else:
        show_text("\n\n".join([_heading(study, row, objective), *_sections(row, metrics)]))


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over studies, trials, metrics, workers and architectures.")],
    seconds: Annotated[float, typer.Option(min=0.001, help="How long the database may work on the answer.")] = SECONDS,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """Answer one SELECT; nothing can be changed through it.

    Example: search query "SELECT state, count(*) AS trials FROM trials GROUP BY state"
    """
    with open_reader(storage_url(storage), seconds) as reader:
        frame = reader.query(sql)
    if not frame.width:
        raise OptionError("the query has no answer; write one SELECT")
    show(frame, form)


_STUDY_COLUMNS = {
    "name": pl.String(),
    "state": pl.String(),
    "ended": pl.Int64(),
    "trials": pl.Int64(),
    "objective": pl.String(),
    "best": pl.Float64(),
    "best_number": pl.Int64(),
    "created_at": pl.Datetime("us", "UTC"),
}


def _study_row(reader: Reader, row: Mapping[str, Any]) -> dict[str, Any]:
    name: str = row["name"]
    counts = reader.counts(name)
    best, number = reader.best(name) or (None, None)
    ended = sum(count for state, count in counts.items() if state in TERMINAL)
    found = {"state": believed_state(reader, row), "ended": ended, "best": best, "best_number": number}
    return {key: found.get(key, row.get(key)) for key in _STUDY_COLUMNS}


def _for_people(trials: pl.DataFrame) -> pl.DataFrame:
    """What a person compares: where each trial stands, then the params that differ, then errors if there are any."""
    paths = [name for name in trials.columns if name.startswith(PARAMETER) and trials[name].n_unique() > 1]
    paths.sort(key=_preference)
    last = [path.rpartition(".")[2] for path in paths]
    short = [
        name if last.count(name) == 1 else path.removeprefix(PARAMETER) for name, path in zip(last, paths, strict=True)
    ]
    return trials.select(
        "number",
        pl.col("group_number").alias("group"),
        "state",
        "steps",
        "objective",
        *(pl.col(path).alias(name) for path, name in zip(paths, short, strict=True)),
        *(["parent", "parent_step"] if trials["parent"].count() else []),
        *(["error"] if trials["error"].count() else []),
    )


def _preference(column: str) -> int:
    path = column.removeprefix(PARAMETER)
    return next((place for place, prefix in enumerate(_PREFERRED) if path.startswith(prefix)), len(_PREFERRED))


def stored_trial(reader: Reader, study: str, number: int) -> dict[str, Any]:
    """A row of `trials`, whole; raises StudyError if the study has no such trial."""
    found = reader.trials(study, where=f"number = {number}")
    if found.is_empty():
        highest = reader.trials(study, sort="number DESC", top=1, columns=("number",))["number"].max()
        there = "it has none yet" if highest is None else f"the highest is {highest}"
        raise StudyError(f"study {study!r} has no trial {number}; {there}")
    return found.row(0, named=True)


def stored_metrics(reader: Reader, trial: int) -> pl.DataFrame:
    """step, name, variant, condition and value of a trial's kept metrics, by its id; in the order of steps."""
    columns = "step, name, variant, condition, value"
    return reader.query(f"SELECT {columns} FROM metrics WHERE trial_id = {trial} ORDER BY {columns}")


def _heading(study: str, row: Mapping[str, Any], objective: str) -> str:
    steps, group = f"{row['steps']:,} steps", f"group {row['group_number']}"
    lines = [f"trial {row['number']} of {study}: {row['state']} after {steps}, {group}, seed {row['seed']}"]
    if row["parent"] is not None:
        lines.append(f"goes on from trial {row['parent']} at step {row['parent_step']:,}")
    if row["objective"] is not None:
        lines.append(f"{objective} {row['objective']:.6g}")
    times = [f"{word} {row[at]:%Y-%m-%d %H:%M:%S} UTC" for word, at in _TIMES.items() if row[at] is not None]
    lines.append(", ".join([*times, f"by {row['worker']}"] if row["worker"] else times))
    if row["error"]:
        lines.append(f"error: {row['error']}")
    return "\n".join(one_line(line) for line in lines if line)


def _sections(row: Mapping[str, Any], metrics: pl.DataFrame) -> list[str]:
    draws: Mapping[str, float] = row["draws"]
    values = {name: row["params"].get(name) for name in draws}
    table = {"draw": list(draws), "u": list(draws.values()), "value": [cell(value) for value in values.values()]}
    config = yaml.safe_dump(_readable(row["config"]), sort_keys=False, allow_unicode=True).rstrip()
    parts = [config, aligned(pl.DataFrame(table)) if draws else "nothing was drawn"]
    return [*parts, aligned(_extremes(metrics)) if metrics.height else "no metrics yet"]


def _readable(config: Any) -> Any:
    """The configuration with its sections in the order of a space file and names first; stored JSON is sorted."""
    if not isinstance(config, dict):
        return config
    order = {key: place for place, key in enumerate(("name", *_SECTIONS))}
    return {key: _readable(config[key]) for key in sorted(config, key=lambda key: order.get(key, len(order)))}


def _extremes(metrics: pl.DataFrame) -> pl.DataFrame:
    """One row per metric and variant. Lowest and highest: which of them is the better one, a metric does not say."""
    value, step = pl.col("value"), pl.col("step")
    return metrics.group_by("name", "variant", "condition", maintain_order=True).agg(
        validations=pl.len(),
        lowest=value.min(),
        lowest_step=step.get(value.arg_min()),
        highest=value.max(),
        highest_step=step.get(value.arg_max()),
        last=value.last(),
        last_step=step.last(),
    )
