"""Commands that show the contents of a database: studies, status, wait, trials, show, query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.commands.export import export
from cli.commands.status import status, wait
from cli.option_groups import with_groups
from cli.options import Format, NestedFormat, OptionError, Storage, Study, say_look, say_notes, storage_url
from cli.tables import align, show, show_json, show_text
from spaces.bounds import MOST_TRIALS
from spaces.messages import one_line

if TYPE_CHECKING:
    import polars as pl

    from graft.stored.fingerprints import StoredFingerprint

SECONDS = 300.0
"""Seconds that the database may work on an answer to SQL."""
_PREFERRED = ("optimizer.learning_rate", "model.", "optimizer.", "averaging.", "task.")
"""The order of params in a table for people, which may be too narrow for all."""
_COLUMNS = (
    "number",
    "group",
    "state",
    "steps",
    "objective",
    "second_objective",
    "feasible",
    "parent",
    "parent_step",
    "step_kind",
    "fingerprint",
    "error",
)
"""The other columns of such a table."""
_TIMES = {"started": "started_at", "ended": "finished_at"}
_SECTIONS = ("task", "model", "optimizer", "averaging", "learning", "training")


def register(app: typer.Typer) -> None:
    """Add the commands that read a database to the program, status and export included."""
    for command in (studies, status, wait, trials, show_trial, query):
        app.command("show" if command is show_trial else None)(command)
    app.command()(with_groups(export))


def studies(
    every: Annotated[bool, typer.Option("--all", help="Those in the archive too.")] = False,
    tag: Annotated[str | None, typer.Option(metavar="TAG", help="Only those that have this tag.")] = None,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """List the studies of a database, how far they are, and the best objective of each.

    Example: search studies --tag paper
    """
    from graft.stored.studies import read_studies
    from storage.frames import open_reader

    with open_reader(storage_url(storage)) as reader:
        frame = read_studies(reader, archived=every, tag=tag)
    if form == "table":  # without columns that say nothing in any row
        frame = frame.drop([name for name in ("tags", "note", "archived") if not any(frame[name])])
    show(frame, form)


def trials(
    study: Study,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="A condition over columns and paths: optimizer.learning_rate > 1e-3."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="An order: 'steps DESC', or objective, best first. Default: number."),
    ] = None,
    top: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_TRIALS, help="Only the first N of --sort; without it the N best."),
    ] = None,
    front: Annotated[bool, typer.Option("--front", help="Only the Pareto front of two objectives.")] = False,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """List the trials of a study with the params that differ; programs get every column.

    `--sort objective` puts the best trial first, whether the study minimizes or maximizes;
    with --top it leaves out trials that break a constraint.

    Example: search trials tiny --where "optimizer.learning_rate > 1e-3" --sort objective --top 10
    """
    from graft.stored.trials import find_varying_params, list_front, list_trials
    from storage.frames import open_reader

    if front and (where or sort or top):
        raise OptionError("--front is a choice and an order of its own; leave out --where, --sort and --top")
    with open_reader(storage_url(storage), SECONDS) as reader:
        frame = list_front(reader, study) if front else list_trials(reader, study, where, sort, top)
        stored = reader.study(study)
        varying = find_varying_params(stored) if form == "table" else set[str]()
        say_look(reader, study, "trials")
    show(_select_for_people(frame, varying) if form == "table" else frame, form)
    if (sort is None and top is not None) or (sort is not None and sort.strip().lower() == "objective"):
        typer.echo(f"order: best first, {stored.row['direction']} {stored.row['objective']}", err=True)


def show_trial(
    study: Study,
    number: Annotated[int, typer.Argument(help="Number of the trial.")],
    storage: Storage = None,
    form: NestedFormat = "table",
) -> None:
    """Show one trial: its configuration, its draws, and its metrics over the steps.

    Example: search show set-complement 17
    """
    from graft.files import cell
    from graft.stored.fingerprints import follow, read_fingerprints
    from graft.stored.trials import read_trial, summarise_metrics
    from storage.frames import open_reader

    with open_reader(storage_url(storage)) as reader:
        row, metrics = read_trial(reader, study, number)
        conditions = follow(read_fingerprints(reader, study), row["fingerprint"])
        of_study = reader.study(study).row
        say_look(reader, study, "show")
    if form == "json":
        show_json({**row, "metrics": metrics.to_dicts()})
        return
    import polars as pl
    import yaml

    draws: Mapping[str, float] = row["draws"]
    values = [cell(row["params"].get(name)) for name in draws]
    table = {"draw": list(draws), "u": list(draws.values()), "value": values}
    sections = [
        _heading(of_study, row, conditions),
        yaml.safe_dump(_sort_config(row["config"]), sort_keys=False, allow_unicode=True).rstrip(),
        align(pl.DataFrame(table)) if draws else "nothing was drawn",
        align(summarise_metrics(metrics)) if metrics.height else "no metrics yet",
    ]
    show_text("\n\n".join(sections))


def query(
    sql: Annotated[str, typer.Argument(help="One SELECT over studies, trials, metrics, workers, fingerprints ...")],
    seconds: Annotated[float, typer.Option(min=0.001, help="How long the database may work on the answer.")] = SECONDS,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """Answer one SELECT; nothing can be changed through it.

    Example: search query "SELECT state, count(*) AS trials FROM trials GROUP BY state"
    """
    from graft.stored.claims import note_query
    from storage.frames import open_reader

    url = storage_url(storage)
    with open_reader(url, seconds) as reader:
        frame = reader.query(sql)
        say_notes(note_query(reader, url, sql, "query"))
    if not frame.width:
        raise OptionError("the query has no answer; write one SELECT")
    show(frame, form)


def _select_for_people(trials: pl.DataFrame, varying: Set[str]) -> pl.DataFrame:
    """Choose the columns that people compare: the state, the params that differ, and any errors.

    Params that differ anywhere in the study are `varying`. They stay even if these rows have one
    value, since it is worth knowing that the best trials share it. A param is named by the last
    part of its path if no other column has that name.
    """
    import polars as pl

    from graft.stored.params import PARAMS_PREFIX

    def preference(column: str) -> int:
        path = column.removeprefix(PARAMS_PREFIX)
        return next((rank for rank, prefix in enumerate(_PREFERRED) if path.startswith(prefix)), len(_PREFERRED))

    params = [name for name in trials.columns if name.startswith(PARAMS_PREFIX)]
    columns = [name for name in params if name in varying or trials[name].n_unique() > 1]
    columns.sort(key=preference)
    short = {column: column.rpartition(".")[2] for column in columns}
    uses = Counter([*_COLUMNS, *short.values()])
    names = {column: name if uses[name] == 1 else column.removeprefix(PARAMS_PREFIX) for column, name in short.items()}
    return trials.select(
        "number",
        pl.col("group_number").alias("group"),
        "state",
        "steps",
        "objective",
        *(name for name in ("second_objective", "feasible") if trials[name].count()),
        *(pl.col(column).alias(name) for column, name in names.items()),
        *(["parent", "parent_step"] if trials["parent"].count() else []),
        *(name for name in ("step_kind", "fingerprint") if trials[name].drop_nulls().n_unique() > 1),
        *(["error"] if trials["error"].count() else []),
    )


def _heading(study: Mapping[str, Any], row: Mapping[str, Any], conditions: Sequence[StoredFingerprint]) -> str:
    from graft.stored.fingerprints import describe_gpu_rates
    from graft.stored.studies import name_objective
    from spaces.records import describe_constraints

    steps, group = f"{row['steps']:,} steps", f"group {row['group_number']}"
    lines = [f"trial {row['number']} of {study['name']}: {row['state']} after {steps}, {group}, seed {row['seed']}"]
    if row["parent"] is not None:
        lines.append(f"goes on from trial {row['parent']} at step {row['parent_step']:,}")
    if row["objective"] is not None:
        lines.append(f"{name_objective(study, row['params'])} {row['objective']:.6g}")
    if row["second_objective"] is not None:
        lines.append(f"{study['second_objective'].partition(' ')[2]}: {row['second_objective']:.6g}")
    lines += describe_constraints(row["constraints"])
    times = [f"{word} {row[at]:%Y-%m-%d %H:%M:%S} UTC" for word, at in _TIMES.items() if row[at] is not None]
    lines.append(", ".join([*times, f"by {row['worker']}"] if row["worker"] else times))
    lines += [f"fingerprint {condition.number}: {condition.describe()}" for condition in conditions]
    lines += describe_gpu_rates(row["config"], conditions)
    if row["error"]:
        lines.append(f"error: {row['error']}")
    return "\n".join(one_line(line) for line in lines if line)


def _sort_config(config: Any) -> Any:
    """Return the configuration in the order of a space file, names first; stored JSON is sorted."""
    if not isinstance(config, dict):
        return config
    order = {key: rank for rank, key in enumerate(("name", *_SECTIONS))}
    return {key: _sort_config(config[key]) for key in sorted(config, key=lambda key: order.get(key, len(order)))}
