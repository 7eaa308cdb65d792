"""Commands that run a study: launch, resume, stop, retry."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.log_lines import leave, say
from cli.option_groups import OverrideOptions, RunOptions, with_groups
from cli.options import (
    INTERRUPTED,
    OptionError,
    Plugins,
    Storage,
    check_format,
    current_url,
    database_name,
    say_changes,
    say_notes,
    storage_url,
)
from cli.tables import show_json
from graft.launching.process.watcher import Watcher
from spaces.errors import StudyError
from spaces.messages import describe_bytes, shorten

if TYPE_CHECKING:
    from graft.launching.placement import Placement
    from graft.launching.planning.estimate import Estimate
    from graft.launching.run import RunRequest
    from spaces.space import Space

_watcher = Watcher()


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the program."""
    for command in (launch, resume):
        app.command()(with_groups(watch(command)))
    for command in (stop, retry):
        app.command()(with_groups(command))


def watch(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command, with a process beside it that says if it is killed."""

    @functools.wraps(command)
    def watched(*arguments: Any, **options: Any) -> None:
        with _watcher:
            command(*arguments, **options)

    return watched


@dataclass(frozen=True, kw_only=True)
class StartOptions:
    """What is done before a study is started."""

    plugins: Plugins = None
    warm_start: Annotated[
        str | None,
        typer.Option(metavar="auto|STUDY,...", help="Start from what all earlier studies found, or these."),
    ] = None
    replace: Annotated[
        bool, typer.Option("--replace", help="Begin again a study of this name that has no result yet.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, how long and how large.")] = False
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="table|json", callback=check_format(("table", "json")), help="Of what --dry-run says."
        ),
    ] = "table"


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
        if study is not None:  # the space's own was checked when it was read
            from storage import check_name

            check_name(study)
        url = storage_url(storage)
        notes = _note_claims(url, loaded, name)
        notes += review(loaded, placement.device if placement.executor != "ray" else None, placement.width or 1)
        if start.dry_run:
            say_notes(notes)
            estimate, known = estimate_study(loaded), _note_task(url, loaded)
            if start.form == "json":
                print_estimate(name, estimate, placement, estimated, notes, known)
            else:
                show_estimate(name, estimate, placement, estimated, known)
            return
        from graft.launching.claiming import enrol  # with the database's libraries, which an estimate does without

        if start.warm_start is not None:
            from graft.launching.planning.warm_start import warm_start as start_from_earlier

            warm = start_from_earlier(url, name, loaded, start.warm_start)
            typer.echo(f"warm start: {warm.finding}", err=True)
            loaded = warm.space
        found = enrol(url, name, loaded, replace=start.replace)
        if found.kind != "unchanged":
            say_notes(notes)
        word = str(found)
    _run(_request(url, name, placement, run), word)


def _note_claims(url: str, space: Space, name: str) -> list[str]:
    """Return what is to be known of a space's claims; scipy, which takes a while, is imported for claims alone."""
    from spaces.experiment import ExperimentSpace

    if not isinstance(space, ExperimentSpace) or not space.claims:
        return []
    from graft.launching.planning.claims import note_claims

    return note_claims(url, space, name)


def _note_task(url: str, space: Space) -> list[str]:
    """Return what the database knows of a space's task, in two or three lines; none where it knows nothing."""
    from spaces.experiment import ExperimentSpace
    from spaces.transfer import TransferSpace
    from storage.peeking import may_know_task

    if isinstance(space, TransferSpace):  # it has many tasks
        return []
    part = space.arms[0].space if isinstance(space, ExperimentSpace) else space
    if not may_know_task(url, part.sample(0, lambda _: 0.5).config["task"]["name"]):
        return []
    from graft.launching.planning.task_advice import note_task

    return note_task(url, part)


def resume(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    *,
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Plan this many trials in all, before it resumes.")
    ] = None,
    storage: Storage = None,
    run: RunOptions,
) -> None:
    """Go on with a study from the database alone.

    Example: search resume set-complement --trials 128
    """
    from graft.launching.claiming import extend

    placement = run.resolve_placement()
    url = current_url(storage)
    word = "resumed" if trials is None else str(extend(url, study, trials))
    _run(_request(url, study, placement, run), word)


def stop(study: Annotated[str, typer.Argument(help="Name of the study.")], storage: Storage = None) -> None:
    """Ask a running study to stop, wherever it runs. What is finished stays; `search resume` resumes it.

    Example: search stop set-complement
    """
    from storage import open_reader, request_stop

    url = storage_url(storage)
    with open_reader(url) as reader:
        if not reader.study(study).holder():
            raise StudyError(f"study {study!r} is not being run; resume it with `search resume {study}`")
    request_stop(url, study)
    typer.echo(f"{study} is asked to stop; resume it with `search resume {study}`", err=True)


def retry(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    trials: Annotated[list[int] | None, typer.Argument(metavar="[N]...", help="Their numbers. Default: all.")] = None,
    *,
    storage: Storage = None,
) -> None:
    """Queue trials that failed or diverged again, from step 0. Not while the study is being run.

    Example: search retry set-complement 3 17
    """
    from graft.launching.claiming import find_study
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


def _request(url: str, study: str, placement: Placement, run: RunOptions) -> RunRequest:
    from graft.launching.run import RunRequest

    return RunRequest(
        database=url,
        study=study,
        placement=placement,
        checkpoints=run.checkpointing(),
        accept_changes=run.accept_changes,
    )


def run_enrolled(url: str, study: str, run: RunOptions, word: str) -> None:
    """Run a study that is in the database, on a terminal; says `word` of it first."""
    _run(_request(url, study, run.resolve_placement(), run), word)


def _run(request: RunRequest, word: str) -> None:
    """Run a study on a terminal; says `word` on it first, and how it ended."""
    from cli.live import Live
    from graft.launching.changes import settle_changes
    from graft.launching.claiming import find_study
    from graft.launching.process.interruption import Interruption
    from graft.launching.progress_text import closing_line
    from graft.launching.run import run_study
    from graft.plugins.stored import read_outside
    from storage import open_reader

    name = request.study
    study = find_study(request.database, name)
    finished = study["state"] == "finished"
    if not finished:
        changes = settle_changes(request.database, name, request.placement, accept=request.accept_changes)
        for line in changes:
            typer.echo(f"note: {line}", err=True)
    word = "finished, nothing is left of its" if finished else f"{word},"
    typer.echo(f"study {name} in {database_name(request.database)}: {word} {study['trials']:,} trials", err=True)
    if finished:
        with open_reader(request.database) as reader:
            say_changes(name, read_outside(reader, name))
        return
    if request.placement.surrogate is not None:
        typer.echo(f"trains nothing: a model of the table {request.placement.surrogate} answers", err=True)
    elif request.placement.executor != "ray":
        typer.echo(f"trains on {request.placement.describe()}", err=True)
    announce = functools.partial(say, "stopping: what is finished is kept (once more to leave at once)")
    started = time.monotonic()
    with Interruption(announce, lambda: _leave(name)) as interruption, Live(name) as live:
        standing = run_study(request, live.show, lambda: interruption.requested)
    typer.echo(closing_line(name, standing, time.monotonic() - started), err=True)
    if standing.stopping:
        typer.echo(f"stopped with everything kept; resume it with `search resume {name}`", err=True)
        raise typer.Exit(INTERRUPTED if interruption.requested else 0)


def _leave(name: str) -> None:
    """End the process of a study now."""
    _watcher.close()
    shown = "\033[?25h" if sys.stderr.isatty() else ""  # the cursor, which the display hides
    leave(f"{shown}left at once; what was recorded is kept; resume it with `search resume {name}`")


def show_estimate(
    name: str, estimate: Estimate, placement: Placement, gpu: str | None = None, known: Sequence[str] = ()
) -> None:
    """Print what a launch would be, for people; the lines that need no training come first, the others take a while.

    `gpu`: one that is not here, whose rate is estimated; nothing is trained then. `known`: what the database knows.
    """
    from cli.progress import waiting
    from graft.launching.planning.estimate import plan_packs
    from graft.launching.progress_text import duration

    space, search = estimate.space, estimate.space.search
    structures = _range(estimate.structures) + (" structures" if max(estimate.structures) > 1 else " structure")
    lines = {
        "study": f"{name}, objective {search.objective.direction} {search.objectives_text}",
        "trials": space.describe_size(),
        "packs": f"{structures} a group; device {gpu or placement.device}",
        "steps": f"{_range(estimate.steps)} a trial, validated every {estimate.validate_every:,}; "
        f"{estimate.model_steps:,.0f} model-steps in all",
        "database": f"{estimate.rows:,} metric rows a trial ({search.history}), "
        f"{describe_bytes(estimate.database_bytes)} in all",
    }
    for label, text in (*lines.items(), *(("known", text) for text in known)):
        typer.echo(f"{label:<11} {text}")
    if gpu:
        from graft.launching.planning.gpu_estimate import describe_gpu_estimate, estimate_gpu

        with waiting("counting kernels") as say:
            found = estimate_gpu(space, gpu, say)
        for label, text in describe_gpu_estimate(found):
            typer.echo(f"{label:<11} {text}")
        return
    with waiting("timing packs") as say:
        plans = plan_packs(estimate, placement, say)
    for reason in dict.fromkeys(plan.reason for plan in plans):
        typer.echo(f"width       {reason}")
    for step in dict.fromkeys(plan.step for plan in plans):
        typer.echo(f"step        {step}")
    for evaluation in dict.fromkeys(plan.evaluation for plan in plans):
        typer.echo(f"evaluation  {evaluation}")
    rates = [plan.rate for plan in plans]
    slow, fast = min(rates), max(rates)
    typer.echo(
        f"rate        {slow:,.0f} to {fast:,.0f} model-steps/s on one device, measured on {len(rates)} sampled packs"
    )
    steps = estimate.model_steps
    typer.echo(f"time        {duration(steps / fast)} to {duration(steps / slow)} on one device like this one")


def print_estimate(
    name: str,
    estimate: Estimate,
    placement: Placement,
    gpu: str | None,
    notes: Sequence[str],
    known: Sequence[str],
) -> None:
    """Print what a launch would be, for programs: one JSON object of the shape of docs/schemas/dry-run.json."""
    from graft.launching.planning.estimate import plan_packs
    from graft.launching.planning.gpu_estimate import describe_structure, estimate_gpu

    plans = [] if gpu else plan_packs(estimate, placement)
    found = estimate_gpu(estimate.space, gpu) if gpu else None
    rates = [plan.rate for plan in plans]
    short, long = found.seconds if found else (estimate.model_steps / max(rates), estimate.model_steps / min(rates))
    search = estimate.space.search
    show_json(
        {
            "format": 1,
            "study": name,
            "objective": search.objectives_text,
            "direction": search.objective.direction,
            "device": gpu or placement.device,
            "trials": search.trials,
            "structures_per_group": _limits(estimate.structures),
            "steps_per_trial": _limits(estimate.steps),
            "validate_every": estimate.validate_every,
            "model_steps": estimate.model_steps,
            "metric_rows_per_trial": estimate.rows,
            "database_bytes": estimate.database_bytes,
            "is_measured": not gpu,
            "seconds": {"least": short, "most": long},
            "packs": [
                {
                    "lanes": plan.width,
                    "reason": plan.reason,
                    "step": plan.step,
                    "evaluation": plan.evaluation,
                    "model_steps_per_second": plan.rate,
                }
                for plan in plans
            ],
            "structures": [describe_structure(one) for one in found.counted] if found else [],
            "notes": notes,
            "known": known,
        }
    )


def _limits(values: Sequence[int]) -> dict[str, int]:
    return {"least": min(values), "most": max(values)}


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
