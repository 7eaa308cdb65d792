"""The studies of a database, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

import polars as pl

from graft.api.base import ReadableStudies
from graft.api.display import frame_table
from graft.api.study import Study
from graft.launching.editing import administration
from graft.stored.studies import read_studies
from spaces.errors import StorageError
from storage import migrate_if_older
from storage.frames import open_reader

if TYPE_CHECKING:
    from graft.launching.planning.task_advice import Known
    from search.optuna_view.storage import ReadOnlyStorage

DEFAULT = "graft.db"
"""The default file, as of the commands."""


def database_url(database: str | Path) -> str:
    """Return the URL of a database, given its URL or a SQLite file."""
    if not isinstance(database, str | Path):  # pyright: ignore[reportUnnecessaryIsInstance] - a caller without types
        raise StorageError(f"database: {database!r} must be a path or a URL")
    text = str(database)
    if not text:
        raise StorageError(
            "the database has no name; use sqlite:///FILE, a plain FILE, or postgresql://USER@HOST/DATABASE"
        )
    if "://" in text and not text.startswith("sqlite:///"):
        return text
    return f"sqlite:///{Path(text.removeprefix('sqlite:///')).absolute()}"


def open_database(database: str | Path = DEFAULT) -> Database:
    """Return the studies of a database, a SQLite file or a URL, and migrate an older database.

    Raises StorageError if there is no database.
    """
    url = database_url(database)
    migrate_if_older(url)
    open_reader(url).close()
    return Database(url)


@final
class Database(ReadableStudies[Study]):
    """The studies of a database by name, oldest first; each is read when it is used."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __getitem__(self, name: str) -> Study:
        """Return a study; raises StudyError with the existing names if there is none."""
        with open_reader(self.url) as reader:
            reader.study(name)
        return Study(self.url, name)

    def __iter__(self) -> Iterator[str]:
        with open_reader(self.url) as reader:
            return iter(reader.studies()["name"].to_list())

    def studies(self, *, archived: bool = True, tag: str | None = None) -> pl.DataFrame:
        """Return a row per study: state, trials, objective, best, tags, note."""
        with open_reader(self.url) as reader:
            return read_studies(reader, archived=archived, tag=tag)

    def query(self, sql: str) -> pl.DataFrame:
        """Return the answer to one SELECT; nothing can be changed through it."""
        from graft.stored.claims import note_query

        with open_reader(self.url) as reader:
            answer = reader.query(sql)
            note_query(reader, self.url, sql, "query of Python")
        return answer

    def optuna_storage(self) -> ReadOnlyStorage:
        """Return the studies for Optuna's `load_study(study_name=..., storage=...)`, read-only.

        A large study has its 5,000 best and newest trials.
        """
        from graft.exports.interchange.optuna_studies import open_storage

        return open_storage(self.url)

    def advise(self, task: str, difference: float | None = None) -> Known:
        """Return the facts about a task from stored trials; their text is `search advise TASK`'s.

        Seeds are counted for a `difference` of two arms. Raises GraftError for an unknown task or
        an invalid difference, and if neither the task nor its family has trials.
        """
        from graft.launching.planning.task_advice import read_task_advice

        with open_reader(self.url) as reader:
            return read_task_advice(reader, task, difference)

    def rename(self, study: str, name: str) -> Study:
        """Give a study another name; not while it runs."""
        administration.rename_study(self.url, study, name)
        return Study(self.url, name)

    def note(self, study: str, text: str) -> None:
        """Replace a study's note."""
        administration.write_note(self.url, study, text)

    def tag(self, study: str, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
        """Add and remove tags of a study, and return all its tags."""
        return administration.tag_study(self.url, study, add, remove)

    def archive(self, study: str, *, archived: bool = True) -> None:
        """Put a study into the archive, or take it out."""
        administration.archive_study(self.url, study, archived=archived)

    def delete(self, study: str) -> None:
        """Delete a study that does not run, its trials and its checkpoints, without asking."""
        administration.delete_study(self.url, study)

    def __repr__(self) -> str:
        return f"<{len(self)} studies>"

    def _repr_html_(self) -> str:
        return frame_table(self.studies(archived=False))
