"""Othello: predict the next move of random games."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.othello.board import MOVES, SQUARES
from workers.data.othello.games import pool, training_games, validation_games
from workers.data.splits import below, fractions
from workers.data.tasks import Batch, SomeTokens
from workers.numerics.randomness import Streams
from workers.numerics.tensors import one_hot

UNIFORM_ILLEGAL = 0.8565
"""TVD, ITP and ITR of a uniform guess among 60 squares: mean of 200,000 games (error 0.00003)."""


@dataclass(frozen=True, kw_only=True)
class Othello(SomeTokens):
    """Random legal games, trained on their first moves and evaluated on all (paper 003, section 6).

    Each move is uniform among the legal ones. A game is the list of its squares: tokens 1 .. 60 are
    the squares in ascending order without the four in the centre; a pass has no token, and token 0
    follows the end of a game. Every prefix predicts the next move, from the second on. (Li et al.
    2023, "Emergent world representations", and its code; 1 % of the games have fewer than 60
    moves.)

    Training reads the first `length` moves s and predicts those after each; validation reads 59, so
    that the generalisation gap is 59 - s. A hash of a game's first 12 moves decides whether it is
    for training or validation: no game that is evaluated begins as one that was trained on.

    `games`: 0 draws fresh games at every step, as in the paper's one epoch of 10,000,000. A number:
    as many different ones, the same for all trials, drawn with replacement, made once (a million in
    2 s, 20 without a compiler) and kept on disk, 60 bytes each.
    """

    length: int = size(MOVES - 1, high=MOVES - 1)
    games: int = size(0, low=0, high=100_000_000)

    @property
    def tokens(self) -> int:
        return MOVES + 1

    @property
    def context(self) -> int:
        return self.length

    @property
    def longest(self) -> int:
        return MOVES - 1

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        moves = self._moves(streams, batch)[..., : self.length + 1].long()
        return {"inputs": moves[..., :-1], "targets": moves[..., 1:]}

    def _moves(self, streams: Streams, batch: int) -> Tensor:
        """Return games [L, N, 60] uint8."""
        if self.games:
            chosen = below(fractions(streams, batch), self.games)
            return pool(self.games, chosen.device)[chosen]
        games = training_games(streams.words(batch).flatten())
        return games.tokens.view(streams.lanes, batch, MOVES)

    def validation(self, streams: Streams, batch: int) -> Batch:
        """Return `inputs` [L, N, 59], and the next legal moves as bits, `legal` [L, N, 59]."""
        games = validation_games(streams.words(batch).flatten())
        tokens, legal = (part.view(streams.lanes, batch, MOVES) for part in games)
        return {"inputs": tokens[..., :-1].long(), "legal": legal[..., 1:]}

    def trained_positions(self, batch: Batch) -> Tensor:
        return batch["targets"] != 0  # no move follows where a game has ended

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return TVD, ITP, ITR (paper 003, eq. 16-18), averaged over prefixes with a legal move.

        The truth is uniform over legal moves; token 0 is illegal. The lowest of equal logits
        counts.
        """
        squares = torch.tensor(SQUARES, device=outputs.device)
        legal = ((batch["legal"][..., None] >> squares) & 1).to(outputs.dtype)
        legal = torch.nn.functional.pad(legal, (1, 0))  # [N, s, v]
        count = legal.sum(-1)
        going_on = (count > 0).to(outputs.dtype)
        probabilities = outputs.softmax(-1)
        exact = legal / count.clamp(min=1)[..., None]
        best = one_hot(outputs.argmax(-1), self.tokens, outputs.dtype)
        values = {
            "tvd": 0.5 * (probabilities - exact).abs().sum(-1),
            "itp": (probabilities * (1 - legal)).sum(-1),
            "itr": (best * (1 - legal)).sum(-1),
        }
        return {name: (scores * going_on).sum(-1) / going_on.sum(-1) for name, scores in values.items()}

    def facts(self) -> Params:
        return {"generalisation_gap": MOVES - 1 - self.length, "chance": UNIFORM_ILLEGAL}
