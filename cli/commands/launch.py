"""Commands that start, resume and stop a study, and queue trials of it again."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.estimates import print_estimate_json, print_estimate_table
from cli.log_lines import leave, say
from cli.option_groups import OverrideOptions, RunOptions
from cli.options import (
    INTERRUPTED,
    OptionError,
    Plugins,
    Storage,
    Study,
    check_format,
    current_url,
    database_name,
    say_changes,
    say_notes,
    storage_url,
)
from graft.launching.process.watcher import Watcher
from spaces.errors import StudyError
from spaces.messages import shorten

if TYPE_CHECKING:
    from graft.launching.placement import Placement
    from spaces.space import Space

_watcher = Watcher()


def with_kill_watcher(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with a process beside it that reports if the command is killed."""

    @functools.wraps(command)
    def watched(*arguments: Any, **options: Any) -> None:
        with _watcher:
            command(*arguments, **options)

    return watched


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """The options that matter before a study is started."""

    plugins: Plugins = None
    warm_start: Annotated[
        str | None, typer.Option(metavar="auto|STUDY,...", help="Start from earlier studies: auto for all, or names.")
    ] = None
    replace: Annotated[
        bool, typer.Option("--replace", help="Begin again a study of this name that has no result yet.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, how long and how large.")] = False
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="table|json",
            callback=check_format(("table", "json")),
            help="How --dry-run says it.",
        ),
    ] = "table"


@with_kill_watcher
def launch(
    space: Annotated[str, typer.Argument(help="A space file, or the name of a packaged space.")],
    *,
    study: Annotated[str | None, typer.Option(help="Name of the study. Default: the space's.")] = None,
    overrides: OverrideOptions,
    storage: Storage = None,
    run: RunOptions,
    start: StartOptions,
) -> None:
    """Run a search. Launching a study again resumes it.

    Example: search launch quick/set_complement --set model.residual_dropout=0.1
    """
    from graft.launching.planning.estimate import estimate_study
    from graft.launching.planning.reading import begin_loading_steps
    from graft.launching.planning.review import review
    from graft.machine.devices import ESTIMATED

    if start.form != "table" and not start.dry_run:
        raise OptionError(f"--format {start.form} goes with --dry-run; of a launch `search status` has the numbers")
    estimated = run.device if start.dry_run and run.device in ESTIMATED else None
    placement = (replace(run, device="cpu") if estimated else run).resolve_placement()
    with overrides.load(space, start.plugins or ()) as loaded:
        if placement.executor not in ("ray", "surrogate") and not estimated:
            begin_loading_steps(loaded, str(placement.device))
        name = loaded.name if study is None else study
        if study is not None:  # the space's own name was checked when the space was read
            from storage import check_name

            check_name(study)
        url = storage_url(storage)
        notes = _note_claims(url, loaded, name)
        device = placement.device if placement.executor != "ray" else None
        notes += review(loaded, device, placement.width or 1)
        if start.dry_run:
            say_notes(notes)
            estimate, known = estimate_study(loaded), _note_task(url, loaded)
            if start.form == "json":
                print_estimate_json(name, estimate, placement, estimated, notes, known)
            else:
                print_estimate_table(name, estimate, placement, estimated, known)
            return
        from graft.launching.enrolling import enrol  # imports SQL, which an estimate does not need

        if start.warm_start is not None:
            from graft.launching.planning.warm_start import warm_start as start_from_earlier

            warm = start_from_earlier(url, name, loaded, start.warm_start)
            typer.echo(f"warm start: {warm.finding}", err=True)
            loaded = warm.space
        enrolment = enrol(url, name, loaded, replace=start.replace)
        if enrolment.kind != "unchanged":
            say_notes(notes)
        how_enrolled = str(enrolment)
    run_enrolled(url, name, placement, run, how_enrolled)


def _note_claims(url: str, space: Space, name: str) -> list[str]:
    """Return notes on a space's claims; scipy, which takes a while, is imported only for claims."""
    from spaces.experiment import ExperimentSpace

    if not isinstance(space, ExperimentSpace) or not space.claims:
        return []
    from graft.launching.planning.claims import note_claims

    return note_claims(url, space, name)


def _note_task(url: str, space: Space) -> list[str]:
    """Return up to three lines about a space's task; none of a transfer, or without trials of it."""
    from spaces.experiment import ExperimentSpace
    from spaces.transfer import TransferSpace
    from storage.peeking import may_know_task

    if isinstance(space, TransferSpace):  # it has many tasks
        return []
    part = space.arms[0].space if isinstance(space, ExperimentSpace) else space
    any_trial = part.sample(0, lambda _: 0.5)  # the name of the task is never drawn
    if not may_know_task(url, any_trial.config["task"]["name"]):
        return []
    from graft.launching.planning.task_advice import note_task

    return note_task(url, part)


@with_kill_watcher
def resume(
    study: Study,
    *,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Plan this many trials in all, of all arms and seeds, before it resumes."
        ),
    ] = None,
    storage: Storage = None,
    run: RunOptions,
) -> None:
    """Go on with a study from the database alone.

    Example: search resume quick-set-complement --trials 128
    """
    from graft.launching.enrolling import set_planned_trials

    placement = run.resolve_placement()
    url = current_url(storage)
    how_enrolled = "resumed" if trials is None else str(set_planned_trials(url, study, trials))
    run_enrolled(url, study, placement, run, how_enrolled)


def stop(study: Study, storage: Storage = None) -> None:
    """Have a running study stopped, with everything kept; `search resume` resumes it.

    Example: search stop quick-set-complement
    """
    from storage import open_reader, request_stop

    url = storage_url(storage)
    with open_reader(url) as reader:
        if not reader.study(study).holder():
            raise StudyError(f"study {study!r} is not being run; resume it with `search resume {study}`")
    request_stop(url, study)
    typer.echo(f"{study} is asked to stop; resume it with `search resume {study}`", err=True)


def retry(
    study: Study,
    trials: Annotated[list[int] | None, typer.Argument(metavar="[N]...", help="Which. Default: all that did.")] = None,
    *,
    storage: Storage = None,
) -> None:
    """Queue again the trials that failed or diverged, from step 0. Not while the study is being run.

    Trials from which a confirmed configuration or an architecture of stage two was chosen stay.

    Example: search retry quick-set-complement 3 17
    """
    from graft.launching.enrolling import find_study
    from storage import open_store

    url = current_url(storage)
    row = find_study(url, study)
    with open_store(url) as store:
        queued = store.retry(row["id"], trials or ())
    if not queued:
        typer.echo(f"{study}: no trial failed or diverged", err=True)
        return
    numbers = shorten(", ".join(map(str, queued)))
    typer.echo(f"{study}: queued again: {numbers}; resume it with `search resume {study}`", err=True)


def run_enrolled(url: str, name: str, placement: Placement, run: RunOptions, how_enrolled: str) -> None:
    """Run a study unless it is finished; report before how it was enrolled and after how it ended."""
    from cli.live import Live
    from graft.launching.changes import settle_changes
    from graft.launching.enrolling import find_study
    from graft.launching.process.interruption import Interruption
    from graft.launching.progress_text import closing_line
    from graft.launching.run import RunRequest, run_study
    from graft.plugins.stored import read_outside
    from storage import open_reader

    study = find_study(url, name)
    finished = study["state"] == "finished"
    if not finished:
        for line in settle_changes(url, name, placement, accept=run.accept_changes):
            typer.echo(f"note: {line}", err=True)
    trials = f"{study['trials']:,} trials"
    how = f"finished, all {trials} are done" if finished else f"{how_enrolled}, {trials}"
    typer.echo(f"study {name} in {database_name(url)}: {how}", err=True)
    if finished:
        with open_reader(url) as reader:
            say_changes(name, read_outside(reader, name))
        return
    if placement.surrogate is not None:
        typer.echo(f"trains nothing: a model of the table {placement.surrogate} answers", err=True)
    elif placement.executor != "ray":
        typer.echo(f"trains on {placement.describe()}", err=True)
    announce = functools.partial(say, "stopping: what is finished is kept (press Ctrl-C again to leave at once)")
    started = time.monotonic()
    with Interruption(announce, lambda: _leave(name)) as interruption, Live(name) as live:
        request = RunRequest(database=url, study=name, placement=placement, checkpoints=run.checkpointing())
        standing = run_study(request, live.show, lambda: interruption.requested)
    typer.echo(closing_line(name, standing, time.monotonic() - started), err=True)
    if standing.stopping:
        typer.echo(f"stopped with everything kept; resume it with `search resume {name}`", err=True)
        raise typer.Exit(INTERRUPTED if interruption.requested else 0)


def _leave(name: str) -> None:
    """End the process of a study now."""
    _watcher.close()
    shown = "\033[?25h" if sys.stderr.isatty() else ""  # shows the cursor again
    leave(f"{shown}left at once; what was recorded is kept; resume it with `search resume {name}`")
