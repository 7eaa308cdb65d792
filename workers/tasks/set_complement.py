"""The set complement task: predict the uniform distribution over the tokens that are not in the input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.errors import PluginError
from spaces.fields import size
from spaces.records import Scalar
from workers.randomness import Streams
from workers.tasks import Batch, NextToken
from workers.tensors import one_hot


@dataclass(frozen=True, kw_only=True)
class SetComplement(NextToken):
    """Sequences without repetition, trained on short ones, judged on the longest.

    Training sequences have `length` + 1 tokens out of `vocabulary`, drawn uniformly: each of the prefixes of length
    1 .. s predicts the token that follows it (paper 003, 4.4; its loss, 5.3, is the mean over all prefixes). Validation
    sequences have v - 1 tokens; every prefix is compared with the exact answer, 1 / (v - s') on each absent token
    (5.2, 5.3). The generalisation gap is v - 1 - s (5.5).
    """

    length: int = size(low=2)
    vocabulary: int = size(low=3)

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
    def longest(self) -> int:
        return self.vocabulary - 1

    def training(self, streams: Streams, batch: int) -> Batch:
        sequences = streams.permutations(batch, self.vocabulary, self.length + 1)
        return {"inputs": sequences[..., :-1], "targets": sequences[..., 1:]}

    def validation(self, streams: Streams, batch: int) -> Batch:
        return {"inputs": streams.permutations(batch, self.vocabulary, self.vocabulary - 1)}

    def metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        """TVD, ITP, ITR (paper 003, eq. 16-18), averaged over the prefixes of each sequence.

        A tie for the largest logit goes to the lowest token, as numpy's argmax has it.
        """
        seen = one_hot(batch["inputs"], self.vocabulary, logits.dtype).cumsum(-2)  # [N, s, v] 1 where illegal
        absent = 1 - seen
        probabilities = logits.softmax(-1)
        exact = absent / absent.sum(-1, keepdim=True)
        best = one_hot(logits.argmax(-1), self.vocabulary, logits.dtype)
        return {
            "tvd": 0.5 * (probabilities - exact).abs().sum(-1).mean(-1),
            "itp": (probabilities * seen).sum(-1).mean(-1),
            "itr": (best * seen).sum(-1).mean(-1),
        }

    def facts(self) -> Mapping[str, Scalar]:
        return {"generalisation_gap": self.vocabulary - 1 - self.length}
