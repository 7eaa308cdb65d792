"""The studies of a server (`search dashboard`), read over HTTP as those of a local database.

A study's status, trials, metrics, fronts, learned non-linearities and figures can be read, and a
space can be submitted to the queue. To train, to write, or to compute over a whole study, open the
database itself with `graft.open`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from typing import Any, NoReturn, final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

import polars as pl
from polars.exceptions import PolarsError

from graft.api.base import ReadableStudies, ReadableStudy
from graft.api.display import Figures, frame_table
from graft.api.trials import TrialRecord
from graft.report.rendering.document import Picture
from graft.stored.status import Status
from graft.stored.trials import StudyTable
from spaces.errors import GraftError, StudyError
from storage import QueueEntry, Terms
from storage.frames.columns import POINTS

_SECONDS = 120.0
"""Seconds that an answer may take."""
_TRIES = 5
"""Times that a request is sent if the server answers that there are too many."""
_HERE = "trials, metrics, front, architectures, show, best, status, figure"


class ServerError(GraftError):
    """A server does not answer, or refuses; the text is the server's line."""


def connect(url: str, token: str | None = None) -> RemoteDatabase:
    """Return the studies of a server: `graft.connect("http://127.0.0.1:8765")`.

    `token` is the text that `search token make` prints, if the server needs one. Raises ServerError
    if no server of Graft's answers.
    """
    # Neither urllib nor the line of an error is to have a token that no header can have.
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ServerError("the token must be printable ASCII on one line, as `search token make` prints it")
    connection = Connection(check_address(url), token)
    database = RemoteDatabase(connection)
    try:
        len(database)
    except (KeyError, TypeError):
        raise connection.stranger() from None
    return database


def check_address(url: str) -> str:
    """Return a server's address without a slash at its end; raises ServerError if it is invalid."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an address or a port that is none
        is_address = False
    if not is_address:
        raise ServerError(f"{url}: must be an address such as http://127.0.0.1:8765")
    return url.rstrip("/")


@final
@dataclass(frozen=True)
class Connection:
    """The address of a server and the token of its requests."""

    url: str
    token: str | None = field(repr=False)

    def json(self, *path: str, **query: Any) -> Any:
        """Return the answer at an address below /api, from JSON."""
        return self._decode(json.loads, self._ask(path, query))

    def frame(self, *path: str, **query: Any) -> pl.DataFrame:
        """Return the answer at an address below /api, from parquet."""
        return self._decode(pl.read_parquet, self._ask(path, query))

    def post(self, *path: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON body to an address below /api; returns the answer, read from JSON."""
        return self._decode(json.loads, self._ask(path, {}, json.dumps(body).encode()))

    def stranger(self) -> ServerError:
        """Return the error for a server that answers otherwise than Graft's."""
        return ServerError(f"{self.url} is no server of Graft's: start one with `search dashboard`")

    def _decode(self, read: Callable[[bytes], Any], answer: bytes) -> Any:
        try:
            return read(answer)
        except (ValueError, PolarsError):
            raise self.stranger() from None

    def _ask(self, path: Sequence[str], query: Mapping[str, Any], body: bytes | None = None) -> bytes:
        """Return the answer's body; wait and ask again if there were too many requests."""
        address = "/".join([self.url, "api", *(quote(part, safe="") for part in path)])
        known = {name: value for name, value in query.items() if value is not None}
        request = Request(f"{address}?{urlencode(known, doseq=True)}" if known else address, body)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")  # for this server alone
        left = _TRIES
        while True:
            try:
                with urlopen(request, timeout=_SECONDS) as answer:
                    return answer.read()
            except HTTPError as error:
                refusal = error
            except (URLError, HTTPException, OSError, ValueError) as error:
                reason = error.reason if isinstance(error, URLError) else error
                raise ServerError(f"{self.url} does not answer: {reason}") from None
            left -= 1
            if refusal.code != 429 or not left:
                break
            time.sleep(float(refusal.headers.get("Retry-After", 1)))
        try:
            line = str(json.loads(refusal.read())["error"])
        except (ValueError, KeyError, TypeError):
            line = f"{refusal.code} {refusal.reason}"
        raise StudyError(line) if refusal.code in (400, 404, 422) else ServerError(line)


@final
class RemoteDatabase(ReadableStudies["RemoteStudy"]):
    """The studies of a server by name, oldest first; each is read when it is used."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, name: str) -> RemoteStudy:
        """Return a study; raises StudyError with the existing names if there is none."""
        self._connection.json("studies", name)
        return RemoteStudy(self._connection, name)

    def __iter__(self) -> Iterator[str]:
        match self._connection.json("studies"):
            case [*rows]:
                return iter([row["name"] for row in rows])
            case _:
                raise self._connection.stranger()

    def submit(self, space: str, *, study: str | None = None, terms: Terms | None = None) -> QueueEntry | None:
        """Queue a space, given as YAML text, as a study named `study` (None: the space's own name).

        Returns the queue's entry, or None if no service writes the database now; the next service
        then takes the submission. A study of this space that is queued already keeps its entry.
        Raises StudyError for a space that the server cannot read or a name that is taken, and
        ServerError if the token may not submit, or the server does not allow a file of the space.
        """
        body = {"space": space, "study": study, **asdict(terms or Terms())}
        entry: dict[str, Any] | None = self._connection.post("queue", body=body)["entry"]
        return QueueEntry.of(entry) if entry else None

    def queue(self) -> list[QueueEntry]:
        """Return the entries of the queue, those that have ended included."""
        return [QueueEntry.of(entry) for entry in self._connection.json("queue")["entries"]]

    def studies(self, *, archived: bool = True, tag: str | None = None) -> pl.DataFrame:
        """Return one row per study, as for a local database."""
        return self._connection.frame("studies.parquet", archived=archived, tag=tag)

    def __repr__(self) -> str:
        return f"<{len(self)} studies at {self._connection.url}>"

    def _repr_html_(self) -> str:
        return frame_table(self.studies(archived=False))


@final
@dataclass(frozen=True, repr=False)
class RemoteStudy(ReadableStudy):
    """One study of a server, by its name; each call asks the server."""

    connection: Connection
    name: str

    def status(self) -> Status:
        return Status.from_json(self.connection.json("studies", self.name)["status"])

    def show(self, number: int) -> TrialRecord:
        answer = self.connection.json("studies", self.name, "trials", str(number))
        row = {**answer["trial"], "draws": answer["draws"], "config": answer["config"]}
        return TrialRecord.of(self.name, row, pl.DataFrame(answer["metrics"], schema=POINTS))

    def figure(self, kind: str) -> Figures:
        pictures = [Picture(**picture) for picture in self.connection.json("studies", self.name, "figures", kind)]
        return Figures(f"{self.name}: {kind}", pictures)

    def _read(self, kind: StudyTable, **query: Any) -> pl.DataFrame:
        return self.connection.frame("studies", self.name, "frames", kind, **query)

    def __getattr__(self, name: str) -> NoReturn:
        from graft.api.study import Study

        if hasattr(Study, name) and not name.startswith("_"):
            raise StudyError(f"{name} is not there over HTTP, only {_HERE}; open the database itself, graft.open(URL)")
        raise AttributeError(f"'RemoteStudy' has no attribute {name!r}")
