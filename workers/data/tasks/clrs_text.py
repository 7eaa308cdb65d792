"""CLRS-Text: the inputs and answers of a textbook's algorithms, written out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import flag, option, size
from spaces.records import Params
from workers.data.clrs.algorithms import Algorithm, Parts, Piece, Trace, Traced
from workers.data.clrs.catalogue import ALGORITHMS
from workers.data.clrs.random_graphs import BITS
from workers.data.clrs.writing import ALPHABET, compact, encode, write
from workers.data.splits import Split, below, fractions
from workers.data.tasks import Batch
from workers.data.tasks._completion import Completion, Examples
from workers.numerics.randomness import Purpose, Streams


@dataclass(frozen=True, kw_only=True)
class ClrsText(Completion):
    r"""An algorithm's input and output as text, a token a character; evaluated on larger inputs.

    "insertion_sort:\nkey: [0.548 0.715 0.602 0.544]\npred:\n" asks for
    "[0.544 0.548 0.602 0.715]\n\n". After Markeeva et al., "The CLRS-Text Algorithmic Reasoning
    Language Benchmark" (arXiv 2406.04229), as version 2.0.3 of its generator (dm-clrs) writes
    inputs cut to three decimals: the last line break of the question asks, and the answer ends with
    two. Tokens are the 48 characters of `ALPHABET`. All sorts have the same answers, but other
    names and `hints`; so do both string matchers and both hulls.

    Sizes are uniform on `smallest` .. `largest` in training and validation. Conditions are the
    sizes `farthest`, `farthest` - `stride`, ... down to `smallest`, `size=16`: the number of keys,
    nodes, or letters of both strings, for `segments_intersect` always four ends. An example belongs
    to a split by one of its numbers and the rest (`draw_in_split`), so that training, validation
    and conditions are disjoint at every size. Size 4 has few examples: `bfs` 4,096, `lcs_length`
    256, the matchers 112. A held-out input may be another one in another order.

    With `hints`, the sorts and `minimum` also write their steps:
    ", initial_trace: [...]\ntrace | pred:\n" asks for "[...], [...] | [0.544 ...]\n\n". Only with
    all its steps does the answer count as right.

    Not followed: keys are drawn in thousandths (the generator's keys of
    `find_maximum_subarray_kadane` are 0 twice as often, and sometimes "-0.0", as points of hulls),
    and sums are exact, so that ties may go the other way. Of equal keys, ends, penalties and
    weights the first comes first, where the generator has none or its sort's order. Graphs with a
    fifth of all loops have half of those of the first four nodes; points on a line are not drawn
    again. Of 29 algorithms with hints five have them here.
    """

    algorithm: str = option("insertion_sort", tuple(ALGORITHMS))
    smallest: int = size(4, low=BITS, high=100)
    largest: int = size(8, low=BITS, high=100)
    farthest: int = size(16, low=BITS, high=100)
    stride: int = size(4)
    hints: bool = flag(False)

    def __post_init__(self) -> None:
        if not self.smallest <= self.largest <= self.farthest:
            raise PluginError(
                f"task.largest: {self.largest} must be at least task.smallest {self.smallest} "
                f"and at most task.farthest {self.farthest}"
            )
        if self.hints and not isinstance(self._algorithm, Traced):
            choices = ", ".join(name for name, algorithm in ALGORITHMS.items() if isinstance(algorithm, Traced))
            raise PluginError(f"task.hints: true, but {self.algorithm} has none; choose one of {choices}")

    @property
    def symbols(self) -> int:
        return len(ALPHABET)

    @property
    def context(self) -> int:
        return self._longest(self.largest)

    @property
    def longest(self) -> int:
        return self._longest(self.farthest)

    def examples(self, streams: Streams, batch: int, split: Split) -> Examples:
        return self._examples(streams, batch, split, self.smallest, self.largest)

    def shifted_sets(self, streams: Streams, batch: int) -> Mapping[str, Batch]:
        sizes = range(self.farthest, self.smallest - 1, -self.stride)
        sets = {n: self._examples(streams, batch, Split.TEST, n, n) for n in reversed(sizes)}
        return {f"size={n}": self.evaluation_set(examples) for n, examples in sets.items()}

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `accuracy`, 1 if the whole answer is right, and its `token_accuracy`.

        A character is right if it is the most likely one, given the right ones before it: a whole
        answer is right if the model, always taking the most likely character, writes it by itself.
        """
        whole, by_token = self.whole_accuracy(outputs, batch), super().metrics(outputs, batch)
        return {"accuracy": whole, "token_accuracy": by_token["accuracy"]}

    def facts(self) -> Params:
        """Return `chance`, the share of the most frequent answer."""
        return {"chance": _most_frequent(self)}

    @property
    def _algorithm(self) -> Algorithm:
        return ALGORITHMS[self.algorithm]

    def _examples(self, streams: Streams, batch: int, split: Split, smallest: int, largest: int) -> Examples:
        drawn = fractions(streams, batch, 1 + self._algorithm.numbers(largest))
        sizes = smallest + below(drawn[..., :1], largest - smallest + 1)
        numbers = self._algorithm.draw(drawn[..., 1:], sizes, split)  # [L, N, m]
        parts, trace = self._algorithm.parts(numbers, sizes), None
        if self.hints and isinstance(self._algorithm, Traced):
            trace = self._algorithm.trace(numbers, sizes)
        question, length = compact(write(self._question(parts, trace), sizes))
        answer, count = compact(write(self._answer(parts, trace), sizes))
        [asking] = encode("\n")
        return Examples(question, answer, input_length=length - 1, output_length=count, asking=asking)

    def _longest(self, size: int) -> int:
        """Return the positions of the longest text of examples of this size."""
        parts, trace = self._algorithm.longest(size), None
        if self.hints and isinstance(self._algorithm, Traced):
            trace = self._algorithm.longest_trace(size)
        return sum(map(len, self._question(parts, trace) + self._answer(parts, trace))) - 1

    def _question(self, parts: Parts[Piece], trace: Trace[Piece] | None) -> list[str | Piece]:
        name, asked = f"{self.algorithm}:\n", f"{self._algorithm.asked}:\n"
        if trace is None:
            return [name, parts.given, "\n", asked]
        return [name, parts.given, ", initial_trace: ", trace.start, "\ntrace | ", asked]

    def _answer(self, parts: Parts[Piece], trace: Trace[Piece] | None) -> list[str | Piece]:
        steps: list[str | Piece] = [] if trace is None else [trace.steps, " | "]
        return [*steps, parts.answer, "\n\n"]


@cache
def _most_frequent(task: ClrsText) -> float:
    """Return the share of the most frequent of 1,024 fixed examples' answers, in training sizes."""
    streams = Streams.of(torch.zeros(1, dtype=torch.int64), Purpose.VALIDATION_DATA, 0)
    batch = task.validation(streams, 1024)
    answers = batch["targets"][0].masked_fill(~batch["wanted"][0], task.padding)
    starts = batch["wanted"][0].int().argmax(-1, keepdim=True)
    index = (torch.arange(answers.shape[-1]) + starts) % answers.shape[-1]
    _, counts = answers.gather(-1, index).unique(dim=0, return_counts=True)
    return float(counts.max()) / len(answers)
