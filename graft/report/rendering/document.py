"""A report before it has a format: a title and blocks of plain text, which formats escape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Heading:
    """The start of a section."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """Running text."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of text. Numbers stand to the right, and so do all columns but the first `labels`."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    folded: bool = False
    """True if a reader opens the long table on demand, where the format can do that."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure. Its number belongs to its subject, whether or not others are left out."""

    number: int
    caption: str
    svg: str
    """An <svg> element; ids in it are unique in the report, and it refers to nothing outside."""


Block = Heading | Paragraph | Table | Picture


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report."""

    title: str
    blocks: Sequence[Block]
