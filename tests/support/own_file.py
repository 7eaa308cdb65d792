"""The file to which a SQLite study rescues its rows."""

from __future__ import annotations

from pathlib import Path


def rescue_in(text: str) -> Path:
    """Return the file that the line names."""
    return Path(text.partition("all that it held is in ")[2].partition(": ")[0])
