"""The command replay: trains stored trials again, each alone, and compares the numbers."""

from __future__ import annotations

from typing import Annotated

import typer

from cli.options import (
    AcceptDataChanges,
    Format,
    RetrainingDevice,
    Storage,
    Study,
    open_db,
    say_changes,
    say_data_changes,
    say_look,
)
from cli.tables import show, show_text

DIFFERS = 1
"""Exit status when a trial does not reproduce."""


def replay(
    study: Study,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER...", help="Numbers of the trials.")],
    storage: Storage = None,
    device: RetrainingDevice = None,
    until: Annotated[int | None, typer.Option(min=1, help="Replay no further than this step.")] = None,
    accept_changes: AcceptDataChanges = False,
    form: Format = "table",
) -> None:
    """Train trials again, alone, and compare every stored metric. Exit status 1 if one differs.

    Metrics must be equal to the bit on a CPU with the step and numerics of the first training, else
    within 0.1 %.

    Example: search replay set-complement 17
    """
    from cli.progress import training_bar
    from graft.machine.devices import check_device
    from graft.plugins.stored import read_outside
    from graft.retraining.comparison import to_frame
    from graft.retraining.replay import read_replays

    if device:
        check_device(device)
    with open_db(storage) as reader:
        replays = read_replays(reader, study, numbers, until, accept_changes=accept_changes)
        say_look(reader, study, "replay")
        say_changes(study, read_outside(reader, study))
    for trial in replays:
        say_data_changes(trial.restored)
    comparisons = []
    for trial in replays:
        with training_bar(trial.number, trial.steps) as watch:
            comparison = trial.run(device, watch)
        comparisons.append(comparison)
        if len(replays) > 1:
            _say(f"trial {trial.number}: {comparison.verdict}", form)
        else:
            if form == "table":
                show(to_frame([comparison]).drop("number"), form)
            _say(comparison.verdict, form)
    if form != "table":
        show(to_frame(comparisons), form)
    good = sum(comparison.reproduced for comparison in comparisons)
    if len(comparisons) > 1:
        _say(f"{good:,} of {len(comparisons):,} trials reproduced", form)
    if good < len(comparisons):
        raise typer.Exit(DIFFERS)


def _say(line: str, form: str) -> None:
    """Print a line for people: on stdout, or on stderr if stdout has a table for a program."""
    if form == "table":
        show_text(line)
    else:
        typer.echo(line, err=True)
