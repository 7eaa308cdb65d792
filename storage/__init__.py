"""The storage of studies: written by one controller (`open_store`), read by anyone (`open_reader`).

databases/               the database that a URL names: sqlite.py or postgres.py, behind database.py
schema.py, migrations/   the tables, and the way to them from older ones
clock.py                 the database's clock
store.py                 the writing end: creating, editing and controlling studies; requests
requests.py              requests to the process that writes
upgrading.py             the migrations that a database needs
store_request.py         the content of such a request, and its check
queue.py                 the queue of the service: submitting, pausing, the service's records
new_study.py             a study as it is first written
control/                 the writes of a study's controller
peeking.py               whether a database may know a task, without any library
frames/                  reading: typed Polars frames, of a database and of one study
tokens.py                tokens of people who use the service over HTTP
claim_events.py          the claims about a study's arms: locked, edited, looked at
test_sets.py             results on test sets: sealed until a study is revealed
trial_notes.py           stars, tags and notes of trials
sources.py               the files of a study's plug-ins from outside
checking.py, copying.py  the check of a database, and copies of it

The names below are loaded when they are first used: SQLAlchemy and Polars take a third of a second,
and an estimate of a launch needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.control.controlled_study import ControlledStudy
    from storage.control.editing import SpaceChange
    from storage.databases import file_of, has_password
    from storage.databases.database import AwayError
    from storage.frames import Reader, open_reader
    from storage.new_study import NewStudy, check_name
    from storage.queue_entries import QueueEntry
    from storage.requests import (
        annotate_study,
        record_look,
        request_queue,
        request_service,
        request_stop,
        reveal_study,
        revoke_token,
        take_waiting_requests,
    )
    from storage.store import Store, open_store
    from storage.store_request import StoreRequest, Terms
    from storage.upgrading import migrate_if_older

__all__ = [
    "AwayError",
    "ControlledStudy",
    "NewStudy",
    "QueueEntry",
    "Reader",
    "SpaceChange",
    "Store",
    "StoreRequest",
    "Terms",
    "annotate_study",
    "check_name",
    "file_of",
    "has_password",
    "migrate_if_older",
    "open_reader",
    "open_store",
    "record_look",
    "request_queue",
    "request_service",
    "request_stop",
    "reveal_study",
    "revoke_token",
    "take_waiting_requests",
]

_MODULES = {
    "AwayError": "databases.database",
    "ControlledStudy": "control.controlled_study",
    "NewStudy": "new_study",
    "QueueEntry": "queue_entries",
    "StoreRequest": "store_request",
    "Reader": "frames",
    "SpaceChange": "control.editing",
    "Store": "store",
    "Terms": "store_request",
    "check_name": "new_study",
    "file_of": "databases",
    "has_password": "databases",
    "migrate_if_older": "upgrading",
    "open_reader": "frames",
    "open_store": "store",
}
"""Name -> its module; the others are in `requests`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'storage' has no attribute {name!r}")
    return getattr(importlib.import_module(f"storage.{_MODULES.get(name, 'requests')}"), name)
