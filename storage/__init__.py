"""What a study leaves behind: written by one controller (`open_store`), read by anyone (`open_reader`).

databases/               the database that a URL names: sqlite.py or postgres.py, behind database.py
schema.py, migrations/   the tables, and the way to them from older ones
store.py                 the writing end: a database's studies, and the claim of one
claims/                  what the controller of a claimed study writes
frames.py                reading: typed Polars frames
sources.py               the files of a study's plug-ins from outside
checking.py, copying.py  whether a database is whole; copies of it
"""

from storage.claims.claimed_study import ClaimedStudy
from storage.claims.editing import EditedStudy, SpaceChange
from storage.databases import file_of, has_password
from storage.frames import Reader, open_reader
from storage.store import NewStudy, Store, bring_up, check_name, open_store, request_stop

__all__ = [
    "ClaimedStudy",
    "EditedStudy",
    "NewStudy",
    "Reader",
    "SpaceChange",
    "Store",
    "bring_up",
    "check_name",
    "file_of",
    "has_password",
    "open_reader",
    "open_store",
    "request_stop",
]
