"""Commands that run a study: launch, resume, stop."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from cli.live import Live, closing_line
from cli.options import Storage, shown, storage_url
from cli.saving import SECONDS, CheckpointEvery, Checkpoints, placed, saving_of
from graft.families import families
from graft.placement import Placement
from graft.running import enrol, find_study, open_controller
from spaces.errors import SpaceError, StudyError
from spaces.records import Progress
from storage import bring_up, open_reader, request_stop

if TYPE_CHECKING:
    from search.steering.controller import Controller
    from spaces.space import Space
    from workers.pool import Saving

Make = Callable[[], "Controller"]
"""Opens the study, in whichever process steers it."""
CHECKED_DRAWS = 4000
"""Trials drawn before a launch, so that a rule that only few draws break is told then; a fifth of a second."""
INTERRUPTED = 130
"""Exit status after Ctrl-C or SIGTERM."""

Executor = Annotated[str, typer.Option(help="auto, inline (this process, one device) or ray.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Pack workers. Default: one per GPU, or per core without one.")
]
RayAddress = Annotated[str | None, typer.Option(help="Attach to this Ray cluster (host:port, or auto).")]
RayEnv = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="YAML or JSON: pip, uv, conda, env_vars for the nodes of --ray-address."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N; inline only. Default: a GPU if there is one.")]
Width = Annotated[
    int | None, typer.Option("--pack", min=1, help="Most lanes of a pack. Default: found while it trains.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the program."""
    for command in (launch, resume, stop):
        app.command()(command)


def launch(
    space: Annotated[str, typer.Argument(help="A space file, or the name of a packaged space.")],
    study: Annotated[str | None, typer.Option(help="Name of the study. Default: the space's.")] = None,
    trials: Annotated[int | None, typer.Option(help="Number of trials, in place of the space's.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of each trial, in place of the space's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the search, in place of the space's.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="path=value, in place of the space's.")] = None,
    storage: Storage = None,
    executor: Executor = "auto",
    workers: Workers = None,
    ray_address: RayAddress = None,
    ray_env: RayEnv = None,
    device: Device = None,
    pack: Width = None,
    checkpoints: Checkpoints = None,
    checkpoint_every: CheckpointEvery = SECONDS,
    warm_start: Annotated[
        str | None,
        typer.Option(metavar="auto|STUDY,...", help="Start from what all earlier studies found, or these."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, how long and how large.")] = False,
) -> None:
    """Run a search. Launching a study again goes on where it was.

    Example: search launch quick/set_complement --set model.residual_dropout=0.1
    """
    placement = Placement(
        executor=executor, workers=workers, ray_address=ray_address, ray_env=ray_env, device=device, width=pack
    ).resolved()
    loaded = load_space(
        space, _overrides(set_ or [], {"search.trials": trials, "training.steps": steps, "search.seed": seed})
    )
    name = study or loaded.name
    if dry_run:
        from cli.estimate import show_estimate

        show_estimate(loaded, placement)
        return
    url = storage_url(storage)
    if warm_start is not None:
        from cli.warm_start import warmed

        loaded = warmed(url, name, loaded, warm_start)
    word = "new" if enrol(url, name, loaded) else "goes on"
    run(url, name, placement, word, placed(checkpoints), checkpoint_every)


def resume(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    storage: Storage = None,
    executor: Executor = "auto",
    workers: Workers = None,
    ray_address: RayAddress = None,
    ray_env: RayEnv = None,
    device: Device = None,
    pack: Width = None,
    checkpoints: Checkpoints = None,
    checkpoint_every: CheckpointEvery = SECONDS,
) -> None:
    """Go on with a study from the database alone.

    Example: search resume set-complement
    """
    placement = Placement(
        executor=executor, workers=workers, ray_address=ray_address, ray_env=ray_env, device=device, width=pack
    ).resolved()
    url = storage_url(storage)
    bring_up(url)
    run(url, study, placement, "goes on", placed(checkpoints), checkpoint_every)


def stop(study: Annotated[str, typer.Argument(help="Name of the study.")], storage: Storage = None) -> None:
    """Ask a running study to stop, wherever it runs. What is finished stays; `search resume` goes on.

    Example: search stop set-complement
    """
    url = storage_url(storage)
    with open_reader(url) as reader:
        if not reader.holder(study):
            raise StudyError(f"study {study!r} is not being run; `search resume {study}` goes on with it")
    request_stop(url, study)
    typer.echo(f"{study} is asked to stop; go on with `search resume {study}`", err=True)


def load_space(origin: str, overrides: Mapping[str, str]) -> Space:
    """Read a space and try draws of it."""
    from spaces import load

    space = load(origin, families(), overrides)
    space.check(CHECKED_DRAWS)
    return space


def _overrides(assignments: Sequence[str], options: Mapping[str, int | None]) -> dict[str, str]:
    """`--set path=value` and the options that stand for one; an option named as such wins."""
    overrides: dict[str, str] = {}
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        if not equals or not path.strip():
            raise SpaceError(f"--set {assignment}: write path=value, for example --set training.batch=64")
        overrides[path.strip()] = value
    return overrides | {path: str(value) for path, value in options.items() if value is not None}


def run(url: str, name: str, placement: Placement, word: str, place: str | None, seconds: float) -> None:
    """Run a study that is in the database until it is done or stopped; prints `word` on it, and how it ended.

    `place`: where its checkpoints go from now on, each pack's after so many seconds; None: where they went before.
    """
    study = find_study(url, name)
    done = study["state"] == "finished"
    word = "finished, nothing is left of its" if done else f"{word},"
    typer.echo(f"study {name} in {shown(url)}: {word} {study['trials']:,} trials", err=True)
    if done:
        return
    started, saving = time.monotonic(), saving_of(url, study, place, seconds)
    make = functools.partial(open_controller, url, name, saving, place)
    try:
        with Interruption() as interruption, Live(name) as live:
            go = _run_inline if placement.executor == "inline" else _run_ray
            progress = go(make, placement, saving, live, interruption)
    except KeyboardInterrupt:
        # Not sys.exit: worker threads are inside torch, which aborts when the interpreter is taken down around it.
        sys.stderr.flush()
        os._exit(INTERRUPTED)
    typer.echo(closing_line(name, progress, time.monotonic() - started), err=True)
    if progress.stopping:
        typer.echo(f"stopped with everything kept; go on with `search resume {name}`", err=True)
        raise typer.Exit(INTERRUPTED if interruption.asked else 0)


def _run_inline(
    make: Make, placement: Placement, saving: Saving | None, live: Live, interruption: Interruption
) -> Progress:
    from workers.pool import inline

    def watch(progress: Progress) -> bool:
        live.show(progress)
        return interruption.asked

    controller = make()
    try:
        inline.run(
            controller,
            device=str(placement.device),
            width=placement.width,
            workers=placement.workers,
            saving=saving,
            watch=watch,
        )
        return controller.progress()
    finally:
        controller.close()


def _run_ray(
    make: Make, placement: Placement, saving: Saving | None, live: Live, interruption: Interruption
) -> Progress:
    try:
        from workers.pool import ray_tune
    except ModuleNotFoundError:
        raise StudyError("the ray executor needs Ray: pip install 'graft-search[ray]'") from None
    seen: list[Progress] = []

    def watch(progress: Progress) -> bool:
        seen[:] = [progress]
        live.show(progress)
        return interruption.asked or progress.stopping

    cluster = ray_tune.Cluster(
        address=placement.ray_address, workers=placement.workers, environment=placement.environment()
    )
    ray_tune.run(make, cluster=cluster, width=placement.width, saving=saving, watch=watch)
    return seen[0]


class Interruption:
    """Turns the first Ctrl-C (or SIGTERM) into a wish to stop, and the second into an end at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        typer.echo("stopping: what is finished is kept (once more to leave at once)", err=True)
