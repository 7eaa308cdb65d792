"""Python: the standard library's source."""

from __future__ import annotations

import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from spaces.plugins.digests import Selection
from spaces.plugins.files import STANDARD_LIBRARY, Read
from workers.data.corpora import Corpus
from workers.data.corpora._code import VERSIONS, without_python_comments
from workers.data.hashing import hash_of

_MODULES = Selection(
    (".py",), frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
)


@dataclass(frozen=True, kw_only=True)
class Python(Corpus):
    """The source of Python's standard library, without tests, comments and docstrings: about 8 MB.

    It differs from one version of Python to the next. Comments go "to focus exclusively on code"
    (paper 002, Table 2). Needs no network.
    """

    READS: ClassVar = (Read(STANDARD_LIBRARY, _MODULES),)

    def documents(self) -> Iterator[str]:
        for path in _modules():
            try:
                with tokenize.open(path) as file:
                    yield without_python_comments(file.read())
            except (SyntaxError, UnicodeDecodeError):
                continue  # not a module of this Python

    def content(self) -> str:
        return hash_of([VERSIONS["python"].encode(), *(path.read_bytes() for path in _modules())])


def _modules() -> list[Path]:
    return _MODULES.list(Path(sysconfig.get_paths()["stdlib"]))
