"""Words of error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def one_line(text: str) -> str:
    """Return the text without line breaks and without what steers a terminal; users write texts of the database."""
    return _CONTROL.sub(" ", text)


_MOST_CHOICES = 40
"""Of a choice that an error lists."""


def no_such(what: str, word: str, choices: Iterable[str]) -> str:
    """Return `'modle' is no section, did you mean 'model'? choose one of group, model`."""
    known = list(choices)
    near = difflib.get_close_matches(word, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    others = f" and {len(known) - _MOST_CHOICES} others" if len(known) > _MOST_CHOICES else ""
    listed = ", ".join(known[:_MOST_CHOICES]) + others
    choices_text = f"choose one of {listed}" if known else "there is none"
    return f"{shorten(repr(word))} is no {what}{hint} {choices_text}"


def shorten(text: str, limit: int = 100) -> str:
    """Return `text` on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def number(value: float) -> str:
    """Return a number for a person: whole ones without a point."""
    return f"{value:.15g}"
