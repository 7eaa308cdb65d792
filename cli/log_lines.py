"""The lines on stderr: text for people, or JSON objects for programs that collect logs."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import NoReturn, TextIO, final

import typer

from cli.options import INTERRUPTED, OptionError
from graft.launching.process.watcher import LOG_VARIABLE as VARIABLE

FORMATS = ("text", "json")
_LEVELS = {"error: ": "error", "warning: ": "warning", "note: ": "info"}
"""The start of a line for people -> its level; every other line is `info`."""


def choose_format(form: str) -> str:
    """Set the format of all further lines, also in the processes that this one starts."""
    if form not in FORMATS:
        raise OptionError(f"--log-format: {form!r} must be one of {', '.join(FORMATS)}")
    if form == "json" and not isinstance(sys.stderr, JsonLines):
        os.environ[VARIABLE] = form
        sys.stderr = JsonLines(sys.stderr)
        handler = _JsonHandler()
        logging.getLogger().addHandler(handler)  # replaces Python's own, which writes only text
    return form


def say(line: str) -> None:
    """Write a line to stderr, where a terminal may have been closed by now."""
    with suppress(OSError):
        typer.echo(line, err=True)


def leave(line: str) -> NoReturn:
    """Write a line to stderr and end the process now.

    Nothing is waited for: a worker's long step, a database or a disk that hangs. Like a kill, that
    loses nothing that was recorded. An ordinary exit could abort inside torch.
    """
    text = _as_json(line) if isinstance(sys.stderr, JsonLines) else line
    with suppress(OSError):
        os.write(2, f"{text}\n".encode())
    os._exit(INTERRUPTED)


@final
class JsonLines(io.TextIOBase):
    """Writes each line as an object of `time` in UTC, `level` and `message`; an object stays."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._part = ""
        """The beginning of a line that has no end yet."""

    def write(self, text: str) -> int:
        *lines, self._part = (self._part + text).split("\n")
        for line in filter(str.strip, lines):
            self._stream.write(f"{_as_json(line)}\n")
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        """Return False: rich draws no progress bar into a log."""
        return False

    def fileno(self) -> int:
        return self._stream.fileno()


@final
class _JsonHandler(logging.Handler):
    """Writes log records with their level and the logger's name."""

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        print(_as_json(text, level=record.levelname.lower(), logger=record.name), file=sys.stderr, flush=True)


def _as_json(text: str, **fields: str) -> str:
    if text.startswith("{"):
        with suppress(ValueError):
            if isinstance(json.loads(text), dict):
                return text
    start = next((start for start in _LEVELS if text.startswith(start)), "")
    level, text = _LEVELS.get(start, "info"), text.removeprefix(start)
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": time, "level": level, "message": text, **fields}, ensure_ascii=False)
