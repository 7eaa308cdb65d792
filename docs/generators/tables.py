"""Markdown that several pages need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows]]


def code(value: object) -> str:
    """Return a value as inline code, as YAML writes it; nothing for an empty text."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Text on one line, in which what stands between backticks is code and no other character has a meaning."""
    parts = " ".join(text.split()).split("`")
    return "".join(f"`{part}`" if position % 2 else _escaped(part) for position, part in enumerate(parts))


def sentence(text: str) -> str:
    """Text that begins with a capital letter and ends with a full stop."""
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _escaped(text: str) -> str:
    marked = "".join(f"\\{character}" if character in "\\*_[]" else character for character in text)
    return marked.replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")
