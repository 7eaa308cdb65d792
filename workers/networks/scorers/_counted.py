"""Scorers that bend each logit by itself and divide by the number of keys."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from workers.networks.scorers import LogitScorer, visible_keys
from workers.numerics.parameters import Parameters


class Counted(LogitScorer):
    """Weights kernel(z) / n, n the number of keys that the query sees; rows need not sum to 1.

    Paper 000 (Appendix C) names tanh, average, ReLU and x^2 as head kernels without a
    normalisation. Division by n keeps the size of what attention mixes for kernels of either sign:
    Wortsman et al. 2023, "Replacing softmax with ReLU in Vision Transformers".
    """

    @property
    def sums_to_one(self) -> bool:
        return False

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return (self.kernel(logits) / visible_keys(visible, logits)).masked_fill(~visible, 0.0)

    @abstractmethod
    def kernel(self, logits: Tensor) -> Tensor:
        """Return the kernel of each logit by itself."""
