"""Grammar probes: minimal pairs of sentences, of which the grammatical one should be likelier.

Files are in the format of Zorro (Huebner et al. 2021), tests like BLiMP's (Warstadt et al. 2020):
one paradigm a file, two lines a pair. A pair is a run of rows, first those of the good sentence,
then as many of the bad one; each is a question to the model, and a sentence's score comes from all
its rows. Legend: R rows, s positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.files import FilePath
from workers.data.corpora._tokens import Tokens
from workers.data.tasks import Batch
from workers.numerics.tensors import nan_if_not_finite


class Row(NamedTuple):
    """A question about a sentence: the tokens that are read, the right ones, and which count."""

    inputs: Sequence[int]
    targets: Sequence[int]
    scored: Sequence[bool]


Ask = Callable[[Sequence[int], int], Sequence[Row]]
"""Puts a sentence of tokens to a model; the second argument is the token after each document."""


class Pair(NamedTuple):
    """Two sentences that differ in grammar."""

    good: str
    bad: str


class Probes(NamedTuple):
    """The probes of a folder, put to a model in one way."""

    sets: Mapping[str, Batch]
    """Name -> `inputs`, `targets`, `scored` and `lengths`, [R, s] and [R]."""
    rows: int
    """Rows of a pair, a power of two."""
    pairs: int
    """Pairs of all sets together."""
    longest: int
    """Positions s, the same in all sets."""


def next_token(sentence: Sequence[int], end: int) -> Sequence[Row]:
    """Ask for each token after those before it, for the first after the end of a document."""
    return [Row([end, *sentence[:-1]], sentence, [True] * len(sentence))]


def whole(sentence: Sequence[int], end: int) -> Sequence[Row]:
    """Ask for each token with the whole sentence in view: the "holistic" score of BabyBERTa."""
    framed = [end, *sentence, end]
    return [Row(framed, framed, [False, *[True] * len(sentence), False])]


def one_masked(sentence: Sequence[int], end: int) -> Sequence[Row]:
    """Ask for each token behind the mask end + 1: pseudo-log-likelihood (Salazar et al. 2020)."""
    framed = [end, *sentence, end]
    hidden = [[*framed[:at], end + 1, *framed[at + 1 :]] for at in range(1, len(framed) - 1)]
    return [Row(inputs, framed, [token == end + 1 for token in inputs]) for inputs in hidden]


def pairs_of(folder: str | FilePath, *, good_first: bool) -> Mapping[str, Sequence[Pair]]:
    """Return file stem -> the pairs of each .txt file, sorted; empty lines are skipped.

    Raises PluginError, one line, for a folder without such files and for lines that are not pairs.
    """
    files = sorted(Path(folder).glob("*.txt"))
    if not files:
        raise PluginError(f"task.probes: {str(folder)!r} must be a folder with .txt files, two lines a pair")
    return {file.stem: _pairs(file, good_first) for file in files}


def _pairs(file: Path, good_first: bool) -> Sequence[Pair]:
    try:
        lines = [*filter(None, map(str.strip, file.read_text(encoding="utf-8-sig").split("\n")))]
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(f"{file}: this is not a text that can be read") from error
    if not lines or len(lines) % 2:
        raise PluginError(f"{file}: {len(lines)} lines must be pairs, two lines each")
    good, bad = (lines[::2], lines[1::2]) if good_first else (lines[1::2], lines[::2])
    return [Pair(*both) for both in zip(good, bad, strict=True)]


@cache
def probes_of(text: Tokens, folder: FilePath, good_first: bool, ask: Ask) -> Probes:
    """Return the probes of a folder as questions about the tokens of this text.

    Raises PluginError as `pairs_of` does, and for a sentence without a token of this text.
    """
    asked = {
        name: [[ask(_encode_known(text, sentence, name), text.end) for sentence in pair] for pair in pairs]
        for name, pairs in pairs_of(folder, good_first=good_first).items()
    }
    folder.check()  # now that it was read
    questions = [rows for pairs in asked.values() for pair in pairs for rows in pair]
    rows = 1 << (max(map(len, questions)) - 1).bit_length()
    longest = max(len(row.inputs) for rows_of_one in questions for row in rows_of_one)
    sets = {name: _batch(pairs, rows, longest) for name, pairs in asked.items()}
    return Probes(sets, rows=2 * rows, pairs=len(questions) // 2, longest=longest)


def _encode_known(text: Tokens, sentence: str, name: str) -> Sequence[int]:
    tokens = text.encode(sentence)
    if not tokens:
        raise PluginError(f"task.probes: {name}: no token of {sentence!r} is in the vocabulary")
    return tokens


def _batch(pairs: Sequence[Sequence[Sequence[Row]]], rows: int, longest: int) -> Batch:
    """Return the questions as tensors; those that a sentence lacks are its first, not scored."""
    flat: list[Row] = []
    for questions in (questions for pair in pairs for questions in pair):
        blank = questions[0]._replace(scored=[False] * len(questions[0].scored))
        flat += [*questions, *[blank] * (rows - len(questions))]
    return {
        "inputs": torch.tensor([_pad(row.inputs, longest) for row in flat]),
        "targets": torch.tensor([_pad(row.targets, longest) for row in flat]),
        "scored": torch.tensor([_pad(row.scored, longest) for row in flat]).bool(),
        "lengths": torch.tensor([len(row.inputs) for row in flat]),
    }


def _pad(values: Sequence[int], length: int) -> list[int]:
    return [*values, *[0] * (length - len(values))]


def told_right(losses: Tensor, scored: Tensor, rows: int, score: str) -> Tensor:
    """Return 1 [R] for rows of pairs whose good sentence scores higher, else 0, in ties too.

    `losses` [R, s] are negative log-probabilities, counted where `scored`; pairs have `rows` rows.
    """
    assert len(losses) % rows == 0, "sets are evaluated in whole pairs"
    counts = scored.to(losses.dtype)
    sides = torch.stack([(losses * counts).sum(-1), counts.sum(-1)]).unflatten(-1, (-1, 2, rows // 2)).sum(-1)
    losses = sides[0] / sides[1] if score == "mean" else sides[0]  # [pairs, 2]
    right = (losses[:, 0] < losses[:, 1]).to(losses.dtype) + nan_if_not_finite(losses)
    return right[:, None].expand(-1, rows).flatten()
