"""The queue as a frame, for `search queue` and other views."""

from __future__ import annotations

import polars as pl

from spaces.records import TERMINAL
from storage.frames import Reader

_TIME = pl.Datetime("us", "UTC")
_COLUMNS = {
    "study": pl.String(),
    "state": pl.String(),
    "owner": pl.String(),
    "priority": pl.Int64(),
    "weight": pl.Float64(),
    "max_lanes": pl.Int64(),
    "lanes": pl.Int64(),
    "share": pl.Float64(),
    "ended": pl.Int64(),
    "trials": pl.Int64(),
    "reason": pl.String(),
    "submitted_at": _TIME,
    "started_at": _TIME,
    "ended_at": _TIME,
}


def read_queue(reader: Reader, *, ended: bool = False) -> pl.DataFrame:
    """Return the queue in the service's order, with studies that will not run again if `ended`.

    `lanes` is the number of a study's lanes within seconds, and `share` the number that it is due.
    `reason` tells why it waits, failed, or is not due more lanes.
    """
    rows = []
    for entry in reader.queue():
        if entry.is_open or ended:
            counts = reader.study(entry.study).counts()
            done = sum(count for state, count in counts.items() if state in TERMINAL)
            rows.append([done if name == "ended" else getattr(entry, name) for name in _COLUMNS])
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")
