"""Random games of Othello by split, and pools of different ones on disk. Legend: G games."""

from __future__ import annotations

import functools
from contextlib import suppress

import torch
from torch import Tensor

from workers.data.cached_arrays import Stored, read, write
from workers.data.othello.board import MOVES, Games, play
from workers.numerics.native import cache_folder, library
from workers.numerics.randomness import GOLDEN, Streams, hash_rows, mix

OPENING = 12
"""Number of first moves that decide a game's split; there are some 2 * 10^9 such openings."""
SHARE = 4
"""One opening in this many is for validation."""
_SEED = 60
"""Seed of the sequence of pools, and in their files' names: other games need another."""
_TOGETHER = 1 << 14


def training_games(states: Tensor) -> Games:
    """Return a random game for each of `states` [G], with an opening that is never validated."""
    return _games(states, range(1, SHARE))


def validation_games(states: Tensor) -> Games:
    """Return a random game for each of `states` [G], with an opening that is never trained on."""
    return _games(states, range(1))


def _games(states: Tensor, places: range) -> Games:
    """Return games whose opening's hash has one of these places modulo `SHARE`.

    Word a of a state's stream is the state of the a-th game that is tried, and only its opening is
    played. With a compiler on the CPU for any device: a GPU would start some 25,000 kernels for a
    set of games. On the meta device, where a step's cost is estimated, only the shapes are right.
    """
    device = states.device
    if states.is_meta and type(states) is Tensor:  # a pretended GPU computes
        tokens = torch.zeros(len(states), MOVES, dtype=torch.uint8, device=device)
        return Games(tokens, torch.zeros_like(tokens, dtype=torch.int64))
    states = states.cpu() if library("othello") else states
    accepted, pending = torch.empty_like(states), torch.arange(len(states), device=states.device)
    counter = torch.zeros((), dtype=torch.int64, device=states.device)
    while len(pending):
        counter += GOLDEN
        tried = mix(states[pending] + counter)
        accepted[pending] = tried
        remainder = hash_rows(play(tried, OPENING).tokens.long()) % SHARE
        pending = pending[(remainder < places.start) | (remainder >= places.stop)]
    tokens, legal = play(accepted)
    return Games(tokens.to(device), legal.to(device))


@functools.cache
def pool(games: int, device: torch.device) -> Tensor:
    """Return `games` different training games, always the same, on the device: [G, 60] uint8.

    60 bytes a game, mapped from the cache folder. They are made anew if the file is missing or
    changed, and kept in memory alone if it cannot be written.
    """
    path = cache_folder() / f"othello-{_SEED}-{games}.games"
    stored = read(path)
    if stored is None:
        stored = Stored({}, [_different_games(games).flatten().numpy()])
        with suppress(OSError):  # a home that cannot be written
            write(path, stored)
    return torch.from_numpy(stored.arrays[0]).view(games, MOVES).to(device)


def _different_games(games: int) -> Tensor:
    """Return the first games of a fixed sequence; its next ones replace any that came before."""
    tokens, keys = torch.empty(games, MOVES, dtype=torch.uint8), torch.empty(games, dtype=torch.int64)
    weights = Streams(state=torch.tensor([_SEED])).words(MOVES)[0] | 1  # of a game's hash
    missing, drawn = torch.arange(games), 0
    while len(missing):
        for places in missing.split(_TOGETHER):
            numbers = torch.arange(drawn + 1, drawn + len(places) + 1)
            tokens[places] = training_games(mix(_SEED + numbers * GOLDEN)).tokens
            keys[places] = (tokens[places].long() * weights).sum(-1)
            drawn += len(places)
        ordered, places = keys.sort(stable=True)
        missing = places[1:][ordered[1:] == ordered[:-1]].sort().values  # their keys came before
    return tokens
