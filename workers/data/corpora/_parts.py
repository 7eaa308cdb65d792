"""The parts of a corpus: one is trained on, two are held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workers.data.splits import SHARE, Split

LONGEST = 20_000
"""Characters of the longest piece, which is trained on without a gap, or held out without one."""
LEAST_PIECES = 20 * SHARE
"""Least number of pieces, so that each part of a short corpus has some."""


def pieces(documents: Sequence[str]) -> Iterator[str]:
    """Yield the documents in their order, long ones in stretches of equal length."""
    longest = max(1, min(LONGEST, sum(map(len, documents)) // LEAST_PIECES))
    for document in documents:
        for start in range(0, len(document), longest):
            yield document[start : start + longest]


def parts(documents: Sequence[str]) -> Mapping[Split, Sequence[str]]:
    """Return the pieces of each part: one in 16 for validation, one for test, spread evenly."""
    texts: dict[Split, list[str]] = {split: [] for split in Split}
    for number, piece in enumerate(pieces(documents)):
        texts[split_of(number)].append(piece)
    return texts


def split_of(number: int) -> Split:
    """Return the part that the piece with this number, from 0 on, belongs to."""
    remainder = number % SHARE
    return {SHARE // 2: Split.VALIDATION, SHARE - 1: Split.TEST}.get(remainder, Split.TRAINING)
