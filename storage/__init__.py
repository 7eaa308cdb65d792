"""What a study leaves behind: written by one controller (`open_store`), read by anyone (`open_reader`).

sqlite.py, postgres.py   the two databases, behind database.py
schema.py, migrations/   the tables, and the way to them from older ones
store.py, rows.py        writing: one transaction per call; memory.py binds a store to one study
frames.py                reading: typed Polars frames
history.py               which reports stay
checking.py, copying.py  whether a database is whole; copies of it
"""

from storage.database import file_of
from storage.frames import Reader, open_reader
from storage.memory import StudyMemory
from storage.store import Store, bring_up, open_store, request_stop

__all__ = ["Reader", "Store", "StudyMemory", "bring_up", "file_of", "open_reader", "open_store", "request_stop"]
