"""Random numbers without a generator's state: word i of a stream is a hash of the stream and i.

The hash is SplitMix64's finalizer (Steele, Lea, Flood 2014); a stream is a hash of seed, purpose, site and step.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# What a stream is for.
INITIAL, TRAINING_DATA, VALIDATION_DATA, DROPOUT = 1, 2, 3, 4


def mix(words: Words) -> Words:
    """Return the hash of each 64-bit word; products and sums are modulo 2^64."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return words ^ (words >> np.uint64(31))


def open_stream(seed: int, purpose: int, step: int, site: int = 0) -> Words:
    """Return the stream of a seed for a purpose at a step; sites tell several of one purpose apart."""
    with np.errstate(over="ignore"):
        tagged = mix(np.array(seed, np.uint64) + np.array(purpose + 256 * site, np.uint64) * GOLDEN)
        return mix(tagged + np.array(step, np.uint64) * GOLDEN)


def draw_words(stream: Words, count: int) -> Words:
    """[..., count] words of a stream, or of each of several [...]."""
    with np.errstate(over="ignore"):
        return mix(np.asarray(stream)[..., None] + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN)


def draw_uniform(stream: Words, *shape: int) -> Floats:
    """Uniform on (0, 1), from the upper 53 bits of a word each."""
    words = draw_words(stream, prod(shape)) >> np.uint64(11)
    return ((words.astype(np.float64) + 0.5) * 2.0**-53).reshape(shape)


def draw_normal(stream: Words, *shape: int) -> Floats:
    """Return standard normal, by inversion."""
    return torch.special.ndtri(torch.from_numpy(draw_uniform(stream, *shape))).numpy()


def draw_fractions(stream: Words, *shape: int) -> Integers:
    """Uniform on 0 .. 2^32 - 1: two out of each word, the lower half first; [..., *shape] of streams [...]."""
    count = prod(shape)
    halves = draw_words(stream, -(-count // 2)).view(np.uint32)[..., :count].astype(np.int64)
    return halves.reshape(*np.shape(stream), *shape)


def draw_permutations(stream: Words, rows: int, size: int, length: int) -> Integers:
    """[rows, length]: the first entries of permutations of 0 .. size - 1, the order of `size` signed words each."""
    keys = draw_words(stream, rows * size).view(np.int64).reshape(rows, size)
    return keys.argsort(axis=-1)[:, :length]


def below(fraction: Integers, size: int | Integers) -> Integers:
    """Fractions of 2^32 as whole numbers 0 .. size - 1."""
    return (fraction * size) >> 32


def hash_rows(numbers: Integers) -> Integers:
    """[...] a hash in 0 .. 2^31 - 1 of each row of `numbers` [..., n]."""
    with np.errstate(over="ignore"):
        weights = mix(np.arange(1, numbers.shape[-1] + 1, dtype=np.uint64) * GOLDEN) | np.uint64(1)
        total = (numbers.astype(np.uint64) * weights).sum(-1, dtype=np.uint64)
    return (mix(total) >> np.uint64(33)).astype(np.int64)


def draw_in_split(fraction: Integers, rest: Integers, size: int, split: str) -> Integers:
    """One number, 0 .. size - 1, of an example that belongs to `split`; `rest` [..., n] is all else of the example.

    The distance of this number from the hash of the rest, modulo `size`, decides: the first sixteenth is validation,
    the second is test, all else training.
    """
    share = size // 16
    first, last = {"validation": (0, share), "test": (share, 2 * share), "training": (2 * share, size)}[split]
    return (first + below(fraction, last - first) + hash_rows(rest)) % size


def keep_mask(stream: Words, rate: float, shape: tuple[int, ...]) -> torch.Tensor:
    """Return False where dropout drops: a byte of the stream is below 256 rate, rounded at random by the first word."""
    threshold = int(256 * rate + draw_uniform(stream, 1)[0])
    count = prod(shape)
    drawn = draw_words(stream, 1 - (-count // 8))[1:].view(np.uint8)[:count]
    return torch.from_numpy(drawn >= threshold).reshape(shape)
