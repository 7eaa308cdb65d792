"""Children's stories, made up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar

from spaces.plugins import Examples
from spaces.plugins.fields import size
from spaces.plugins.files import PACKAGE, Read
from workers.data.corpora import Corpus, _stories
from workers.data.hashing import hash_of

VERSION = "1"
"""Version of the code here; the content has the text of the grammar in `_stories` beside it."""


@dataclass(frozen=True, kw_only=True)
class Stories(Corpus):
    """Stories for children out of a grammar of templates, of `words` words or a few more.

    They are like those of TinyStories (Eldan and Li 2023): few words, simple sentences, a hero, a
    friend, a thing and a place that stay the same throughout a story, and a good end. The same
    `seed` gives the same stories; more words add stories to the end. Needs no network.
    """

    EXAMPLES: ClassVar[Examples] = ({"words": 2000},)

    READS: ClassVar = (Read(f"{PACKAGE}workers/data/corpora/_stories.py"),)

    words: int = size(500_000)
    seed: int = size(0, low=0)

    def documents(self) -> Iterator[str]:
        made = 0
        for number in count():
            text = _stories.story(Random(f"{self.seed} {number}"))
            yield text
            made += len(text.split())
            if made >= self.words:
                return

    def content(self) -> str:
        return hash_of([VERSION.encode(), repr(self).encode(), Path(_stories.__file__).read_bytes()])
