"""The studies of a server (`search dashboard`), read over HTTP with the interface of a local database.

What reads is there: lists, status, trials, metrics, fronts, learned non-linearities, single trials, figures; and a
space is submitted to the queue. What trains, writes or computes over a whole study needs the database itself,
`graft.open`.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from http.client import HTTPException
from typing import Any, NoReturn, final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen

import polars as pl

from graft.api.base import ReadableStudy
from graft.api.display import Figures, frame_table
from graft.api.trials import TrialRecord
from graft.report.rendering.document import Picture
from graft.stored.status import Status
from graft.stored.trials import StudyTable
from spaces.errors import GraftError, StudyError
from storage import QueueEntry, Terms
from storage.frames.columns import POINTS

_SECONDS = 120.0
"""How long an answer may take."""
_TRIES = 5
"""Requests until one that was too many is given up."""
_HERE = "trials, metrics, front, architectures, show, best, status, figure"


class ServerError(GraftError):
    """A server does not answer, or refuses; the text is its own line."""


def connect(url: str, token: str | None = None) -> RemoteDatabase:
    """Return the studies of a server: `graft.connect("http://127.0.0.1:8765")`.

    `token`: as `search token make` prints it, where the server asks for one. Raises ServerError if it does not answer.
    """
    database = RemoteDatabase(Connection(check_address(url), token))
    len(database)
    return database


def check_address(url: str) -> str:
    """Return the address of a server without a slash at its end; raises ServerError for what is none."""
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
        raise ServerError(f"{url}: must be an address such as http://127.0.0.1:8765")
    return url.rstrip("/")


@final
@dataclass(frozen=True)
class Connection:
    """Where a server is, and by which token it is asked."""

    url: str
    token: str | None = field(repr=False)

    def json(self, *path: str, **query: Any) -> Any:
        """Return the answer at an address below /api, from JSON."""
        return json.loads(self._get(path, query))

    def frame(self, *path: str, **query: Any) -> pl.DataFrame:
        """Return the answer at an address below /api, from parquet."""
        return pl.read_parquet(io.BytesIO(self._get(path, query)))

    def post(self, *path: str, body: Mapping[str, Any]) -> Any:
        """Send a JSON body to an address below /api; returns the answer, read from JSON."""
        return json.loads(self._ask(Request(self._address(path), json.dumps(body).encode())))

    def _get(self, path: Sequence[str], query: Mapping[str, Any]) -> bytes:
        known = {name: value for name, value in query.items() if value is not None}
        address = self._address(path)
        return self._ask(Request(f"{address}?{urlencode(known, doseq=True)}" if known else address))

    def _address(self, path: Sequence[str]) -> str:
        return "/".join([self.url, "api", *(quote(part, safe="") for part in path)])

    def _ask(self, request: Request) -> bytes:
        """Return the answer's body; waits and asks again where requests were too many."""
        if request.data is not None:
            request.add_header("Content-Type", "application/json")
        if self.token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")  # for this server alone
        for left in reversed(range(_TRIES)):
            try:
                with urlopen(request, timeout=_SECONDS) as answer:
                    return answer.read()
            except HTTPError as error:
                if error.code != 429 or not left:
                    raise _explain(error) from None
                time.sleep(float(error.headers.get("Retry-After", 1)))
            except (URLError, HTTPException, OSError) as error:
                reason = error.reason if isinstance(error, URLError) else error
                raise ServerError(f"{self.url} does not answer: {reason}") from None
        raise AssertionError("the last try returns or raises")


def _explain(error: HTTPError) -> GraftError:
    try:
        line = str(json.loads(error.read())["error"])
    except (ValueError, KeyError, TypeError):
        line = f"{error.code} {error.reason}"
    return StudyError(line) if error.code in (400, 404, 422) else ServerError(line)


@final
class RemoteDatabase(Mapping[str, "RemoteStudy"]):
    """The studies of a server by name, oldest first; each is read when it is asked."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, name: str) -> RemoteStudy:
        """Return a study; raises StudyError with the names that there are if there is none."""
        self._connection.json("studies", name)
        return RemoteStudy(self._connection, name)

    def __iter__(self) -> Iterator[str]:
        return iter([row["name"] for row in self._connection.json("studies")])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in list(self)

    def submit(self, space: str, *, study: str | None = None, terms: Terms | None = None) -> QueueEntry | None:
        """Queue a space, by its YAML text, as a study; `study`: its name, None: the space's.

        The entry; None: no service writes the server's database just now, and the next one takes the submission up.
        A study of this space that is in the queue already stays as it is, and its entry says when it was submitted.
        Raises StudyError with the server's words for a space that it cannot read or a name that is taken, ServerError
        where the token may not submit, or the space names a file or a plug-in that the server does not allow.
        """
        agreed = terms or Terms()
        body = {"space": space, "study": study, **asdict(agreed)}
        entry: dict[str, Any] | None = self._connection.post("queue", body=body)["entry"]
        return QueueEntry.of(entry) if entry else None

    def queue(self) -> list[QueueEntry]:
        """Return the entries of the queue, those that have ended included."""
        return [QueueEntry.of(entry) for entry in self._connection.json("queue")["entries"]]

    def studies(self, *, archived: bool = True, tag: str | None = None) -> pl.DataFrame:
        """One row per study, as of a local database."""
        return self._connection.frame("studies.parquet", archived=archived, tag=tag)

    def __repr__(self) -> str:
        return f"<{len(self)} studies at {self._connection.url}>"

    def _repr_html_(self) -> str:
        return frame_table(self.studies(archived=False))


@final
@dataclass(frozen=True, repr=False)
class RemoteStudy(ReadableStudy):
    """One study of a server, by its name; each call reads what is there then."""

    connection: Connection
    name: str

    def status(self) -> Status:
        return Status.from_json(self.connection.json("studies", self.name)["status"])

    def show(self, number: int) -> TrialRecord:
        found = self.connection.json("studies", self.name, "trials", str(number))
        row = {**found["trial"], "draws": found["draws"], "config": found["config"]}
        return TrialRecord.of(self.name, row, pl.DataFrame(found["metrics"], schema=POINTS))

    def figure(self, kind: str) -> Figures:
        pictures = [Picture(**one) for one in self.connection.json("studies", self.name, "figures", kind)]
        return Figures(f"{self.name}: {kind}", pictures)

    def _read(self, kind: StudyTable, **query: Any) -> pl.DataFrame:
        return self.connection.frame("studies", self.name, "frames", kind, **query)

    def __getattr__(self, name: str) -> NoReturn:
        from graft.api.study import Study

        if hasattr(Study, name) and not name.startswith("_"):
            raise StudyError(f"{name} is not there over HTTP, only {_HERE}; open the database itself, graft.open(URL)")
        raise AttributeError(f"'RemoteStudy' has no attribute {name!r}")
