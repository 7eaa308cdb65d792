"""Groups of options that several commands take, each a dataclass that is the value of its options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from spaces.errors import SpaceError

if TYPE_CHECKING:
    from graft.launching.checkpoints import Checkpoints
    from graft.launching.placement import Placement

Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True, kw_only=True)
class OverrideOptions:
    """Values that stand in place of a space's own."""

    trials: Annotated[int | None, typer.Option(help="Number of trials, in place of the space's.")] = None
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each trial, in place of the space's.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the search, in place of the space's.")] = None
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="In place of the space's value; repeatable.")
    ] = None

    def by_path(self) -> Mapping[str, str]:
        """Dotted path -> YAML value; an option with a name of its own wins over --set."""
        overrides: dict[str, str] = {}
        for assignment in self.set_ or []:
            path, equals, value = assignment.partition("=")
            if not equals or not path.strip():
                raise SpaceError(f"--set {assignment}: write path=value, for example --set training.batch=64")
            overrides[path.strip()] = value
        named = {"search.trials": self.trials, "search.seed": self.seed}
        return overrides | {path: str(value) for path, value in named.items() if value is not None}

    def for_space(self, space: str) -> Mapping[str, str]:
        """`by_path`, with what --steps means for this space."""
        overrides = self.by_path()
        if self.steps is None:
            return overrides
        from graft.launching.cutting import cut_steps

        # What is set by its own path wins, as where a validation is to come at another step.
        cut = cut_steps(space, self.steps, overrides)
        return {path: value for path, value in overrides.items() if path != "training.steps"} | {
            path: value for path, value in cut.items() if path == "training.steps" or path not in overrides
        }


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a study runs, and where its checkpoints go."""

    executor: Annotated[str, typer.Option(metavar="auto|inline|ray", help="inline: this process, one device.")] = "auto"
    workers: Annotated[
        int | None, typer.Option(min=1, help="Pack workers. Default: one per GPU, or per core without one.")
    ] = None
    ray_address: Annotated[str | None, typer.Option(help="Attach to this Ray cluster (host:port, or auto).")] = None
    ray_env: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="YAML or JSON: pip, uv, conda, env_vars for the nodes of --ray-address."),
    ] = None
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N; inline only. Default: a GPU if there is one.")
    ] = None
    pack: Annotated[
        int | None, typer.Option("--pack", min=1, help="Most lanes of a pack. Default: found while it trains.")
    ] = None
    checkpoints: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|URL|none",
            help="Where checkpoints go; all workers must reach it. Default: beside a SQLite file, else none.",
        ),
    ] = None
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Resume under another code, torch or kind of step, and with changed plug-in files as they are now.",
        ),
    ] = False
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Most seconds between checkpoints of a pack.")
    ] = 600.0

    def resolve_placement(self) -> Placement:
        """Where the study runs, decided and checked; raises StudyError as `Placement.resolve` does."""
        from graft.launching.memory_limits import check_address_space
        from graft.launching.placement import Placement

        check_address_space(self.workers)  # before torch is imported, which may not even fit

        return Placement(
            executor=self.executor,
            workers=self.workers,
            ray_address=self.ray_address,
            ray_env=self.ray_env,
            device=self.device,
            width=self.pack,
        ).resolve()

    def checkpointing(self) -> Checkpoints:
        """What is asked about checkpoints."""
        from graft.launching.checkpoints import Checkpoints

        return Checkpoints(url=self.checkpoints, seconds=self.checkpoint_every)


def with_groups(command: Command) -> Command:
    """The command for typer: where a parameter's type is a group, the group's options stand in its place.

    typer reads options from a function's signature, so the signature is written out and the groups are put together
    again when the command is called.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        kind = hints[parameter.name]
        if not dataclasses.is_dataclass(kind):
            parameters.append(_keyword(parameter.name, kind, parameter.default))
            continue
        groups[parameter.name] = kind  # pyright: ignore[reportArgumentType] - a class, as it annotates a parameter
        options = get_type_hints(kind, include_extras=True)
        parameters += [_keyword(field.name, options[field.name], field.default) for field in dataclasses.fields(kind)]

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue] - as inspect documents
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call  # pyright: ignore[reportReturnType] - the command itself, called by typer alone


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
