"""Data sets of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins import Examples
from spaces.plugins.fields import option, size, text
from workers.data.corpora import Corpus
from workers.data.corpora._code import STRIPPERS, VERSIONS
from workers.data.hashing import hash_of


@dataclass(frozen=True, kw_only=True)
class HuggingFace(Corpus):
    """The first `rows` rows of a data set of the hub; needs a network and the package datasets.

    Those of paper 002: `roneneldan/TinyStories`; `LTCB/enwik8`; `code-search-net/code_search_net`,
    subset `python` or `java`, column `func_code_string`, comments of that language;
    `HuggingFaceFW/fineweb`, subset `sample-10BT`. Tokens are kept by these settings and read
    without a network: name a `revision` if the data set may change. For a folder of this machine
    take `file`, which sees changes.
    """

    EXAMPLES: ClassVar[Examples] = ({"dataset": "roneneldan/TinyStories"},)
    needs_network = True

    dataset: str = text()
    subset: str = text("")
    split: str = text("train")
    column: str = text("text")
    revision: str = text("main")
    rows: int = size(100_000)
    comments: str = option("none", tuple(STRIPPERS))

    def __str__(self) -> str:
        return f"{self.dataset} {self.subset}".rstrip()

    def documents(self) -> Iterator[str]:
        for row in self._rows():
            if not isinstance(row.get(self.column), str):
                raise PluginError(
                    f"task.corpus.column: {self.dataset} has no text {self.column!r}, it has {', '.join(row)}"
                )
            try:
                yield STRIPPERS[self.comments](row[self.column])
            except SyntaxError:
                continue  # Python 2, of which CodeSearchNet has some

    def content(self) -> str:
        if Path(self.dataset).is_dir():  # its tokens would be kept by its name alone
            raise PluginError(
                f"task.corpus.dataset: {self.dataset!r} is a folder of this machine: name it as {{file: {{path: "
                f"{self.dataset}}}}}, so that its changes are noticed"
            )
        return hash_of([VERSIONS[self.comments].encode(), repr(self).encode()])

    def _rows(self) -> Iterator[dict[str, Any]]:
        try:
            datasets: Any = import_module("datasets")
        except ImportError as error:
            raise PluginError("task.corpus: huggingface needs the package datasets; pip install datasets") from error
        try:
            rows: Any = datasets.load_dataset(
                self.dataset, self.subset or None, split=self.split, revision=self.revision, streaming=True
            )
            yield from islice(rows, self.rows)
        except Exception as error:  # whatever the hub's many layers raise where there is no network, or no such name
            reason = shorten(" ".join(str(error).split()) or type(error).__name__, 200)
            raise PluginError(
                f"task.corpus.dataset: {self.dataset!r} cannot be had from the hub, which needs a network: {reason}"
            ) from error
