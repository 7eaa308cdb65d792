"""The service and its queue: serve, submit, and the command group queue."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.log_lines import leave, say
from cli.option_groups import HttpOptions, OverrideOptions, ServiceOptions, with_groups
from cli.options import (
    INTERRUPTED,
    STORAGE_VARIABLE,
    Format,
    OptionError,
    Plugins,
    Storage,
    Study,
    current_url,
    database_name,
    open_db,
    say_notes,
    storage_url,
    user_name,
)
from cli.tables import show
from spaces.errors import StorageError

if TYPE_CHECKING:
    from graft.api.remote import RemoteDatabase
    from graft.serving.service import Service
    from storage import QueueEntry, Terms

PROCESSOR = 0.2
"""The default number of cores that answers over HTTP take in the long run while studies train."""
TOKEN_VARIABLE = "SEARCH_TOKEN"


def register(app: typer.Typer) -> None:
    """Add the commands `serve`, `submit` and `cancel` and the group `queue` to the program."""
    app.command()(with_groups(serve))
    app.command()(with_groups(submit))
    app.command()(cancel)
    group = typer.Typer(invoke_without_command=True)
    group.callback()(list_queue)
    for command in (pause, resume, cancel, reprioritise):
        group.command()(command)
    app.add_typer(group, name="queue")


def serve(
    *,
    studies: Annotated[int, typer.Option(min=1, help="Studies that are run at a time.")] = 8,
    owner_lanes: Annotated[
        int | None, typer.Option(min=1, help="Lanes that the studies of one owner have at most. Default: any number.")
    ] = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when nothing in the queue is left to run.")
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS:PORT", help="Show it over HTTP, too, as `search dashboard` does."),
    ] = None,
    clients: HttpOptions,
    storage: Storage = None,
    training: ServiceOptions,
) -> None:
    """Run the studies in a database's queue, several at a time; `search submit` adds to it.

    Example: search serve --until-empty
    """
    from graft.launching.process.interruption import Interruption
    from graft.serving.service import Limits, Service

    url = storage_url(storage)
    host, colon, port = (http or "").rpartition(":")
    if http and not (colon and port.isdecimal() and int(port) < 1 << 16):
        raise OptionError(f"--http {http}: write ADDRESS:PORT, such as 127.0.0.1:8765")
    placement = training.resolve_placement()
    service = Service(
        url,
        placement=placement,
        checkpoints=training.checkpointing(),
        limits=Limits(studies=studies, owner_lanes=owner_lanes),
        say=say,
    )
    interruption = Interruption(
        lambda: say("stopping: what is finished is kept"),
        lambda: leave("left at once; what was recorded is kept; `search serve` goes on"),
    )
    with service, interruption:
        say(f"serves {database_name(url)}, {service.lanes:,} lanes on {placement.describe()}")
        with _answering(host, int(port), clients, url, service) if http else contextlib.nullcontext():
            service.run(lambda: interruption.requested, until_empty=until_empty)
    if interruption.requested:
        say("stopped with everything kept; `search serve` goes on")
        raise typer.Exit(INTERRUPTED)


@contextlib.contextmanager
def _answering(host: str, port: int, clients: HttpOptions, url: str, service: Service) -> Generator[None]:
    """Answer requests over HTTP while the block runs the service."""
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # each thread of the server would take a core
    settings = clients.settings(url, host, PROCESSOR)
    from graft.web.server import serving

    with serving(settings, host, port, say, lambda: service.is_training) as address:
        say(f"shows it at {address}")
        yield


@dataclass(frozen=True, kw_only=True)
class TermsOptions:
    """The terms on which the service runs a study."""

    owner: Annotated[str | None, typer.Option(help="Whose study it is. Default: your user name.")] = None
    priority: Annotated[int, typer.Option(help="Class, -100 to 100; a higher one has lanes first.")] = 0
    weight: Annotated[float, typer.Option(help="Share among the studies of its class.")] = 1.0
    max_lanes: Annotated[int | None, typer.Option(help="Lanes that it has at most. Default: any number.")] = None

    def terms(self) -> Terms:
        """Return the terms, checked."""
        from storage import Terms

        owner = user_name() if self.owner is None else self.owner
        return Terms(owner=owner, priority=self.priority, weight=self.weight, max_lanes=self.max_lanes)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """A server that takes a submission over HTTP, in place of a database."""

    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A server to submit to, http://HOST:PORT, in place of --storage."),
    ] = None
    token: Annotated[
        str | None,
        typer.Option(envvar=TOKEN_VARIABLE, help="Its token, of the role submit. In the environment nobody reads it."),
    ] = None

    def connect(self, storage: str | None, plugins: Sequence[str] | None) -> RemoteDatabase | None:
        """Return the server that takes a space's text; None if no server is asked for.

        Raises OptionError for options that contradict it, ServerError if the server does not
        answer.
        """
        if self.url is None:
            if self.token is not None and self.token != os.environ.get(TOKEN_VARIABLE):
                raise OptionError("--token needs --url: a database asks for none")
            return None
        if storage is not None and storage != os.environ.get(STORAGE_VARIABLE):
            raise OptionError("--storage: leave it out with --url; the server has a database of its own")
        if plugins:
            raise OptionError(
                "--plugins: over HTTP a space names its plug-ins in its section `plugins:`, "
                "and the server is started with --allow-plugins"
            )
        from graft.api.remote import connect

        return connect(self.url, self.token)


def submit(
    space: Annotated[str, typer.Argument(help="A space file, or the name of a packaged space.")],
    *,
    name: Annotated[str | None, typer.Option(help="Name of the study. Default: the space's.")] = None,
    overrides: OverrideOptions,
    plugins: Plugins = None,
    terms: TermsOptions,
    storage: Storage = None,
    server: ServerOptions,
) -> None:
    """Check a search, as `search launch` does, and put it into the queue of `search serve`.

    A search that is in the queue already under this name stays there as it is.

    Example: search submit quick/set_complement --trials 16 --priority 1
    """
    from graft.launching.planning.review import review
    from graft.serving.submitting import submit as submit_study
    from storage import open_reader

    agreed = terms.terms()
    remote = server.connect(storage, plugins)
    with overrides.load(space, plugins or ()) as loaded:
        say_notes(review(loaded, None, 1))
        study = loaded.name if name is None else name
        before: list[QueueEntry] = []
        if remote is None:
            url = storage_url(storage)
            with contextlib.suppress(StorageError), open_reader(url) as reader:  # may be missing or older
                before = reader.queue()
            entry = submit_study(url, loaded, study=study, terms=agreed)
        else:
            before = remote.queue()
            entry = remote.submit(loaded.text, study=study, terms=agreed)
    _say_outcome(study, entry)
    if entry and (study, entry.submitted_at) in [(queued.study, queued.submitted_at) for queued in before]:
        say(f"{study} was in the queue already, since {entry.submitted_at:%Y-%m-%d %H:%M:%S} UTC; nothing has changed")


def list_queue(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Those, too, that are not run again.")] = False,
    storage: Storage = None,
    form: Format = "table",
) -> None:
    """Show the queue of the service: lanes and share of each study, and why it waits. Change it.

    Example: search queue --all
    """
    if context.invoked_subcommand:
        return
    from graft.serving.listing import read_queue

    with open_db(storage) as reader:
        frame = read_queue(reader, ended=every)
        service = reader.service()
        refused = reader.refused_requests()
    show(frame, form)
    for request in refused:
        say(f"a request was moved aside, as it cannot be done: {request.reason}")
    if form == "table":
        say(f"served by {service}" if service else "no service runs; start one with `search serve`")


def pause(study: Study, storage: Storage = None) -> None:
    """Have a study stopped, with everything kept, until it is resumed.

    Example: search queue pause quick-set-complement
    """
    _ask(storage, "pause", study)


def resume(study: Study, storage: Storage = None) -> None:
    """Have a study run again that was paused or cancelled, or failed.

    Example: search queue resume quick-set-complement
    """
    _ask(storage, "resume", study)


def cancel(study: Study, storage: Storage = None) -> None:
    """Have a study stopped, and take it out of the queue; what it has found stays.

    Example: search cancel quick-set-complement
    """
    _ask(storage, "cancel", study)


def reprioritise(
    study: Study,
    priority: Annotated[int, typer.Option(help="Class, -100 to 100; a higher one has lanes first.")],
    storage: Storage = None,
) -> None:
    """Give a study another priority class.

    Example: search queue reprioritise quick-set-complement --priority 5
    """
    _ask(storage, "reprioritise", study, priority)


def _ask(
    storage: str | None,
    action: Literal["pause", "resume", "cancel", "reprioritise"],
    study: str,
    priority: int = 0,
) -> None:
    from storage import StoreRequest, Terms, request_queue

    request = StoreRequest(action=action, study=study, terms=Terms(priority=priority))
    _say_outcome(study, request_queue(current_url(storage), request))


def _say_outcome(study: str, entry: QueueEntry | None) -> None:
    if entry is None:
        say(f"{study}: asked; the database is being written by no service, and the next `search serve` does it")
    else:
        say(f"{study}: {entry.state}, priority {entry.priority}, {entry.trials:,} trials")
