"""What a process saw, written so that kill -9 loses nothing of it: one JSON line an event, one `write` a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["employed", "started", "reported", "acknowledged", "dropped", "lost", "opened", "closed"]
"""Of a worker: it was employed; a trial was started, reported on, acknowledged, dropped as told; its lease was lost.

Of a launcher: it opened the study; it closed it, done.
"""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened to the process that writes it."""

    kind: Kind
    writer: str = ""
    process: int = 0
    """Its number, of `employed` and `opened`."""
    number: int = -1
    """Of the trial."""
    fence: int = 0
    """Of the start of the trial that the worker holds."""
    step: int = 0
    state: str = "running"
    """Of the report, or of the trial when the launcher closes the study."""
    best: float | None = None
    """Objective of the best trial, `number`, as the launcher told it when it closed the study."""


class History:
    """Appends the events of one process to a file of its own."""

    def __init__(self, folder: Path, writer: str) -> None:
        self._writer = writer
        self._file = os.open(folder / f"{writer}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, event: Event) -> None:
        """Hand one line to the kernel, which keeps it whatever becomes of this process."""
        line = json.dumps(asdict(event) | {"writer": self._writer}) + "\n"
        assert os.write(self._file, line.encode()) == len(line)


def events(folder: Path) -> Iterator[Event]:
    """All events of all processes; those of one process in their order."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield Event(**json.loads(line))
