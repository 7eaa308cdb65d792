"""Whole numbers of a lane's stream, and examples of one split by construction. L: lanes."""

from __future__ import annotations

import math
from enum import Enum

import torch
from torch import Tensor

from workers.numerics.randomness import Streams, hash_rows


class Split(Enum):
    """A part of all examples; no example belongs to two parts."""

    TRAINING = "training"
    VALIDATION = "validation"
    TEST = "test"


SHARE = 16
"""One example in this many belongs to the validation split, and one to the test split."""


def fractions(streams: Streams, *shape: int) -> Tensor:
    """Draw numerators of fractions of 2^32, uniform int64 [L, *shape], two out of each word."""
    count = math.prod(shape)
    halves = streams.words(-(-count // 2)).view(torch.int32).long().bitwise_and_(0xFFFFFFFF)
    return halves[:, :count].view(streams.lanes, *shape)


def below(fraction: Tensor, size: int | Tensor) -> Tensor:
    """Return a fraction's place among `size` equal parts, uneven by at most size / 2^32."""
    return (fraction * size) >> 32


def split_pair(pair: Tensor, size: int) -> Tensor:
    """Return the two numbers [..., 2] below `size` that a number [...] stands for."""
    return torch.stack([pair // size, pair % size], -1)


def draw_in_split(fraction: Tensor, rest: Tensor, size: int, split: Split) -> Tensor:
    """Draw one coordinate of an example, in 0 .. size - 1, that puts the example into `split`.

    `rest` [..., n] is all else of the example, `fraction` [...] a uniform number, `size` at least
    16. The distance of this coordinate from the hash of the rest, modulo `size`, decides the split.
    So the splits are disjoint, held-out examples are spread evenly, nothing is drawn twice, and the
    coordinate alone says nothing about the split.
    """
    share = size // SHARE
    starts = {Split.VALIDATION: (0, share), Split.TEST: (share, share), Split.TRAINING: (2 * share, size - 2 * share)}
    start, count = starts[split]
    return (start + below(fraction, count) + hash_rows(rest)) % size
