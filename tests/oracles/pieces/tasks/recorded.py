"""Tasks whose data comes beside a script, in a file of numpy arrays.

`batches/inputs` and the like [steps, N, ...]: the training batches of all steps, or in their place what batches are
drawn from: `pool` (games), or `training`, `validation` and `test` (the tokens of a corpus).
`CONDITION/inputs` and the like: the sets that a model is evaluated on; `validation/...` is the validation set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.oracles.pieces.parameters import Batch
from tests.oracles.pieces.streams import Integers, Words, below, draw_fractions, draw_permutations, mix
from tests.oracles.pieces.tasks.completion import judge_whole
from tests.oracles.pieces.tasks.task import Task, average_distances, divide_losses, not_finite

DATA: dict[str, NDArray[Any]] = {}
"""The arrays of the file."""


def read_data() -> Mapping[str, NDArray[Any]]:
    """Return the arrays of the file."""
    return DATA


def to_tensor(array: NDArray[Any]) -> Tensor:
    """Tokens as int64, flags as they are."""
    return torch.from_numpy(array if array.dtype == bool else array.astype(np.int64))


def read_sets() -> dict[str, Batch]:
    """Condition -> set."""
    sets: dict[str, Batch] = {}
    for key, array in read_data().items():
        condition, _, name = key.rpartition("/")
        if condition and condition != "batches":
            sets.setdefault(condition, {})[name] = to_tensor(array)
    return sets


class Recorded(Task):
    """Batches of all steps, and all sets, as they are."""

    @property
    def longest(self) -> int:
        return read_data()["validation/inputs"].shape[1]

    def training(self, stream: Words, count: int, step: int) -> Batch:
        rows = {key: array[step] for key, array in read_data().items() if key.startswith("batches/")}
        return {key.removeprefix("batches/"): to_tensor(array) for key, array in rows.items()}

    def validation(self, stream: Words, count: int) -> Batch:
        return read_sets()["validation"]

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        return {condition: batch for condition, batch in read_sets().items() if condition != "validation"}


@dataclass(kw_only=True)
class ClrsTextTask(Recorded):
    """An algorithm's input and output as text, of 48 characters, a separator and padding."""

    algorithm: str
    smallest: int
    largest: int
    farthest: int
    stride: int
    hints: bool

    def __post_init__(self) -> None:
        self.tokens = 50

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return divide_losses(outputs, batch["targets"])[batch["wanted"]].mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        wanted = batch["wanted"].to(outputs.dtype)
        right = (outputs.argmax(-1) == batch["targets"]).to(outputs.dtype) + not_finite(outputs)
        return {
            "accuracy": judge_whole(outputs, batch),
            "token_accuracy": (right * wanted).sum(1) / wanted.sum(1),
        }


@dataclass(kw_only=True)
class OthelloTask(Recorded):
    """The next move of random games; token 0 follows where a game has ended, 1 .. 60 are squares without the centre."""

    length: int
    games: int

    def __post_init__(self) -> None:
        self.tokens = 61

    def training(self, stream: Words, count: int, step: int) -> Batch:
        if not self.games:
            return super().training(stream, count, step)
        chosen = below(draw_fractions(stream, count), self.games)
        moves = to_tensor(read_data()["pool"][chosen, : self.length + 1])
        return {"inputs": moves[:, :-1], "targets": moves[:, 1:]}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return divide_losses(outputs, batch["targets"])[batch["targets"] != 0].mean()

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Over the positions where a move is legal; bit 8 r + c of `legal` is the square in row r and column c."""
        squares = torch.tensor([square for square in range(64) if square not in (27, 28, 35, 36)])
        legal = (batch["legal"][..., None] >> squares) & 1
        legal = torch.cat([torch.zeros_like(legal[..., :1]), legal], -1)
        return average_distances(outputs, legal, legal.sum(-1) > 0)


@dataclass(kw_only=True)
class Corpus(Task):
    """Windows of a corpus; token v follows each document, and v + 1, where there is one, is the mask."""

    corpus: Any
    tokenizer: Any
    length: int
    rare: int
    lower_case: bool
    probes: str
    good_first: bool
    probe_score: str

    def __post_init__(self) -> None:
        data = read_data()
        self.end = int(data["end"])
        self.probe_sets = {name: batch for name, batch in read_sets().items() if name.startswith("probe=")}
        self.rows = int(data["rows of a pair"])

    @property
    def evaluated_together(self) -> int:
        return self.rows

    @property
    def longest(self) -> int:
        return max(self.length, *(batch["inputs"].shape[1] for batch in self.probe_sets.values()), 0)

    def ask(self, windows: Tensor, stream: Words) -> Batch:
        """Return what is asked about windows [N, s + 1]; what else is random comes from the stream."""
        raise NotImplementedError

    def metric_positions(self, batch: Batch) -> Tensor:
        """[N, s] the positions that metrics are taken over."""
        raise NotImplementedError

    def training(self, stream: Words, count: int, step: int) -> Batch:
        places = len(read_data()["training"]) - self.length
        return self._windows("training", below(draw_fractions(stream, count), places), stream)

    def training_part(self, stream: Words, count: int, one_in: int, *, held_out: bool) -> Batch:
        """Windows of the last documents, one in so many by size, or of the others."""
        tokens = read_data()["training"]
        before = len(tokens) - len(tokens) // one_in
        edge = int(np.flatnonzero(tokens[:before] == self.end)[-1]) + 1
        first, last = (edge, len(tokens)) if held_out else (0, edge)
        return self._windows(
            "training", first + below(draw_fractions(stream, count), last - first - self.length), stream
        )

    def validation(self, stream: Words, count: int) -> Batch:
        return self._spread("validation", stream, count)

    def shifted_sets(self, stream: Words, count: int) -> Mapping[str, Batch]:
        return {"test": self._spread("test", stream, count), **self.probe_sets}

    def _spread(self, part: str, stream: Words, count: int) -> Batch:
        """Windows spread evenly over a part."""
        last = len(read_data()[part]) - self.length - 1
        return self._windows(part, np.arange(count) * last // max(count - 1, 1), stream)

    def _windows(self, part: str, starts: Integers, stream: Words) -> Batch:
        tokens = read_data()[part][starts[:, None] + np.arange(self.length + 1)]
        return self.ask(to_tensor(tokens), mix(stream + np.uint64(1)))

    def metrics(self, outputs: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        losses = divide_losses(outputs, batch["targets"])
        if "scored" in batch:
            return {"accuracy": self._tell(losses, batch["scored"])}
        counted = self.metric_positions(batch).to(losses.dtype)
        right = (outputs.argmax(-1) == batch["targets"]).to(losses.dtype) + not_finite(outputs)
        return {
            "nll": (losses * counted).sum(1) / counted.sum(1),
            "accuracy": (right * counted).sum(1) / counted.sum(1),
        }

    def _tell(self, losses: Tensor, scored: Tensor) -> Tensor:
        """Return for each row of a pair whether the good sentence's before the bad one's is the more likely."""
        shape = (-1, 2, self.rows // 2 * losses.shape[1])
        total, count = (losses * scored).reshape(shape).sum(-1), scored.reshape(shape).sum(-1)
        score = total / count if self.probe_score == "mean" else total
        right = (score[:, 0] < score[:, 1]).to(losses.dtype) + not_finite(score)
        return right.repeat_interleave(self.rows)

    def summarize(self, means: Mapping[str, float]) -> Mapping[str, float]:
        if "nll" not in means:
            return means
        return {**means, "perplexity": exp(means["nll"]) if means["nll"] <= 700 else inf}


@dataclass(kw_only=True)
class LanguageTask(Corpus):
    """The next token; evaluated on the second half of a window."""

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.end + 1

    def ask(self, windows: Tensor, stream: Words) -> Batch:
        return {"inputs": windows[:, :-1], "targets": windows[:, 1:]}

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return divide_losses(outputs, batch["targets"]).mean()

    def metric_positions(self, batch: Batch) -> Tensor:
        length = batch["targets"].shape[1]
        return (torch.arange(length) >= length // 2).expand(batch["targets"].shape)


@dataclass(kw_only=True)
class MaskedLanguageTask(Corpus):
    """What stood where tokens are hidden (Devlin et al. 2019, section 3.1)."""

    share: float
    leave_unmasked: float
    random: float
    probe_way: str

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.end + 2

    def ask(self, windows: Tensor, stream: Words) -> Batch:
        targets = windows[:, 1:].numpy()
        rows, length = targets.shape
        drawn = draw_fractions(stream, rows, 1 + 2 * length)
        unit = drawn / 2**32
        count = np.clip(np.floor(self.share * length + unit[:, :1]), 1, length)
        with np.errstate(over="ignore"):
            order = draw_permutations(stream + np.uint64(1), rows, length, length)
        wanted, fate = order < count, unit[:, 1 : 1 + length]
        shown = np.where(fate < self.random, below(drawn[:, 1 + length :], self.end), self.end + 1)
        shown = np.where(fate >= 1 - self.leave_unmasked, targets, shown)
        return {
            "inputs": torch.from_numpy(np.where(wanted, shown, targets)),
            "targets": torch.from_numpy(targets),
            "wanted": torch.from_numpy(wanted),
        }

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return divide_losses(outputs, batch["targets"])[batch["wanted"]].mean()

    def metric_positions(self, batch: Batch) -> Tensor:
        return batch["wanted"]
