"""How fast random games of Othello are made, next to a plain loop and to open_spiel; one thread.

    python -m benchmarks.othello [--seconds 2] [--pool 1000000]

All of them draw each move uniformly among the legal ones. `compiled` and `torch` are the two ways of Graft, to the bit
the same games; `numpy` looks along lines from every empty square of one board; `python` has the same bitboards on
Python's integers, game by game; `open_spiel` is its own game played from Python. Prints games/s and how many times
slower than the fastest, then the time to make a pool, with splitting and without repetitions, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyspiel
import torch

from benchmarks.machine import processor
from workers.data.othello.board import play, play_by_torch
from workers.data.othello.games import pool
from workers.engine.machine.process import prepare
from workers.numerics.native import library
from workers.numerics.randomness import Streams

DIRECTIONS = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if row or column]
INNER = 0x7E7E7E7E7E7E7E7E
BITS = [(8, -1), (-8, -1), *((sign * shift, INNER) for shift in (1, 7, 9) for sign in (1, -1))]
WORD = (1 << 64) - 1
GAME = pyspiel.load_game("othello")
PASS = 64


def main() -> None:
    """Time every way of making games, then the pool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="least time spent on each")
    parser.add_argument("--pool", type=int, default=1_000_000, help="games of the pool")
    arguments = parser.parse_args()
    prepare()
    states = Streams(state=torch.tensor([1])).words(1 << 14)[0]
    one_by_one = {"numpy": numpy_game, "python": python_game, "open_spiel": open_spiel_game}
    ways: dict[str, tuple[Callable[[], object], int]] = {"torch": (lambda: play_by_torch(states), len(states))}
    if library("othello"):
        ways = {"compiled": (lambda: play(states), len(states)), **ways}
    ways |= {name: (game, 1) for name, game in one_by_one.items()}
    rates = {name: rate(make, games, arguments.seconds) for name, (make, games) in ways.items()}
    best = max(rates.values())
    for name, speed in rates.items():
        print(f"{name:12} {speed:12,.0f} games/s {best / speed:10.1f}x")
    seconds = seconds_of_pool(arguments.pool)
    print(f"pool of {arguments.pool:,}: {seconds:.1f} s")
    figures = {"games_per_second": {name: round(speed) for name, speed in rates.items()}, "pool_seconds": seconds}
    print(json.dumps({"benchmark": "othello", "processor": processor(), "pool": arguments.pool, **figures}))


def rate(make: Callable[[], object], games: int, seconds: float) -> float:
    """Games by second of processor time."""
    make()
    start, made = time.process_time(), 0
    while time.process_time() - start < seconds:
        make()
        made += games
    return made / (time.process_time() - start)


def seconds_of_pool(games: int) -> float:
    """Processor time to make a pool in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        start = time.process_time()
        pool(games, torch.device("cpu"))
        return round(time.process_time() - start, 2)


# -- one game at a time ----------------------------------------------------------------------------------------------


def open_spiel_game() -> list[int]:
    """Return a game's squares, by open_spiel."""
    state, moves = GAME.new_initial_state(), []
    while not state.is_terminal():
        action = random.choice(state.legal_actions())
        state.apply_action(action)
        if action != PASS:
            moves.append(action)
    return moves


def python_game() -> list[int]:
    """Return a game's squares, by bitboards on Python's integers."""
    player, other, moves, passed = 1 << 28 | 1 << 35, 1 << 27 | 1 << 36, [], False
    while True:
        legal = 0
        for shift, columns in BITS:
            legal |= along(run(player, other & columns, shift), shift)
        squares = [square for square in range(64) if legal & ~(player | other) & WORD & 1 << square]
        if not squares and passed:
            return moves
        passed = not squares
        if squares:
            moves.append(random.choice(squares))
            move, turned = 1 << moves[-1], 0
            for shift, columns in BITS:
                line = run(move, other & columns, shift)
                turned |= line if along(line, shift) & player else 0
            player, other = player | move | turned, other & ~turned
        player, other = other, player


def run(sources: int, through: int, shift: int) -> int:
    """Bits of `through` in lines that begin next to `sources`."""
    bits = through & along(sources, shift)
    for _ in range(5):
        bits |= through & along(bits, shift)
    return bits


def along(bits: int, shift: int) -> int:
    """Bits moved by a number of squares."""
    return bits << shift & WORD if shift > 0 else bits >> -shift


def numpy_game() -> list[int]:
    """Return a game's squares, by a board [8, 8] of discs 1 and -1."""
    board, side, moves, passed = np.zeros((8, 8), dtype=int), 1, [], False
    board[3, 4] = board[4, 3] = 1
    board[3, 3] = board[4, 4] = -1
    while True:
        turned = {(row, column): list(flips(board, side, row, column)) for row, column in np.argwhere(board == 0)}
        legal = [square for square, discs in turned.items() if discs]
        if not legal and passed:
            return moves
        passed = not legal
        if legal:
            row, column = random.choice(legal)
            moves.append(int(8 * row + column))
            for square in [(row, column), *turned[row, column]]:
                board[square] = side
        side = -side


def flips(board: np.ndarray, side: int, row: int, column: int) -> Iterator[tuple[int, int]]:
    """Yield the discs that a move turns over."""
    for down, right in DIRECTIONS:
        line, at = [], (row + down, column + right)
        while 0 <= at[0] < 8 and 0 <= at[1] < 8 and board[at] == -side:
            line.append(at)
            at = at[0] + down, at[1] + right
        if 0 <= at[0] < 8 and 0 <= at[1] < 8 and board[at] == side:
            yield from line


if __name__ == "__main__":
    main()
