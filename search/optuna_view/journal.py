"""A study as a journal file that `optuna.load_study` opens and Optuna can go on with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from search.optuna_view.storage import ReadOnlyStorage

optuna.logging.set_verbosity(optuna.logging.ERROR)


def write_journal(storage: ReadOnlyStorage, study: str, file: Path) -> int:
    """Write the shown trials to a new file, numbered without gaps; return how many there are."""
    ours = storage.get_study_id_from_name(study)
    lines = _Lines()
    journal = JournalStorage(lines)
    theirs = journal.create_new_study(storage.get_study_directions(ours), study)
    for key, value in storage.get_study_user_attrs(ours).items():
        journal.set_study_user_attr(theirs, key, value)
    for key, value in storage.get_study_system_attrs(ours).items():
        journal.set_study_system_attr(theirs, key, value)
    trials = storage.get_all_trials(ours, deepcopy=False)
    for trial in trials:
        journal.create_new_trial(theirs, trial)
    JournalFileBackend(str(file)).append_logs(lines.logs)
    return len(trials)


@final
class _Lines(BaseJournalBackend):
    """The lines of a journal in memory, to be written at once instead of under a lock each."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        yield from self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.logs += logs
