"""Who reads a study while a storm rages over it: queries, exports, reports and backups in a loop, and a long reader."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from spaces.errors import GraftError
from storage import open_reader
from storage.checking import check
from tests.support.faults.toy import STUDY
from tests.support.launches import ROOT

HELD_SECONDS = 5.0
"""So long the long reader keeps its transaction open."""
_LIMIT = 120


class Readers:
    """Reads in threads of its own until it is closed. A context manager."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self.read = Counter[str]()
        """What was read how often."""
        self.wrong: list[str] = []
        """What ended otherwise than well or with one line."""
        self._url = url
        self._chance = chance
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._ask, self._hold)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * _LIMIT)

    def _ask(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            commands: Sequence[tuple[str, ...]] = [
                ("query", "SELECT state, count(*), max(steps) FROM trials GROUP BY state"),
                ("trials", STUDY, "--sort", "objective", "--top", "5"),
                ("export", STUDY, "-o", f"{folder}/trials.csv", "--force"),
                ("report", "study", STUDY, "-o", f"{folder}/report.md", "--force"),
                ("db", "backup", f"{folder}/backup.db"),
                ("db", "check"),
            ]
            while not self._closed.wait(0.5):
                self._run(self._chance.choice(commands), Path(folder))

    def _run(self, command: tuple[str, ...], folder: Path) -> None:
        arguments = ["nice", "-n", "19", sys.executable, "-m", "graft_search", *command, "--storage", self._url]
        answer = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT)
        name = " ".join(command[: 2 if command[0] in ("db", "report") else 1])
        lines = answer.stderr.splitlines()[-1:]
        # A database that is away, or not yet there, is one line; a study that has just begun has nothing to report.
        if answer.returncode == 2 and lines and lines[0].startswith("error: ") and "Traceback" not in answer.stderr:
            return
        if answer.returncode:
            self.wrong.append(f"search {name} ended with status {answer.returncode}: {answer.stdout[-200:]} {lines}")
            return
        self.read[name] += 1
        backup = folder / "backup.db"
        if backup.exists():
            self.wrong += [f"a backup is broken: {fault}" for fault in check(f"sqlite:///{backup}").faults]
            backup.unlink()

    def _hold(self) -> None:
        """Sees one moment of the database for some seconds, however much is written meanwhile."""
        count = "SELECT count(*), coalesce(sum(steps), 0) FROM trials"
        while not self._closed.wait(0.5):
            with suppress(GraftError), open_reader(self._url) as reader:
                connection = reader.database.snapshot()
                with reader.database.readable_errors(), connection, connection.begin():
                    before = tuple(connection.exec_driver_sql(count).one())
                    self._closed.wait(HELD_SECONDS)
                    if tuple(connection.exec_driver_sql(count).one()) != before:
                        self.wrong.append("a snapshot changed while it was read")
                self.read["long read"] += 1
