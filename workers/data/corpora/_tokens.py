"""A corpus as tokens, for windows. Legend: v tokens that are kept, n tokens of a part."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import canonical_json, files_of
from spaces.plugins.digests import DIGITS, Data, FileState
from spaces.plugins.files import files_read
from workers.data.cached_arrays import Stored, digest_of, read, write
from workers.data.corpora import Corpus
from workers.data.corpora._parts import LEAST_PIECES, LONGEST, parts
from workers.data.hashing import hash_of
from workers.data.splits import Split
from workers.data.tokenizers import Encoder, HasFile, Tokenizer
from workers.numerics.native import cache_folder

_VERSION = 1
"""Goes up when the same corpus and settings give other tokens."""
_LOWERED = "each character"
"""Another text when `lowered` gives other texts, so that tokens of lowered texts are made anew."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The corpus and the settings that tokens are made from."""

    corpus: Corpus
    tokenizer: Tokenizer
    rare: int
    """Tokens with fewer occurrences in the training part are dropped."""
    lower_case: bool
    installed: tuple[str, ...] = ()
    """Digests of the files of the installation that the corpus reads, as the study has them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokens:
    """The parts of a corpus as arrays of tokens 0 .. v - 1, and v after each piece (`_parts`)."""

    source: Source
    content: str
    """A hash of the corpus and of the settings."""
    stored: Stored

    @property
    def end(self) -> int:
        """The token v, which follows each piece; it is never dropped."""
        return len(self.kept)

    @property
    def counts(self) -> Sequence[int]:
        """[v + 1] occurrences in the training part."""
        return self.stored.notes["counts"]

    @property
    def sizes(self) -> Mapping[Split, int]:
        """Tokens of each part."""
        return dict(zip(Split, map(len, self.stored.arrays), strict=True))

    def part(self, split: Split, device: torch.device) -> Tensor:
        """Return a part's tokens [n], integers, on a CPU from the disk when they are read."""
        numbers = dict(zip(Split, self.stored.arrays, strict=True))[split]
        return torch.from_numpy(numbers) if device.type == "cpu" else _on(device, self, split)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, dropped ones left out."""
        text = lowered(text) if self.source.lower_case else text
        return [self._places[token] for token in self.encoder.encode(text) if token in self._places]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens below v."""
        return self.encoder.decode([self.kept[token] for token in tokens])

    def file(self) -> tuple[str, str] | None:
        """Return a tokenizer.json that reads texts as the task does, and the name of its last token.

        It lowers texts where the task does, and has the encoder's tokens, dropped ones too; the
        last token is the end of a text. None if the tokenizer has no such file.
        """
        if not isinstance(self.encoder, HasFile):
            return None
        text, end = self.encoder.file()
        if not self.source.lower_case:
            return text, end
        tokenizer = json.loads(text)
        steps = [{"type": "Lowercase"}]
        steps += [tokenizer["normalizer"]] if tokenizer.get("normalizer") else []
        tokenizer["normalizer"] = {"type": "Sequence", "normalizers": steps}
        return json.dumps(tokenizer, ensure_ascii=False), end

    @cached_property
    def data(self) -> Data:
        """The digest and the size of tokens whose text is in no file."""
        size = sum(array.nbytes for array in self.stored.arrays)
        return Data(path="", state=FileState(digest_of(self.stored)[:DIGITS], size, 0))

    @cached_property
    def dropped(self) -> float:
        """The share of the training part's tokens that were too rare."""
        dropped = self.stored.notes["dropped"]
        return dropped / (dropped + sum(self.counts))

    @cached_property
    def most_frequent(self) -> float:
        """The share of the most frequent token in the training part."""
        return max(self.counts) / sum(self.counts)

    @cached_property
    def unigram_perplexity(self) -> float:
        """The perplexity of the training part if only tokens' frequencies are known."""
        total = sum(self.counts)
        return math.exp(-sum(count / total * math.log(count / total) for count in self.counts if count))

    @property
    def kept(self) -> Sequence[int]:
        """[v] the encoder's number of each token."""
        return self.stored.notes["kept"]

    @cached_property
    def encoder(self) -> Encoder:
        """The tokenizer after the training part; it knows dropped tokens too."""
        return self.source.tokenizer.encoder(self.stored.notes["learned"])

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {token: index for index, token in enumerate(self.kept)}


def lowered(text: str) -> str:
    """Return a text in lower case, each character by itself, as a written tokenizer lowers it."""
    # Python's own knows a Greek word's last sigma.
    return text.replace("Σ", "σ").lower()


@cache
def tokens_of(source: Source) -> Tokens:
    """Return the tokens of a source, from the cache (`~/.cache/graft`) if they were made before.

    Raises PluginError, one line, if the corpus is missing, has no text or no token that is frequent
    enough, or if its files differ from those of the study.
    """
    case = _LOWERED if source.lower_case else False
    settings = [_VERSION, LONGEST, LEAST_PIECES, source.tokenizer.content(), source.rare, case]
    content = hash_of([source.corpus.content().encode(), canonical_json(settings).encode()])
    for file in files_read(source.corpus):
        file.check()
    path = cache_folder() / "corpora" / f"{content[:32]}.tokens"
    stored = read(path)
    if stored is None:
        stored = _make(source)
        for file in (*files_of(source.corpus), *files_of(source.tokenizer)):
            file.check()  # now that it was read: a change on the way is noticed, too
        with suppress(OSError):  # a home that cannot be written: it is made anew next time
            write(path, stored)
            stored = read(path) or stored
    return Tokens(source=source, content=content, stored=stored)


@cache
def edge_of(tokens: Tokens, one_in: int) -> int:
    """Return where the last one in `one_in` of the training part's tokens begins.

    Moved back to the end of a piece; 0 if no piece ends before.
    """
    numbers = tokens.part(Split.TRAINING, torch.device("cpu")).numpy()
    before = len(numbers) - len(numbers) // one_in
    ends = np.flatnonzero(numbers[:before] == tokens.end)
    return int(ends[-1]) + 1 if len(ends) else 0


@cache
def _on(device: torch.device, tokens: Tokens, split: Split) -> Tensor:
    """Return a part as int32, which every device can index."""
    numbers = tokens.part(split, torch.device("cpu")).numpy()
    return torch.from_numpy(numbers.astype(np.int32)).to(device)


def _make(source: Source) -> Stored:
    documents = filter(None, source.corpus.documents())
    pieces = parts([lowered(text) if source.lower_case else text for text in documents])
    if not pieces[Split.TEST]:
        raise PluginError("task.corpus: it has too little text to be cut into training, validation and test")
    learned = source.tokenizer.learn(pieces[Split.TRAINING])
    encoder = source.tokenizer.encoder(learned)
    end = encoder.size
    raw = {
        split: np.concatenate([np.array([*encoder.encode(piece), end], dtype=np.uint32) for piece in texts])
        for split, texts in pieces.items()
    }
    counts = np.bincount(raw[Split.TRAINING], minlength=end + 1)
    kept = np.flatnonzero(counts[:end] >= source.rare)
    if not len(kept):
        most = counts[:end].max()
        raise PluginError(f"task.rare: {source.rare} leaves no token, the most frequent one occurs {most} times")
    known = np.append(kept, end)
    places = np.full(end + 1, -1)
    places[known] = np.arange(len(known))
    notes = {
        "learned": learned,
        "kept": kept.tolist(),
        "counts": counts[known].tolist(),
        "dropped": int(counts.sum() - counts[known].sum()),
    }
    narrow = np.uint16 if len(known) <= 1 << 16 else np.uint32
    renumbered = (places[numbers] for numbers in raw.values())
    return Stored(notes, [part[part >= 0].astype(narrow) for part in renumbered])
