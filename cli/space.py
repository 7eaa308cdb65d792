"""Commands on space files, before anything runs: search space check, sample, describe, list."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import polars as pl
import typer

from cli.options import Format
from cli.tables import show, show_json, show_text
from graft.families import families
from graft.files import cell, one_line
from search.steering.transfer_strategy import begin
from spaces.errors import GraftError
from spaces.grammar.terms import Level
from spaces.plugins import name_of
from spaces.reading import catalogue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spaces.records import Trial
    from spaces.space import Space

File = Annotated[str, typer.Argument(metavar="FILE", help="A space file, or the name of a packaged space.")]
Files = Annotated[list[str], typer.Argument(metavar="FILE...", help="Space files, or names of packaged spaces.")]


def register(app: typer.Typer) -> None:
    """Add the command group `space` to the program."""
    group = typer.Typer(no_args_is_help=True)
    for command in (check, sample, describe, list_spaces):
        group.command("list" if command is list_spaces else None)(command)
    app.add_typer(group, name="space", help="Check, sample and describe space files; list the packaged ones.")


def check(files: Files) -> None:
    """Check space files: the language, every plug-in's rules, and a few hundred draws of each.

    Example: search space check spaces/*.yaml
    """
    faults = 0
    for file in files:
        try:
            space = _load(file)
            space.check()
            show_text(f"{file}: good; {summary(space)}")
        except GraftError as error:
            faults += 1
            typer.echo(f"error: {one_line(str(error))}", err=True)
    if faults:
        raise typer.Exit(2)


def sample(
    file: File,
    count: Annotated[int, typer.Option("-n", min=1, help="How many trials, spread evenly over the study.")] = 5,
    seed: Annotated[int | None, typer.Option(help="Seed of the search, in place of the space's.")] = None,
    form: Format = "table",
) -> None:
    """Show trials as a launch would start them, by the space's own sampler; json gives whole configurations.

    Example: search space sample set_complement -n 3
    """
    trials = _sampled(_load(file, seed), count)
    if form == "json":
        show_json([_record(trial) for trial in trials])
    else:
        frame = pl.DataFrame([_row(trial) for trial in trials], infer_schema_length=None, strict=False)
        show(_side_by_side(trials) if form == "table" else frame, form)


def describe(file: File, form: Format = "table") -> None:
    """Say line by line what a space draws, for a group or for a trial, and how large the study is.

    Example: search space describe set_complement
    """
    space = _load(file)
    if form == "table":
        show_text(f"{summary(space)}\n")
    rows = [(row.path, row.text, _scope(row.level), row.bounds, row.condition) for row in space.describe()]
    frame = pl.DataFrame(rows, schema=dict.fromkeys(_DESCRIBED, pl.String()), orient="row")
    conditional = frame["condition"].count() > 0 or form != "table"
    show(frame if conditional else frame.drop("condition"), form)


def list_spaces(form: Format = "table") -> None:
    """List the packaged spaces, which every command takes by name.

    Example: search space list
    """
    names = catalogue.packaged()
    show(pl.DataFrame({"name": names, "about": [_about(name) for name in names]}), form)


def summary(space: Space) -> str:
    """The size of a study in a line: groups, trials, steps, validations, what is optimised and how."""
    search = space.search
    groups = math.ceil(search.trials / search.group)
    training = space.sample(0, lambda _: 0.5).config["training"]
    steps, every = training["steps"], training["validate_every"]
    written = {row.path: row.text for row in space.describe() if row.level is not Level.CONSTANT}
    validations = f"{math.ceil(steps / every):,} validations" if "training.steps" not in written else "validated"
    parts = [
        f"{space.name}: {search.trials:,} trials in {groups:,} group{'s' * (groups > 1)} of up to {search.group:,}",
        f"{written.get('training.steps', f'{steps:,}')} steps each, {validations} every {every:,}",
        f"{search.objective.direction} {search.objective}",
        f"sampler {name_of(search.sampler)}",
        *(f"stopping {name_of(policy)}" for policy in search.stopping),
    ]
    return ", ".join(parts)


_DESCRIBED = ("path", "value", "drawn", "range", "condition")


def _load(file: str, seed: int | None = None) -> Space:
    from spaces import load

    return load(file, families(), {} if seed is None else {"search.seed": str(seed)})


def _sampled(space: Space, count: int) -> list[Trial]:
    planned = space.search.trials
    numbers = [place * planned // count for place in range(count)] if count < planned else range(planned)
    strategy = begin(space, [])
    return [trial for number in numbers for trial in strategy.ask(strategy.ready(range(number, number + 1)))]


def _record(trial: Trial) -> dict[str, object]:
    return {
        "number": trial.number,
        "group": trial.group,
        "seed": trial.seed,
        "params": dict(trial.params),
        "config": dict(trial.config),
    }


def _row(trial: Trial) -> dict[str, object]:
    return {"number": trial.number, "group": trial.group, "seed": trial.seed, **trial.params}


def _side_by_side(trials: Sequence[Trial]) -> pl.DataFrame:
    """One column per trial: few trials with many params read best so."""
    paths = list(dict.fromkeys(path for trial in trials for path in trial.params))
    columns = {
        f"trial {trial.number}": [str(trial.group), *(cell(trial.params.get(path)) for path in paths)]
        for trial in trials
    }
    return pl.DataFrame({"": ["group", *paths], **columns})


def _scope(level: Level) -> str | None:
    return {Level.CONSTANT: None, Level.GROUP: "per group", Level.TRIAL: "per trial"}[level]


def _about(name: str) -> str:
    """The first comment of a packaged space, up to the end of its line."""
    lines = catalogue.text(name).splitlines()
    return next((line.lstrip("# ") for line in lines if line.startswith("#")), "")
