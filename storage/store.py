"""The writing end of a database: its schema, its studies, and the claim of one.

What the controller writes about a claimed study is in `claimed_study`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, case, insert, update
from sqlalchemy.exc import IntegrityError

from spaces.errors import StudyError
from spaces.messages import shorten
from spaces.plugins.bundles import Bundle
from spaces.settings import History, Objective
from storage import migrations, sources
from storage.claims import editing, leases, rows
from storage.claims.claimed_study import ClaimedStudy
from storage.claims.editing import EditedStudy
from storage.claims.session import Session
from storage.databases import find_database
from storage.databases.database import Database
from storage.frames import open_reader
from storage.schema import Now, studies


def open_store(url: str) -> Store:
    """The writing end of a database, created or brought up to this code's schema.

    Raises StorageError if it cannot be written safely, StudyError if another process is writing it.
    """
    database = find_database(url)
    store = Store(database, database.writer())
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class NewStudy:
    """A study as it is written first."""

    name: str
    space: str
    """Its YAML text."""
    space_hash: str
    objective: Objective
    seed: int
    trials: int
    """The planned number."""
    version: str
    """Of Graft."""
    numerics: int
    """The version of its numerics (`workers.numerics.version`)."""
    bundles: tuple[Bundle, ...] = ()
    """The plug-ins from outside that it runs."""


class Store:
    """The studies of a database. Safe to call from several threads; calls run one after another."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._session = Session(database, connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection and the locks; what was recorded stays."""
        self._session.close()

    def migrate(self) -> None:
        """Bring the tables up to this code's schema, all steps in one transaction with their record."""

        def act(connection: Connection) -> None:
            if migrations.is_older(connection):
                self._database.check_idle(connection)
            migrations.upgrade(connection, self._database.name)

        self._session.transact(act)

    def create_study(self, study: NewStudy) -> int:
        """Write a new study, in state `stopped`, with its plug-ins from outside, and return its id.

        StudyError if the name is taken, or is no word that can stand in a command line, a file's name and a page.
        """
        check_name(study.name)
        try:
            return self._session.transact(lambda connection: _insert(connection, study))
        except IntegrityError:
            raise StudyError(f"study {study.name!r} exists already; resume it, or choose another name") from None

    def replace_study(self, study_id: int, study: NewStudy) -> int:
        """Delete a study, and write another one in its place; its id. Raises StudyError if a process runs it."""
        self.edit(study_id)

        def write(connection: Connection) -> int:
            editing.delete_study(connection, study_id)
            return _insert(connection, study)

        return self._session.transact(write)

    def edit(self, study_id: int) -> EditedStudy:
        """Claim a study to change it, and not to run it; raises StudyError if another process runs it."""
        self._lock(study_id)
        return EditedStudy(self._session, study_id)

    def annotate(self, study_id: int, **values: str | Sequence[str] | bool) -> None:
        """Write some of a study's `note`, `tags` and `archived`; it may run meanwhile."""
        this = update(studies).where(studies.c.id == study_id).values(**values)
        self._session.transact(lambda connection: connection.execute(this))

    def replace_bundles(self, study_id: int, fresh: Mapping[int, Bundle]) -> None:
        """Put other versions in the place of a study's bundles, by the numbers of these, which stay for their trials.

        Raises StudyError if another process runs the study.
        """

        def act(connection: Connection) -> int:
            sources.replace(connection, study_id, fresh)
            return 0

        self._session.lock(study_id, act)

    def claim(self, study_id: int, *, policy: History, objective: Objective, version: str = "") -> ClaimedStudy:
        """Become the study's only controller and forget earlier stop requests.

        `policy` says which reports are kept, `objective` which of them is the best, `version` is Graft's, for the
        fingerprints of trials. Raises StudyError if another process runs the study.
        """
        fence = self._lock(study_id)
        return ClaimedStudy(
            self._database, self._session, study_id, fence=fence, policy=policy, objective=objective, version=version
        )

    def retry(self, study_id: int, numbers: Collection[int] = ()) -> list[int]:
        """Queue trials of a study that failed or diverged again, these or all of them; their numbers.

        Raises StudyError, and changes nothing, if one of `numbers` did neither, or if another process runs the study.
        """
        queued: list[int] = []

        def write(connection: Connection) -> int:
            candidates = rows.candidates(connection, study_id)
            if others := sorted(set(numbers) - candidates.keys()):
                choices = shorten(", ".join(map(str, candidates)) or "none")
                raise StudyError(f"trial {others[0]} neither failed nor diverged; choose of {choices}")
            queued[:] = [number for number in candidates if number in numbers or not numbers]
            rows.retry(connection, study_id, [candidates[number] for number in queued])
            # A study with trials to train is not finished; one that a killed launch left is interrupted as it was.
            state = case((studies.c.state == "running", "running"), else_="stopped")
            this = update(studies).where(studies.c.id == study_id)
            values = {"fence": studies.c.fence + 1, "updated_at": Now()} | ({"state": state} if queued else {})
            return connection.execute(this.values(values).returning(studies.c.fence)).scalar_one()

        self._session.lock(study_id, write)
        return queued

    def _lock(self, study_id: int) -> int:
        """Become the only process that may write the study; its fence from now on."""

        def write(connection: Connection) -> int:
            # The fence is counted up in the transaction that takes the lock: the process that held the study
            # before finds another fence when its connection comes back, and its workers have lost their leases.
            self._database.withdraw_stop(connection, study_id)
            count = update(studies).where(studies.c.id == study_id).values(fence=studies.c.fence + 1)
            fence = connection.execute(count.returning(studies.c.fence)).scalar_one()
            leases.orphan(connection, study_id, fence)
            return fence

        return self._session.lock(study_id, write)


def check_name(name: str) -> None:
    """Raise StudyError unless it is a word that can stand in a command line, a file's name and a page."""
    if not _NAME.fullmatch(name):
        raise StudyError(f"{shorten(repr(name))} must be a word of letters, digits, '.', '_' and '-'")


def _insert(connection: Connection, study: NewStudy) -> int:
    """Write a new study in state `stopped`; its id."""
    row = {
        **{name: value for name, value in vars(study).items() if name != "bundles"},
        "objective": str(study.objective),
        "direction": study.objective.direction,
        "state": "stopped",
        "stop_requested": False,
    }
    times = {"created_at": Now(), "updated_at": Now()}
    study_id = connection.execute(insert(studies).values(**row, **times).returning(studies.c.id)).scalar_one()
    sources.write(connection, study_id, study.bundles)
    return study_id


def pending(url: str) -> tuple[str, Sequence[str]]:
    """The schema of a database, and the steps from there to this code's, a line each; none if it is this code's.

    Raises StorageError if there is no database, none of this program's, or a newer one.
    """
    database = find_database(url)
    with database.reader() as connection, database.readable_errors(), connection.begin():
        if not migrations.is_older(connection):
            migrations.check(connection, database.name)
        found = str(migrations.version_of(connection))
    return found, migrations.steps_from(found)


def bring_up(url: str) -> None:
    """Bring a database of an older schema to this code's; any other one is only looked at.

    Raises StorageError if there is none, StudyError if it is older and another process is writing it.
    """
    database = find_database(url)
    with database.reader() as connection, database.readable_errors(), connection.begin():
        older = migrations.is_older(connection)
    if older:
        open_store(url).close()


def request_stop(url: str, study: str) -> None:
    """Ask the controller of a study, in whatever process it runs, to stop; StudyError if there is no such study."""
    with open_reader(url) as reader:
        reader.database.request_stop(reader.study(study)["id"])
