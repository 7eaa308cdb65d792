"""Random games of Othello on bitboards, the same to the bit in C++ and on every device.

The square in row r and column c is bit 8 r + c of an int64. Without the four in the centre, squares
in ascending order are tokens 1 .. 60; 0 is no move. Black moves first and starts on squares 28 and
35, white on 27 and 36; `own` are the discs of the side to move. A side that cannot move passes,
without a token; a game ends when neither can. Legend: G games, P plies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from workers.numerics.native import address, library
from workers.numerics.randomness import Streams

MOVES = 60
"""Moves of the longest game: one for each square that is not taken at the start."""
SQUARES = [square for square in range(64) if square not in (27, 28, 35, 36)]
"""The square of each token, from token 1 on."""
_BLACK, _WHITE = 1 << 28 | 1 << 35, 1 << 27 | 1 << 36
_EVERYWHERE, _INNER_COLUMNS = -1, 0x7E7E7E7E7E7E7E7E
_DIRECTIONS = [(8, _EVERYWHERE), *((shift, _INNER_COLUMNS) for shift in (1, 7, 9))]
"""Distance of a direction's neighbours, to both sides, and where discs may be turned over."""
_HALVES = [
    (1, 0x5555555555555555),
    (2, 0x3333333333333333),
    (4, 0x0F0F0F0F0F0F0F0F),
    (8, 0x00FF00FF00FF00FF),
    (16, 0x0000FFFF0000FFFF),
    (32, 0x00000000FFFFFFFF),
]
"""Width of half a field, and the lower half of each field."""


class Games(NamedTuple):
    """Random games, and the legal moves before each ply; both are 0 once a game has ended."""

    tokens: Tensor  # [G, P] uint8
    legal: Tensor  # [G, P] int64: bits


class Position(NamedTuple):
    """Boards of any shape, int64."""

    own: Tensor
    other: Tensor
    legal: Tensor


def play(states: Tensor, plies: int = MOVES) -> Games:
    """Play `plies` plies of a game for each of `states` [G], each legal move equally likely.

    Ply p of a game draws word p of the stream with the game's state. In C++ on a CPU with a
    compiler.
    """
    native = library("othello") if states.device.type == "cpu" else None
    if native is None:
        return play_by_torch(states, plies)
    states = states.contiguous()
    tokens = torch.empty(len(states), plies, dtype=torch.uint8)
    legal = torch.empty(len(states), plies, dtype=torch.int64)
    native.othello(ctypes.c_int64(len(states)), ctypes.c_int(plies), *map(address, (states, tokens, legal)))
    return Games(tokens, legal)


def play_by_torch(states: Tensor, plies: int = MOVES) -> Games:
    """Play the same games as `play`, in tensor operations."""
    words = Streams(state=states).words(plies)
    position = start(len(states), states.device)
    token_of = torch.zeros(64, dtype=torch.uint8, device=states.device)
    token_of[SQUARES] = torch.arange(1, MOVES + 1, dtype=torch.uint8, device=states.device)
    tokens, legal = [], []
    for word in words.unbind(1):
        possible = position.legal != 0
        square = _choose(position.legal, word)
        tokens.append(torch.where(possible, token_of[square], 0))
        legal.append(position.legal)
        position = after(position, possible.long() << square)
    return Games(torch.stack(tokens, 1), torch.stack(legal, 1))


def start(games: int, device: torch.device) -> Position:
    """Return the starting position [G], black to move."""
    black, white = (torch.full((games,), discs, device=device) for discs in (_BLACK, _WHITE))
    return Position(black, white, legal_moves(black, white))


def after(position: Position, move: Tensor) -> Position:
    """Return the positions after moves, one bit each; in games that have ended there is no bit."""
    own, other, _ = position
    discs = find_flips(own, other, move)
    own, other = other & ~discs, own | discs | move
    legal = legal_moves(own, other)
    theirs = torch.where(legal == 0, legal_moves(other, own), 0)
    passing = theirs != 0
    return Position(torch.where(passing, other, own), torch.where(passing, own, other), legal | theirs)


def legal_moves(own: Tensor, other: Tensor) -> Tensor:
    """Return the empty squares from which a straight line of `other` leads to a disc of `own`."""
    squares = torch.zeros_like(own)
    for _, behind in _runs(own, other):
        squares |= behind
    return squares & ~(own | other)


def find_flips(own: Tensor, other: Tensor, move: Tensor) -> Tensor:
    """Return the discs of `other` that a move turns over."""
    flips = torch.zeros_like(own)
    for run, behind in _runs(move, other):
        flips |= torch.where(behind & own != 0, run, 0)
    return flips


def _runs(sources: Tensor, discs: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each direction's runs of `discs` next to a bit of `sources`, and the squares behind.

    Runs have up to six discs; by doubling (Kogge and Stone 1973), as chess programs do it.
    """
    for distance, columns in _DIRECTIONS:
        for shift in (distance, -distance):
            through = discs & columns
            run = through & _shift(sources, shift)
            run |= through & _shift(run, shift)
            through = through & _shift(through, shift)
            run |= through & _shift(run, 2 * shift)
            run |= through & _shift(run, 2 * shift)
            yield run, _shift(run, shift)


def _shift(boards: Tensor, shift: int) -> Tensor:
    """Return bits moved up by `shift`, or down, logically, unlike torch's own shift of int64."""
    return boards << shift if shift > 0 else (boards >> -shift) & ((1 << (64 + shift)) - 1)


def _choose(legal: Tensor, word: Tensor) -> Tensor:
    """Return the square of one bit of `legal`, each equally likely; 63 if there is none.

    The upper half of a random word chooses, unevenly by at most one part in 2^32 / 60. Counts bits
    in ever wider fields, then goes down again to the bit of a rank.
    """
    counts = [legal]
    for width, mask in _HALVES:
        counts.append((counts[-1] & mask) + ((counts[-1] >> width) & mask))
    rank = (((word >> 32) & 0xFFFFFFFF) * counts.pop()) >> 32
    square = torch.zeros_like(rank)
    for (width, _), fields in zip(reversed(_HALVES), reversed(counts), strict=True):
        lower = (fields >> square) & ((1 << width) - 1)
        upper = rank >= lower
        rank = torch.where(upper, rank - lower, rank)
        square = square + upper * width
    return square
