"""The writing end of a database: its schema, its studies, and the claim of one.

What the controller writes about a claimed study is in `claimed_study`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, case, select, update
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, ProgrammingError

from spaces.errors import MessageError, RowError, StorageError, StudyError
from spaces.messages import no_such, shorten
from spaces.plugins.bundles import Bundle
from spaces.plugins.digests import Data
from spaces.settings import History, Objective
from storage import claim_events, migrations, sources, test_sets, tokens, trial_notes
from storage.claims import editing, leases, rows
from storage.claims.claimed_study import ClaimedStudy
from storage.claims.editing import EditedStudy
from storage.claims.session import Session
from storage.claims.stored_trials import find_candidates
from storage.databases import find_database
from storage.databases.database import Database
from storage.databases.mailbox import Mailbox
from storage.frames import open_reader
from storage.new_study import NewStudy, check_name, insert_study, row_of
from storage.queue import REVOCATION, Queue, QueueRequest
from storage.queue_entries import QueueEntry
from storage.schema import Now, studies

_log = logging.getLogger("graft.storage")
_OF_A_MESSAGE = (DataError, IntegrityError, InterfaceError, ProgrammingError, UnicodeError)
"""What the driver raises for a value that it cannot write; other errors of it are the database's."""


def open_store(url: str) -> Store:
    """Return the writing end of a database, created or brought up to this code's schema.

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


class Store:
    """The studies of a database. Safe to call from several threads; calls run one after another."""

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
        """Give back the connection and the locks; what was recorded stays."""
        self._session.close()

    def migrate(self) -> None:
        """Bring the tables up to this code's schema, all steps in one transaction with their record."""

        def act(connection: Connection) -> None:
            if migrations.is_older(connection):
                self._database.locks.check_idle(connection)
            migrations.upgrade(connection, self._database.name)

        self._session.transact(act)

    def create_study(self, study: NewStudy) -> int:
        """Write a new study, in state `stopped`, with its plug-ins from outside, and return its id.

        StudyError if the name is taken, or is no word that can stand in a command line, a file's name and a page.
        """
        check_name(study.name)
        try:
            return self._session.transact(lambda connection: insert_study(connection, row_of(study), study.bundles))
        except IntegrityError:
            raise StudyError(f"study {study.name!r} exists already; resume it, or choose another name") from None

    def replace_study(self, study_id: int, study: NewStudy) -> int:
        """Delete a study, and write another one in its place; its id. Raises StudyError if a process runs it."""
        self.edit(study_id)

        def write(connection: Connection) -> int:
            editing.delete_study(connection, study_id)
            return insert_study(connection, row_of(study), study.bundles)

        return self._session.transact(write)

    def edit(self, study_id: int) -> EditedStudy:
        """Claim a study to change it, and not to run it; raises StudyError if another process runs it."""
        self._lock(study_id)
        return EditedStudy(self._session, study_id)

    def annotate(self, study_id: int, **values: str | Sequence[str] | Sequence[int] | bool) -> None:
        """Write some of a study's `note`, `tags` and `archived`; it may run meanwhile.

        With `numbers`, what `trial_notes.write` takes of these trials.
        """
        asked: dict[str, Any] = {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}
        QueueRequest(action="annotate", study="", row=asked).check()
        if "numbers" in asked:
            self._session.transact(lambda connection: trial_notes.write(connection, study_id, **asked))
            return
        this = update(studies).where(studies.c.id == study_id).values(**values)
        self._session.transact(lambda connection: connection.execute(this))

    def record_refusal(self, study_id: int, change: str, version: str) -> bool:
        """As `claim_events.record_refusal`; the study may run meanwhile."""
        values = {"change": change, "version": version}
        return self._session.transact(lambda connection: claim_events.record_refusal(connection, study_id, **values))

    def replace_bundles(self, study_id: int, fresh: Mapping[int, Bundle]) -> None:
        """Put other versions in the place of a study's bundles, by the numbers of these, which stay for their trials.

        Raises StudyError if another process runs the study.
        """

        def act(connection: Connection) -> int:
            sources.replace(connection, study_id, fresh)
            return 0

        self._session.lock(study_id, act)

    def add_data(self, study_id: int, found: Mapping[str, Data]) -> None:
        """Note files that a study's trials read, where it has none of their names; it may run meanwhile."""

        def act(connection: Connection) -> None:
            known = _read_data(connection, study_id)
            _write_data(connection, study_id, {name: [one.to_json()] for name, one in found.items()} | known)

        self._session.transact(act)

    def replace_data(self, study_id: int, fresh: Mapping[str, Data]) -> None:
        """Note other versions of a study's files; the earlier ones stay, for their trials.

        Raises StudyError if another process runs the study.
        """

        def act(connection: Connection) -> int:
            known = _read_data(connection, study_id)
            versions = {name: [*known.get(name, ()), one.to_json()] for name, one in fresh.items()}
            _write_data(connection, study_id, known | versions)
            return 0

        self._session.lock(study_id, act)

    def claim(
        self, study_id: int, *, policy: History, objective: Objective, version: str = "", keep_open: bool = False
    ) -> ClaimedStudy:
        """Become the study's only controller and forget earlier stop requests.

        `policy` says which reports are kept, `objective` which of them is the best, `version` is Graft's, for the
        fingerprints of trials. The store is closed with the study, unless it is to be kept open for others. Raises
        StudyError if another process runs the study.
        """
        return ClaimedStudy(
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
        """Return the other process that runs a study which this one does not; None: there is none."""
        if self._database.mailbox is not None:  # one process writes the database: this one
            return None
        return self._session.transact(lambda connection: self._database.locks.holder(connection, study_id, study))

    def take_requests(self) -> list[QueueEntry]:
        """Do what other processes asked while they could not write; the entries of the queue that it concerns.

        A request that cannot be done is moved aside, whatever is wrong with it: the process goes on, and so does the
        next one. Raises StorageError if the database is at fault.
        """
        mailbox, taken = self._database.mailbox, list[QueueEntry]()
        for name in mailbox.names() if mailbox else ():
            assert mailbox
            # A folder that cannot be read or written now is tried again later; FileNotFoundError: it was withdrawn.
            with suppress(OSError):
                try:
                    entry = self.do(QueueRequest.from_json(mailbox.read(name)))
                except (MessageError, RowError) as error:
                    _put_aside(mailbox, name, str(error))
                except StudyError as refusal:
                    mailbox.settle(name, str(refusal))
                except (StorageError, OSError) as error:
                    if not isinstance(error.__cause__, _OF_A_MESSAGE):
                        raise
                    _put_aside(mailbox, name, str(error))
                except Exception as error:
                    _put_aside(mailbox, name, f"{type(error).__name__}: {error}")
                else:
                    taken += [entry] if entry else []
                    mailbox.settle(name)
        return taken

    def do(self, request: QueueRequest) -> QueueEntry | None:
        """Do what a request asks; the entry of the queue that it changes, if any. Raises StudyError as `apply` does."""
        if request.action == "annotate":
            self.annotate(self._find(request.study), **request.row)
        elif request.action == "look":
            request.check()
            look: dict[str, Any] = {**request.row, "request": request.id}
            self._session.transact(lambda connection: claim_events.record_look(connection, request.study, **look))
        elif request.action == "reveal":
            self.queue.check_holder(request)
            opening: dict[str, Any] = {**request.row, "request": request.id}
            self._session.transact(lambda connection: test_sets.reveal(connection, request.study, **opening))
        elif request.action == "make_token":
            request.check()
            self._session.transact(lambda connection: tokens.add(connection, request.study, **request.row))
        elif request.action == "revoke_token":
            self._session.transact(lambda connection: tokens.revoke(connection, request.study))
        else:
            return self.queue.apply(request)
        return None

    def retry(self, study_id: int, numbers: Collection[int] = ()) -> list[int]:
        """Queue trials of a study that failed or diverged again, these or all of them; their numbers.

        Raises StudyError, and changes nothing, if one of `numbers` did neither, or if another process runs the study.
        """
        queued: list[int] = []

        def write(connection: Connection) -> int:
            test_sets.check_sealed(connection, study_id)
            candidates = find_candidates(connection, study_id)
            if others := sorted(set(numbers) - candidates.keys()):
                choices = f"choose of {shorten(', '.join(map(str, candidates)))}" if candidates else "no trial did"
                raise StudyError(f"trial {others[0]} neither failed nor diverged; {choices}")
            queued[:] = [number for number in candidates if number in numbers or not numbers]
            rows.retry(connection, study_id, [candidates[number] for number in queued])
            # A study with trials to train is not finished; one that a killed launch left is interrupted as it was.
            state = case((studies.c.state == "running", "running"), else_="stopped")
            this = update(studies).where(studies.c.id == study_id)
            values = {"fence": studies.c.fence + 1, "updated_at": Now()} | ({"state": state} if queued else {})
            return connection.execute(this.values(values).returning(studies.c.fence)).scalar_one()

        self._session.lock(study_id, write)
        return queued

    def _find(self, study: str) -> int:
        """Return the id of a study; raises StudyError if there is none."""
        this = select(studies.c.id).where(studies.c.name == study)
        found = self._session.transact(lambda connection: connection.scalar(this))
        if found is None:
            raise StudyError(f"study {study!r} does not exist")
        return found

    def _lock(self, study_id: int) -> int:
        """Become the only process that may write the study; its fence from now on."""

        def write(connection: Connection) -> int:
            # The fence is counted up in the transaction that takes the lock: the process that held the study
            # before finds another fence when its connection comes back, and its workers have lost their leases.
            self._database.stops.withdraw(connection, study_id)
            count = update(studies).where(studies.c.id == study_id).values(fence=studies.c.fence + 1)
            fence = connection.execute(count.returning(studies.c.fence)).scalar_one()
            leases.orphan(connection, study_id, fence)
            return fence

        return self._session.lock(study_id, write)


def _put_aside(mailbox: Mailbox, name: str, reason: str) -> None:
    reason = shorten(reason, 400).encode(errors="backslashreplace").decode()  # it may quote half a character
    mailbox.put_aside(name, reason)
    _log.warning("a request to the queue was moved aside, as it cannot be done: %s", reason)


def pending(url: str) -> tuple[str, Sequence[str]]:
    """Return the schema of a database, and the steps from there to this code's, a line each; none if it is this
    code's.

    Raises StorageError if there is no database, none of this program's, or a newer one.
    """
    database = find_database(url)
    with database.reader().connection as connection, database.readable_errors(), connection.begin():
        if not migrations.is_older(connection):
            migrations.check(connection, database.name)
        found = str(migrations.version_of(connection))
    return found, migrations.steps_from(found)


def bring_up(url: str) -> None:
    """Bring a database of an older schema to this code's; any other one is only looked at.

    Raises StorageError if there is none, StudyError if it is older and another process is writing it.
    """
    database = find_database(url)
    with database.reader().connection as connection, database.readable_errors(), connection.begin():
        older = migrations.is_older(connection)
    if older:
        open_store(url).close()


_ANSWER_SECONDS = 10.0
"""How long a request to the queue waits for the process that writes the database."""


def request_queue(url: str, request: QueueRequest) -> QueueEntry | None:
    """Have a request to the queue done, by this process, or by the service where that alone may write.

    The study's entry after it; None: another process writes the database, which is no service, and the request, which
    is durable, is done by the next one that is. Raises StudyError for what cannot be done.
    """
    database = find_database(url)
    if database.mailbox is None:
        with open_store(url) as store:
            return store.queue.apply(request)
    if not _send(url, database, database.mailbox, request):
        return None
    with open_reader(url) as reader:
        return next((entry for entry in reader.queue() if entry.study == request.study), None)


def annotate_study(url: str, study: str, **values: str | Sequence[str] | Sequence[int] | bool) -> None:
    """Write what `Store.annotate` takes; raises StudyError as `request_service` does."""
    with open_reader(url) as reader:
        reader.study(study)
    request_service(url, QueueRequest(action="annotate", study=study, row=values))


def record_look(url: str, study: str, command: str, version: str, results: int) -> None:
    """Record that `command` shows results of a study with a claim, of which `results` trials have ended and not all.

    Where another process alone may write, the record is durable, and written by the next one that takes requests.
    """
    row = {"command": command, "version": version, "results": results}
    request = QueueRequest(action="look", study=study, row=row)
    database = find_database(url)
    if database.mailbox is None:
        with open_store(url) as store:
            store.do(request)
        return
    with database.readable_errors():
        database.mailbox.post(request.to_json())
    take_waiting_requests(url)


def reveal_study(url: str, study: str, *, person: str, version: str, by: str | None = None) -> None:
    """Open the test results of a finished study, and record when, and for which person; the service does it if it runs.

    `by`: the token on whose behalf it is done; None: a person who may change all. Raises StudyError as
    `test_sets.reveal` and `request_service`, AccessError for the study of another person.
    """
    row = {"person": person, "version": version}
    request_service(url, QueueRequest(action="reveal", study=study, row=row, by=by))


def take_waiting_requests(url: str) -> None:
    """Do what was asked while another process alone could write the database, unless one still does."""
    mailbox = find_database(url).mailbox
    if mailbox is not None and mailbox.names():
        with suppress(StudyError), open_store(url) as store:
            store.take_requests()


def request_service(url: str, request: QueueRequest) -> None:
    """Have a request done by this process, or by the service where that alone may write.

    Raises StudyError for what cannot be done, or if a process that is no service is the only one that may write.
    """
    database = find_database(url)
    request.check()
    if database.mailbox is None or not _is_served(url):
        with open_store(url) as store:
            store.do(request)
    elif not _send(url, database, database.mailbox, request):
        raise StudyError(f"the service of {database.name} does not answer; it does what was asked when it does")


def _is_served(url: str) -> bool:
    """Return whether a service runs; False for a database that is not there yet, or is older."""
    try:
        with open_reader(url) as reader:
            return reader.service() is not None
    except StorageError:
        return False


def revoke_token(url: str, name: str) -> bool:
    """Have a token open nothing from now on; whether that is in the database already.

    Where another process alone may write, the request alone counts from the moment at which it is posted. Raises
    StudyError if there is no such token.
    """
    database = find_database(url)
    request = QueueRequest(action="revoke_token", study=name)
    with open_reader(url) as reader:
        known = [token.name for token in reader.tokens() if token.revoked_at is None]
    if name not in known:
        raise StudyError(no_such("token", name, known))
    if database.mailbox is None:
        with open_store(url) as store:
            store.do(request)
        return True
    return _send(url, database, database.mailbox, request, REVOCATION)


def _send(url: str, database: Database, mailbox: Mailbox, request: QueueRequest, mark: str = "") -> bool:
    """Leave a request for the process that may write; whether it was done. Raises StudyError for what cannot be."""
    with database.readable_errors():
        name = mailbox.post(request.to_json(), mark)
    try:
        if not _await_answer(url, mailbox, name):
            return False
    except BaseException:
        if not mark:  # withdrawn: who asks is told that it was not done; a revocation holds all the same
            mailbox.settle(name)
        raise
    if refusal := mailbox.refusal(name):
        raise StudyError(refusal)
    return True


def _await_answer(url: str, mailbox: Mailbox, name: str) -> bool:
    """Wait until a request was taken in, by another process or, if there is none that writes, by this one."""
    give_up = time.monotonic() + _ANSWER_SECONDS
    while mailbox.is_pending(name):
        try:
            with open_store(url) as store:
                store.take_requests()
        except StudyError:
            if time.monotonic() > give_up:
                return False
            time.sleep(_ANSWER_SECONDS / 100)
    return True


def request_stop(url: str, study: str) -> None:
    """Ask the controller of a study, in whatever process it runs, to stop; StudyError if there is no such study."""
    with open_reader(url) as reader:
        study_id = reader.study(study).row["id"]
        with reader.database.readable_errors():
            reader.database.stops.send(study_id)


def _read_data(connection: Connection, study_id: int) -> dict[str, list[Any]]:
    return connection.scalar(select(studies.c.data).where(studies.c.id == study_id)) or {}


def _write_data(connection: Connection, study_id: int, data: Mapping[str, list[Any]]) -> None:
    connection.execute(update(studies).where(studies.c.id == study_id).values(data=dict(data)))
