"""The set complement task: the uniform distribution over tokens that are not in the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import Examples, actual
from spaces.plugins.fields import size
from spaces.records import Params
from workers.data.tasks import Batch, NextToken
from workers.numerics.randomness import Streams
from workers.numerics.tensors import IMPOSSIBLE, cut, mean_unpadded, one_hot


@dataclass(frozen=True, kw_only=True)
class SetComplement(NextToken):
    """Sequences without repetition, trained on short ones, evaluated on the longest.

    "Learning What's Missing", paper 003 of docs/experiments/papers.md. For training s + 1 distinct
    tokens of v are drawn uniformly, s = `length` and v = `vocabulary`: inputs are the first s,
    targets the last s, so that each prefix of length 1 .. s predicts the next token (4.4; the loss,
    5.3, is the mean over prefixes). Validation sequences have v - 1 tokens; at each prefix the
    prediction is compared with the exact answer, 1 / (v - s') on each absent token for a prefix of
    length s' (5.2, 5.3). The generalisation gap is v - 1 - s (5.5).
    """

    EXAMPLES: ClassVar[Examples] = ({"length": 5, "vocabulary": 9},)

    length: int = size(low=2, padded=8)
    vocabulary: int = size(low=3, padded=32)

    def __post_init__(self) -> None:
        if self.length >= self.vocabulary:
            raise PluginError(
                f"task.length: {self.length} must be below task.vocabulary {self.vocabulary}: "
                "training sequences have length + 1 distinct tokens"
            )

    @property
    def tokens(self) -> int:
        return self.vocabulary

    @property
    def context(self) -> int:
        return self.length

    @property
    def actual_tokens(self) -> int | Tensor:
        return actual(self, "vocabulary")

    @property
    def actual_context(self) -> int | Tensor:
        return actual(self, "length")

    @property
    def longest(self) -> int:
        return self.vocabulary - 1

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        sequences = self._sequences(streams, batch, self.actual_context + 1, self.length + 1).clamp(min=0)
        return {"inputs": sequences[..., :-1], "targets": sequences[..., 1:]}

    def validation(self, streams: Streams, batch: int) -> Batch:
        sequences = self._sequences(streams, batch, self.actual_tokens - 1, self.vocabulary - 1)
        return {"inputs": sequences.clamp(min=0)}

    def _sequences(self, streams: Streams, batch: int, length: int | Tensor, padded_length: int) -> Tensor:
        """Return distinct tokens [L, N, padded_length]; if `length` is a tensor, -1 from entry `length` on.

        Callers make padding token 0, which loss and metrics leave out.
        """
        tokens = self.actual_tokens
        if isinstance(tokens, int) or isinstance(length, int):  # both, where nothing is padded
            return streams.permutations(batch, self.vocabulary, padded_length)
        return streams.padded_permutations(batch, tokens, length, self.vocabulary, padded_length)

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return three metrics (paper 003, eq. 16-18), averaged over a sequence's prefixes.

        TVD: the total variation distance from the exact answer. ITP: the probability of illegal
        tokens, those that the prefix has. ITR, the illegal token rate: the share of prefixes whose
        most likely token is illegal. A tie for the largest logit goes to the lowest token, as in
        numpy's argmax.
        """
        tokens = self.actual_tokens
        logits = cut(outputs, tokens, IMPOSSIBLE)
        seen = one_hot(batch["inputs"], self.vocabulary, logits.dtype).cumsum(-2)  # [N, s, v]
        absent = cut(1 - seen, tokens, 0)
        probabilities = logits.softmax(-1)
        exact = absent / absent.sum(-1, keepdim=True)
        best = one_hot(logits.argmax(-1), self.vocabulary, logits.dtype)
        return {
            "tvd": mean_unpadded(0.5 * (probabilities - exact).abs().sum(-1), tokens - 1),
            "itp": mean_unpadded((probabilities * seen).sum(-1), tokens - 1),
            "itr": mean_unpadded((best * seen).sum(-1), tokens - 1),
        }

    def facts(self) -> Params:
        """Return `generalisation_gap`, and `chance`: TVD and ITP of a uniform guess.

        Both are the mean of s' / v over prefixes of length s' = 1 .. v - 1, which is 1/2.
        """
        return {"generalisation_gap": self.vocabulary - 1 - self.length, "chance": 0.5}
