"""A corpus: documents that language tasks are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spaces.plugins.fields import size
from workers.data.corpora import Corpus


@dataclass(frozen=True, kw_only=True)
class Example(Corpus):
    """Lines that count upwards, each a document of its own."""

    lines: int = size(200)

    def documents(self) -> Iterator[str]:
        for first in range(self.lines):
            yield f"{first} {first + 1} {first + 2}\n"
