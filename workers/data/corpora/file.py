"""Text files of the machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from spaces.cache import remember
from spaces.errors import PluginError
from spaces.plugins import Examples
from spaces.plugins.fields import file, option, text
from spaces.plugins.files import FilePath
from workers.data.corpora import Corpus
from workers.data.corpora._code import STRIPPERS, VERSIONS
from workers.data.hashing import hash_of

_TABLES = (".arrow", ".jsonl", ".parquet")
_SUFFIXES = (*_TABLES, ".txt")


@dataclass(frozen=True, kw_only=True)
class File(Corpus):
    """A file, or all files of a folder and its folders that end in `ending`.

    A document is a line's or a row's `column`, or a whole file of any other kind. Files that end in
    .arrow are those that `save_to_disk` of a data set of Hugging Face writes. `comments` of a
    programming language are taken out. `{path: FOLDER, ending: .java, comments: java}` reads a
    folder of Java, for example java/util of the src.zip in Debian's openjdk-17-source (GPL-2 with
    the Classpath exception).
    """

    EXAMPLES: ClassVar[Examples] = ({"path": __file__},)

    path: FilePath = file(*_SUFFIXES, ending="ending")
    column: str = text("text", plain=True)
    comments: str = option("none", tuple(STRIPPERS))
    ending: str = text("", plain=True)
    """Ending of the files of a folder that are read; empty: .txt, .jsonl, .parquet or .arrow."""

    def documents(self) -> Iterator[str]:
        for path in self._files():
            for document in _documents(path, self.column):
                try:
                    yield STRIPPERS[self.comments](document)
                except SyntaxError as error:
                    raise PluginError(f"task.corpus.comments: {path} is not {self.comments}: {error.msg}") from error

    def content(self) -> str:
        settings = [VERSIONS[self.comments], self.column, self.comments]

        def read() -> str:
            # Two files with the same bytes differ where one is a table.
            read_as = (part for path in self._files() for part in (*_table(path), _bytes(path)))
            digest = hash_of([*map(str.encode, settings), *read_as])
            self.path.check()
            return digest

        # Gigabytes are not read again: the tokens that were made of them are at hand.
        return remember(f"corpus {self.path.digest} {_table(Path(self.path))} {settings}", read)

    def _files(self) -> list[Path]:
        path = Path(self.path)
        if path.is_file():
            return [path]
        endings = (self.ending,) if self.ending else _SUFFIXES
        files = sorted(entry for entry in path.rglob("*") if entry.name.endswith(endings) and entry.is_file())
        if not files:
            kinds = ", ".join(endings)
            raise PluginError(
                f"task.corpus.path: {self.path.written!r} must be a file, or a folder of files that end in {kinds}"
            )
        return files


def _table(path: Path) -> list[bytes]:
    """Return the kind of a table, whose documents are in a column; empty for a text."""
    return [path.suffix.encode()] if path.suffix in _TABLES else []


def _documents(path: Path, column: str) -> Iterator[str]:
    if path.suffix in (".arrow", ".parquet"):
        yield from _column(path, column)
        return
    try:
        whole = _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PluginError(f"{path}: byte {error.start} is not UTF-8") from error
    if path.suffix != ".jsonl":
        yield whole
        return
    for number, line in enumerate(whole.split("\n"), 1):
        if line.strip():
            yield _entry(line, column, f"{path}:{number}")


def _entry(line: str, column: str, location: str) -> str:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PluginError(f"{location}: this line is not JSON") from error
    if not isinstance(record, dict) or not isinstance(record.get(column), str):
        names = ", ".join(map(str, record)) if isinstance(record, dict) else "no fields at all"
        raise PluginError(f"{location}: the line has no text {column!r}, it has {names}")
    return record[column]


def _column(path: Path, column: str) -> Iterator[str]:
    try:
        import polars
    except ImportError as error:
        raise PluginError(f"{path}: to read a table needs the package polars; pip install polars") from error
    try:
        frame = polars.read_parquet(path) if path.suffix == ".parquet" else polars.read_ipc_stream(path)
    except (OSError, polars.exceptions.PolarsError) as error:
        raise PluginError(f"{path}: this file of {path.suffix[1:]} cannot be read") from error
    if column not in frame.columns or frame[column].dtype != polars.String:
        raise PluginError(f"{path}: the table has no text {column!r}, it has {', '.join(frame.columns)}")
    yield from frame[column].drop_nulls()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PluginError(f"{path}: it cannot be read: {error.strerror}") from error
