"""Words of error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def one_line(text: str) -> str:
    """Return the text, which a user may have written, on one line and without terminal codes."""
    return _CONTROL.sub(" ", text)


_MOST_CHOICES = 40
"""The most choices that an error lists."""


def no_such(what: str, word: str, choices: Iterable[str]) -> str:
    """Return `'modle' is no section, did you mean 'model'? choose one of group, model`."""
    known = list(choices)
    near = difflib.get_close_matches(word, known, n=1)
    hint = f", did you mean {near[0]!r}?" if near else ";"
    others = f" and {len(known) - _MOST_CHOICES} others" if len(known) > _MOST_CHOICES else ""
    listed = ", ".join(known[:_MOST_CHOICES]) + others
    choices_text = f"choose one of {listed}" if known else "there is none"
    return f"{shorten(repr(word))} is no {what}{hint} {choices_text}"


_NAMED = 3
"""Names that `list_some` gives."""


def list_some(names: Sequence[str]) -> str:
    """Join names into a text that lists the first few, such as `a, b, c and 2 more`."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


_NUMBERS = 8
"""Numbers that `shorten_numbers` gives before the last one."""


def shorten_numbers(numbers: Sequence[int]) -> str:
    """Return `3, 4, 5 ... 70`: enough numbers of trials to look at one of them."""
    first = ", ".join(map(str, numbers[:_NUMBERS]))
    return first if len(numbers) <= _NUMBERS else f"{first} ... {numbers[-1]}"


def shorten(text: str, limit: int = 100) -> str:
    """Return `text` on one line, cut to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def shorten_name(name: str, width: int) -> str:
    """Return a name of at most `width` characters."""
    return name if len(name) <= width else f"{name[: width - 1]}…"


def number(value: float) -> str:
    """Return a number for a person: whole ones without a point."""
    return f"{value:.15g}"


def describe_bytes(size: float) -> str:
    """Return a size for a person, such as `3.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
