"""Seeds as hashes: a pure function of what each belongs to, so that nothing is remembered."""

from __future__ import annotations

GAMMA = 0x9E3779B97F4A7C15
"""The odd constant next to 2^64 divided by the golden ratio: the step of a SplitMix64 stream."""
_WORD = (1 << 64) - 1


def mix64(word: int) -> int:
    """Return a bijection of 64-bit words that separates neighbours; `word` is taken modulo 2^64.

    The finalizer of SplitMix64 (variant 13 of Stafford): `mix64(seed + k * GAMMA)` for k = 1, 2,
    ... is its stream. Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014, and Vigna's reference implementation `splitmix64.c`.
    """
    word &= _WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def stream_word(seed: int, number: int) -> int:
    """Return the 64-bit word of trial `number` in the stream of `seed`."""
    return mix64(mix64(seed) + (number + 1) * GAMMA)


def trial_seed(seed: int, number: int) -> int:
    """Return the 63-bit seed of trial `number` in a search with `seed`."""
    return stream_word(seed + GAMMA, number) >> 1


def evaluation_seed(seed: int) -> int:
    """Return the 63-bit seed of the shared evaluation data of an experiment; no trial's own."""
    return mix64(mix64(seed + 2 * GAMMA)) >> 1
