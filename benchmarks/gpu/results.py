"""Rows of a GPU's first day: each printed and written as soon as it is known, so that a crash loses one row at most."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Value = Mapping[str, Any]


class Results:
    """A file with a row of JSON a line; a row that is there and did not fail is not measured again."""

    def __init__(
        self, file: Path, command: str, about: Mapping[str, str], seconds: float, *, since: int | None = None
    ) -> None:
        """`about`: what the rows were measured on, a part of each; no row is begun after `seconds`.

        `since`: how many rows of the file are older than this run, whose own failures are not tried again.
        """
        self._file, self._command, self._about = file, command, about
        self._ends_at = time.monotonic() + seconds
        self.left = 0
        """How many rows were not begun for want of time."""
        rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        self.since = len(rows) if since is None else since
        matches = [(index, row) for index, row in enumerate(rows) if row["command"] == command]
        matches = [(index >= self.since, row) for index, row in matches if row["about"] == dict(about)]
        self.failed = sum(is_of_run and row["failure"] is not None for is_of_run, row in matches)
        self._known = {row["name"] for is_of_run, row in matches if is_of_run or row["failure"] is None}

    def add(self, name: str, act: Callable[[], Value]) -> bool:
        """Run `act` and keep what it returns; an error is a row, too, and hides none of the others. False after one."""
        if name in self._known:
            print(f"{name}: there already", flush=True)
            return True
        if time.monotonic() > self._ends_at:
            self.left += 1
            return True
        start, value, failure = time.monotonic(), {}, None
        try:
            value = dict(act())
        except Exception as error:  # whatever a device, a driver or a peer raises
            traceback.print_exc()
            failure = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.failed += 1
        row = {
            "command": self._command,
            "name": name,
            "value": value,
            "failure": failure,
            "seconds": round(time.monotonic() - start, 1),
            "about": dict(self._about),
        }
        with self._file.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{name}: {failure or ', '.join(f'{key} {shown(figure)}' for key, figure in value.items())}", flush=True)
        return failure is None


def shown(value: Any) -> str:
    """Return a number with its thousands apart or in three digits, anything else as it is."""
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") if isinstance(value, float) else f"{value}"
