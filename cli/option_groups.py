"""Groups of options that several commands take, each a dataclass of the options' values."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from cli.log_lines import FORMATS, VARIABLE, choose_format
from cli.options import AllowedPlugins, OptionError, split_assignment

if TYPE_CHECKING:
    from graft.launching.checkpoints import Checkpoints
    from graft.launching.placement import Placement
    from graft.web.settings import Settings
    from spaces.space import Space

Command = TypeVar("Command", bound=Callable[..., None])
RayEnvironment = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="YAML or JSON: pip, uv, conda, env_vars for the nodes of --ray-address."),
]


@dataclass(frozen=True, kw_only=True)
class OverrideOptions:
    """Values that replace those of a space."""

    trials: Annotated[int | None, typer.Option(help="Number of trials, in place of the space's.")] = None
    steps: Annotated[int | None, typer.Option(help="Optimizer steps of each trial, in place of the space's.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the search, in place of the space's.")] = None
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="In place of the space's value; repeatable.")
    ] = None

    def by_path(self) -> Mapping[str, str]:
        """Return dotted path -> YAML value; an option with a name of its own wins over --set."""
        overrides: dict[str, str] = {}
        for assignment in self.set_ or []:
            path, value = split_assignment(assignment, "training.batch=64")
            overrides[path] = value
        named = {"search.trials": self.trials, "search.seed": self.seed}
        return overrides | {path: str(value) for path, value in named.items() if value is not None}

    @contextmanager
    def load(self, space: str, plugins: Sequence[str]) -> Generator[Space]:
        """Yield the checked space with these values, with its plug-ins and `plugins` in use."""
        from graft.launching.planning.reading import read_space
        from graft.plugins.collecting import plugins_of_space
        from spaces.plugins.active import using

        overrides = self.by_path()
        with using(plugins_of_space(space, plugins, overrides)):
            if self.steps is not None:
                from graft.launching.planning.cutting import cut_steps
                from graft.plugins.families import families
                from spaces import load

                rest = {path: value for path, value in overrides.items() if path != "training.steps"}
                cut = cut_steps(load(space, families(), rest), self.steps)
                for kept in (path for path in cut.kept if path not in overrides):
                    note = "stands in an option, an arm or a section that --steps does not reach, and stays as it is"
                    typer.echo(f"--steps: {kept} {note}", err=True)
                # A path that the user sets, or one below it, wins over the cut.
                overrides = rest | {
                    path: value
                    for path, value in cut.overrides.items()
                    if not any(f"{set_}.".startswith(f"{path}.") for set_ in rest)
                }
            yield read_space(space, overrides)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The device and the checkpoints of training in this process."""

    workers: Annotated[
        int | None, typer.Option(min=1, help="Pack workers. Default: 1 per core; 4 on a GPU, or 1 per GPU of several.")
    ] = None
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: a GPU, if any.")] = None
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
    checkpoint_every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Most seconds between checkpoints of a pack.")
    ] = 600.0
    log_format: Annotated[
        str,
        typer.Option(
            metavar="|".join(FORMATS),
            envvar=VARIABLE,
            callback=choose_format,
            is_eager=True,
            help="What is said on stderr: lines, or a JSON object a line.",
        ),
    ] = "text"

    def placement(self) -> Placement:
        """Return the placement by the options, unchecked."""
        from graft.launching.placement import Placement

        return Placement(executor="inline", workers=self.workers, device=self.device, width=self.pack)

    def resolve_placement(self) -> Placement:
        """Return the checked placement; raises StudyError as `Placement.resolve` does."""
        from graft.launching.process.memory_limits import check_address_space
        from graft.machine.devices import describe_unused_gpu

        check_address_space(self.workers)  # before torch is imported, which may not even fit

        asked = self.placement()
        placement = asked.resolve()
        is_named = self.device or asked.devices or placement.executor == "ray"
        if not is_named and (unused := describe_unused_gpu()):
            typer.echo(f"warning: {unused}", err=True)
        return placement

    def checkpointing(self) -> Checkpoints:
        """Return the folder and the interval of checkpoints by the options."""
        from graft.launching.checkpoints import Checkpoints

        return Checkpoints(url=self.checkpoints, seconds=self.checkpoint_every)


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(TrainingOptions):
    """The devices and the checkpoints of a service."""

    devices: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="A worker process on each, such as cuda:0,cuda:1, or cuda for all GPUs. Default: this process alone.",
        ),
    ] = None
    ray_address: Annotated[
        str | None, typer.Option(help="Train on the nodes of this Ray cluster (host:port, or auto).")
    ] = None
    ray_env: RayEnvironment = None

    def placement(self) -> Placement:
        given = [f"--{name}" for name in ("ray_address", "devices", "device") if getattr(self, name) is not None]
        if len(given) > 1:
            given = [name.replace("_", "-") for name in given]
            raise OptionError(f"{given[0]}: leave out {' and '.join(given[1:])}; one option says where trials train")
        asked = replace(super().placement(), ray_env=self.ray_env)
        if self.devices is not None:
            return replace(asked, executor="processes", devices=tuple(self.devices.split(",")))
        if self.ray_address is not None:
            return replace(asked, executor="ray", ray_address=self.ray_address)
        return asked


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrainingOptions):
    """The placement of a study, in this process or on a cluster, and its checkpoints."""

    executor: Annotated[
        str,
        typer.Option(
            metavar="auto|inline|processes|ray",
            help="inline: this process, one device. processes: one for each GPU of this machine.",
        ),
    ] = "auto"
    ray_address: Annotated[str | None, typer.Option(help="Attach to this Ray cluster (host:port, or auto).")] = None
    ray_env: RayEnvironment = None
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda or cuda:N; not with ray. With --dry-run also a100, h100, h200, 4090. Default: a GPU if any."
        ),
    ] = None
    surrogate: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Train nothing: a model of this table of trials answers at once."),
    ] = None
    accept_changes: Annotated[
        bool,
        typer.Option(
            "--accept-changes",
            help="Resume under another code, torch or kind of step, with changed plug-ins and data as they are now.",
        ),
    ] = False

    def placement(self) -> Placement:
        from graft.launching.placement import Placement

        return Placement(
            executor=self.executor,
            workers=self.workers,
            ray_address=self.ray_address,
            ray_env=self.ray_env,
            device=self.device,
            width=self.pack,
            surrogate=self.surrogate,
        )


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """The access to a server over HTTP, and the limits of its clients."""

    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which browsers may call the server; repeatable."),
    ] = None
    tokens: Annotated[bool, typer.Option("--tokens", help="Ask for a token on loopback, too.")] = False
    allow_plugins: AllowedPlugins = None
    allow_resource: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="A field of a submitted space that may name a file, data set or code, as task.corpus.dataset; "
            "repeatable.",
        ),
    ] = None
    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="What a person of the role submit may ask for: trials of a study (10000), steps (1e6) and parameters "
            "(2e7) of a trial, lanes (1000), studies in the queue (20), priority (0), weight (1), bytes of disk "
            "(2e10); repeatable.",
        ),
    ] = None
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="A proxy whose X-Forwarded-For and X-Forwarded-Proto are believed; repeatable. The cookie is Secure "
            "behind one that speaks TLS.",
        ),
    ] = None
    rate: Annotated[float, typer.Option(min=0.1, help="Requests per second of one client in the long run.")] = 50.0

    processor: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="CORES",
            help="Cores that answers may take in the long run beside training. Default: 0.2 in a service, else all.",
        ),
    ] = None

    def settings(self, url: str, host: str, processor: float | None = None) -> Settings:
        """Return the settings of a server of the database `url` that listens on `host`.

        `processor` is the default for the option. Raises AddressError as `plan_settings`.
        """
        try:
            from graft.web.server import plan_settings
            from graft.web.settings import Quotas, Settings
        except ModuleNotFoundError as error:
            raise OptionError(f"{error.name} is not installed; pip install 'graft-search[serve]'") from None
        asked = Settings(
            database=url,
            hosts=frozenset(self.allow_host or ()),
            needs_token=self.tokens,
            plugins=frozenset(self.allow_plugins or ()),
            resources=frozenset(self.allow_resource or ()),
            quotas=Quotas.parse(self.quota or ()),
            proxies=tuple(self.behind_proxy or ()),
            rate=self.rate,
            processor=processor if self.processor is None else self.processor,
        )
        return plan_settings(asked, host)


def with_groups(command: Command) -> Command:
    """Return the command for typer, with each parameter that is a group replaced by its options.

    typer reads options from a signature. A call makes the groups from the options again.
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
        for field in dataclasses.fields(kind):
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            parameters.append(_keyword(field.name, options[field.name], default))

    @functools.wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        command(**values)

    call.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call  # pyright: ignore[reportReturnType] - the command itself, called by typer alone


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
