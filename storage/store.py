"""The writing end of a database: a `Store` creates, edits and controls studies.

A process that controls a study is the only one that may write it; `control.controlled_study` has
the writes of its controller. Processes that cannot write leave requests (`requests`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, case, select, update
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, ProgrammingError

from spaces.errors import MessageError, RowError, StorageError, StudyError
from spaces.messages import shorten
from spaces.plugins.bundles import Bundle
from spaces.plugins.digests import Data
from spaces.settings import History, Objective
from storage import claim_events, migrations, sources, test_sets, tokens, trial_notes
from storage.clock import Now
from storage.control import editing, leases, retrying, rows
from storage.control.controlled_study import ControlledStudy
from storage.control.editing import EditedStudy
from storage.control.session import Session
from storage.databases import find_database
from storage.databases.database import Database
from storage.databases.mailbox import Mailbox
from storage.new_study import NewStudy, check_name, insert_study, row_of
from storage.queue import Queue
from storage.queue_entries import QueueEntry
from storage.schema import studies
from storage.store_request import StoreRequest

_log = logging.getLogger("graft.storage")
_MESSAGE_FAULTS = (DataError, IntegrityError, InterfaceError, ProgrammingError, UnicodeError)
"""Errors of the driver that a request's value causes; all others are the database's faults."""


def open_store(url: str) -> Store:
    """Open a database for writing, new or migrated; StorageError, or StudyError if it is taken."""
    database = find_database(url)
    store = Store(database, database.writer())
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store


class Store:
    """The writing end of a database. Threads may share it; calls run one after another."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self._database = database
        self._session = Session(database, connection)
        self.queue = Queue(self._session)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and release the locks; everything that was committed stays."""
        self._session.close()

    def migrate(self) -> None:
        """Migrate to this code's schema: all steps and their record in one transaction."""
        self._session.transact(lambda connection: migrations.upgrade(connection, self._database))

    def create_study(self, study: NewStudy) -> int:
        """Write a new, stopped study and return its id; StudyError if its name is taken or bad."""
        check_name(study.name)
        try:
            row = row_of(study)
            return self._session.transact(lambda connection: insert_study(connection, row, study.bundles))
        except IntegrityError:
            problem = f"study {study.name!r} exists already"
            raise StudyError(f"{problem}; resume it, or choose another name") from None

    def replace_study(self, study_id: int, study: NewStudy) -> int:
        """Replace a study and return the new id; raises StudyError if another process runs it."""
        self.edit(study_id)  # for its lock: no process can begin to run the study from here on

        def write(connection: Connection) -> int:
            editing.delete_study(connection, study_id)
            return insert_study(connection, row_of(study), study.bundles)

        return self._session.transact(write)

    def edit(self, study_id: int) -> EditedStudy:
        """Take control of a study to edit it; raises StudyError if another process runs it."""
        self._lock(study_id)
        return EditedStudy(self._session, study_id)

    def annotate(self, study_id: int, **values: str | Sequence[str] | bool) -> None:
        """Write `note`, `tags`, `archived`, checked by `StoreRequest.check`; the study may run."""
        statement = update(studies).where(studies.c.id == study_id).values(**values)
        self._session.transact(lambda connection: connection.execute(statement))

    def annotate_trials(self, study_id: int, numbers: Sequence[int], **values: Any) -> None:
        """Write notes of trials, as `trial_notes.write` does; another process may run the study."""
        write = trial_notes.write
        self._session.transact(lambda connection: write(connection, study_id, numbers, **values))

    def record_refusal(self, study_id: int, change: str, version: str) -> bool:
        """Record a refused change (`claim_events.record_refusal`); the study may run."""
        values, record = {"change": change, "version": version}, claim_events.record_refusal
        return self._session.transact(lambda connection: record(connection, study_id, **values))

    def replace_bundles(self, study_id: int, fresh: Mapping[int, Bundle]) -> None:
        """Write new versions of plug-ins, by the numbers of the bundles that they replace.

        Replaced ones stay, for their trials. StudyError if another process runs the study.
        """

        def act(connection: Connection) -> int:
            sources.replace(connection, study_id, fresh)
            return 0  # instead of a new fence: nothing else is written under this lock

        self._session.lock(study_id, act)

    def add_data(self, study_id: int, data: Mapping[str, Data]) -> None:
        """Record files that a study's trials read, if their names are new; the study may run."""
        fresh = {name: [file.to_json()] for name, file in data.items()}

        def act(connection: Connection) -> None:
            _write_data(connection, study_id, fresh | _read_data(connection, study_id))

        self._session.transact(act)

    def replace_data(self, study_id: int, fresh: Mapping[str, Data]) -> None:
        """Record new versions of the trials' files, beside the old ones; StudyError if it runs."""

        def act(connection: Connection) -> int:
            known = _read_data(connection, study_id)
            versions = {name: [*known.get(name, ()), file.to_json()] for name, file in fresh.items()}
            _write_data(connection, study_id, known | versions)
            return 0  # as in `replace_bundles`

        self._session.lock(study_id, act)

    def take_control(
        self, study_id: int, *, policy: History, objective: Objective, version: str = "", keep_open: bool = False
    ) -> ControlledStudy:
        """Become the study's only controller and forget earlier stop requests.

        `policy` says which reports are kept, `objective` which of them is the best; `version` is
        Graft's, for the fingerprints of trials. Closing the study closes this store too, unless
        `keep_open`. Raises StudyError if another process runs the study.
        """
        return ControlledStudy(
            self._session,
            study_id,
            fence=self._lock(study_id),
            policy=policy,
            objective=objective,
            version=version,
            keep_open=keep_open,
        )

    def lock_service(self) -> None:
        """Become the only service of the database; raises StudyError if another process is."""
        self._session.lock_service()

    def find_holder(self, study_id: int, study: str) -> str | None:
        """Return the process that runs a study, or None; not for this process's own studies."""
        if self._database.mailbox is not None:  # one process writes a SQLite file: this one
            return None
        holder = self._database.locks.holder
        return self._session.transact(lambda connection: holder(connection, study_id, study))

    def take_requests(self) -> list[QueueEntry]:
        """Carry out the requests of processes that could not write; return changed queue entries.

        A request that breaks a rule is refused, and its sender reads why. One that cannot be
        carried out for another reason is moved aside, so that it stops neither this process nor the
        next. Raises StorageError if the database is at fault.
        """
        mailbox, entries = self._database.mailbox, list[QueueEntry]()
        for name in mailbox.names() if mailbox else ():
            assert mailbox
            # OSError: the request was withdrawn, or the folder is unusable now and tried later.
            with suppress(OSError):
                try:
                    entry = self.carry_out(StoreRequest.from_json(mailbox.read(name)))
                except (MessageError, RowError) as error:
                    _put_aside(mailbox, name, str(error))
                except StudyError as refusal:
                    mailbox.settle(name, str(refusal))
                except (StorageError, OSError) as error:
                    if not isinstance(error.__cause__, _MESSAGE_FAULTS):
                        raise
                    _put_aside(mailbox, name, str(error))
                except Exception as error:
                    _put_aside(mailbox, name, f"{type(error).__name__}: {error}")
                else:
                    entries += [entry] if entry else []
                    mailbox.settle(name)
        return entries

    def carry_out(self, request: StoreRequest) -> QueueEntry | None:
        """Carry out a request; return the queue entry that it changes. Raises as `Queue.apply`."""
        request.check()
        transact = self._session.transact
        if request.action == "annotate":
            query = select(studies.c.id).where(studies.c.name == request.study)
            study_id = transact(lambda connection: connection.scalar(query))
            if study_id is None:
                raise StudyError(f"study {request.study!r} does not exist")
            annotate = self.annotate_trials if "numbers" in request.row else self.annotate
            annotate(study_id, **request.row)
        elif request.action == "look":
            look: dict[str, Any] = {**request.row, "request": request.id}
            transact(lambda connection: claim_events.record_look(connection, request.study, **look))
        elif request.action == "reveal":
            self.queue.check_may_change(request)
            opening: dict[str, Any] = {**request.row, "request": request.id}
            transact(lambda connection: test_sets.reveal(connection, request.study, **opening))
        elif request.action == "make_token":
            transact(lambda connection: tokens.add(connection, request.study, **request.row))
        elif request.action == "revoke_token":
            transact(lambda connection: tokens.revoke(connection, request.study))
        else:
            return self.queue.apply(request)
        return None

    def retry(self, study_id: int, numbers: Collection[int] = ()) -> list[int]:
        """Queue failed and diverged trials again, all that may be or these `numbers`, and return them.

        Raises StudyError, without a change, for a number of another state, for a trial that decided
        what is confirmed or trained in stage two, and for a running study.
        """
        queued: list[int] = []

        def write(connection: Connection) -> int:
            test_sets.check_sealed(connection, study_id)
            retried = retrying.find_retried(connection, study_id, numbers)
            # Replaced, not extended: the transaction may run twice.
            queued[:] = retried
            rows.retry(connection, study_id, list(retried.values()))
            # A study with queued trials is not finished. `running` means that a launch was killed.
            state = case((studies.c.state == "running", "running"), else_="stopped")
            values: dict[str, Any] = {"fence": studies.c.fence + 1, "updated_at": Now()}
            if queued:
                values["state"] = state
            statement = update(studies).where(studies.c.id == study_id).values(values)
            return connection.execute(statement.returning(studies.c.fence)).scalar_one()

        self._session.lock(study_id, write)
        return queued

    def _lock(self, study_id: int) -> int:
        """Become the only process that may write the study and return the study's new fence."""

        def write(connection: Connection) -> int:
            # The fence is raised in the transaction that takes the lock. The process that had the
            # study finds another fence when its connection comes back, and its workers have lost
            # their leases.
            self._database.stops.withdraw(connection, study_id)
            statement = update(studies).where(studies.c.id == study_id)
            statement = statement.values(fence=studies.c.fence + 1)
            fence = connection.execute(statement.returning(studies.c.fence)).scalar_one()
            leases.orphan(connection, study_id, fence)
            return fence

        return self._session.lock(study_id, write)


def _put_aside(mailbox: Mailbox, name: str, reason: str) -> None:
    # The reason may quote a lone surrogate, which no file or terminal takes as UTF-8.
    reason = shorten(reason, 400).encode(errors="backslashreplace").decode()
    mailbox.put_aside(name, reason)
    _log.warning("a request to the queue was moved aside, as it cannot be done: %s", reason)


def _read_data(connection: Connection, study_id: int) -> dict[str, list[Any]]:
    """Return name -> versions of the files that a study's trials read, the one in use last."""
    return connection.scalar(select(studies.c.data).where(studies.c.id == study_id)) or {}


def _write_data(connection: Connection, study_id: int, data: Mapping[str, list[Any]]) -> None:
    connection.execute(update(studies).where(studies.c.id == study_id).values(data=dict(data)))
