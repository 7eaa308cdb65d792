"""Requests to the process that writes a database, which is this one if no other does.

One process at a time writes a SQLite file: while another does, a request is left in the file's
mailbox. PostgreSQL takes several writers and has no mailbox.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from spaces.errors import StorageError, StudyError
from spaces.messages import no_such
from storage.databases import find_database
from storage.databases.database import Database
from storage.databases.mailbox import Mailbox
from storage.frames import open_reader
from storage.queue_entries import QueueEntry
from storage.store import open_store
from storage.store_request import REVOCATION, StoreRequest

_ANSWER_SECONDS = 10.0
"""Seconds that a request waits for an answer of the process that writes the database."""


def request_queue(url: str, request: StoreRequest) -> QueueEntry | None:
    """Have a request to the queue carried out and return the study's entry after it.

    This process does it, or the service if that alone may write. Returns None if the process that
    writes does not answer, as one that is no service never does: the request is durable, and the
    next process that takes requests carries it out. Raises StudyError if it cannot be done.
    """
    database = find_database(url)
    if database.mailbox is None:
        with open_store(url) as store:
            return store.carry_out(request)
    if not _send(url, database, database.mailbox, request):
        return None
    with open_reader(url) as reader:
        return next((entry for entry in reader.queue() if entry.study == request.study), None)


def annotate_study(url: str, study: str, **values: str | Sequence[str] | Sequence[int] | bool) -> None:
    """Annotate a study or its trials; raises StudyError as `request_service` does."""
    with open_reader(url) as reader:
        reader.study(study)  # raises StudyError if there is no such study
    request_service(url, StoreRequest(action="annotate", study=study, row=values))


def record_look(url: str, study: str, command: str, version: str, results: int) -> None:
    """Record that `command` showed `results` ended trials of a study before its claim's end."""
    row = {"command": command, "version": version, "results": results}
    request = StoreRequest(action="look", study=study, row=row)
    database = find_database(url)
    if database.mailbox is None:
        with open_store(url) as store:
            store.carry_out(request)
        return
    with database.readable_errors():
        database.mailbox.post(request.to_json())
    take_waiting_requests(url)


def reveal_study(url: str, study: str, *, person: str, version: str, by: str | None = None) -> None:
    """Record that a person opens the test results of a finished study.

    A running service writes the record. `by` is the token on whose behalf they are opened, None for
    a person who may change every study. Raises StudyError as `test_sets.reveal` and
    `request_service` do, AccessError for another person's study.
    """
    row = {"person": person, "version": version}
    request_service(url, StoreRequest(action="reveal", study=study, row=row, by=by))


def take_waiting_requests(url: str) -> None:
    """Carry out requests that were posted while another process wrote, unless one still does."""
    mailbox = find_database(url).mailbox
    if mailbox is not None and mailbox.names():
        with suppress(StudyError), open_store(url) as store:
            store.take_requests()


def request_service(url: str, request: StoreRequest) -> None:
    """Have a request of any action carried out by this process, or by a service that alone writes.

    Raises StudyError if it cannot be done, or if the one process that may write does not do it.
    """
    request.check()
    database = find_database(url)
    is_served = False
    if database.mailbox is not None:
        # It may not exist yet, or have an older schema.
        with suppress(StorageError), open_reader(url) as reader:
            is_served = reader.service() is not None
    if database.mailbox is None or not is_served:
        with open_store(url) as store:
            store.carry_out(request)
    elif not _send(url, database, database.mailbox, request):
        problem = f"the service of {database.name} does not answer"
        raise StudyError(f"{problem}; it does what was asked when it does")


def revoke_token(url: str, name: str) -> bool:
    """Revoke a token at once; return whether the revocation is in the database already.

    It is void from its request on, which may wait for a process. StudyError if it is unknown.
    """
    database = find_database(url)
    request = StoreRequest(action="revoke_token", study=name)
    with open_reader(url) as reader:
        known = [token.name for token in reader.tokens() if token.revoked_at is None]
    if name not in known:
        raise StudyError(no_such("token", name, known))
    if database.mailbox is None:
        with open_store(url) as store:
            store.carry_out(request)
        return True
    return _send(url, database, database.mailbox, request, REVOCATION)


def _send(url: str, database: Database, mailbox: Mailbox, request: StoreRequest, mark: str = "") -> bool:
    """Post a request; return True if it is answered in time, or raise StudyError if refused."""
    with database.readable_errors():
        name = mailbox.post(request.to_json(), mark)
    give_up = time.monotonic() + _ANSWER_SECONDS
    try:
        while mailbox.is_pending(name):
            try:
                # If no other process writes the database, this one carries out the request.
                with open_store(url) as store:
                    store.take_requests()
            except StudyError:
                if time.monotonic() > give_up:
                    return False
                time.sleep(_ANSWER_SECONDS / 100)
    except BaseException:
        # Withdraw it, as the caller is told that it was not done; a revocation holds all the same.
        if not mark:
            mailbox.settle(name)
        raise
    if refusal := mailbox.refusal(name):
        raise StudyError(refusal)
    return True


def request_stop(url: str, study: str) -> None:
    """Ask a study's controller, in any process, to stop; StudyError if there is no such study."""
    with open_reader(url) as reader:
        study_id = reader.study(study).row["id"]
        with reader.database.readable_errors():
            reader.database.stops.send(study_id)
