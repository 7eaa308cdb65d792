"""Linear attention: the logits themselves are the weights."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.scorers import LogitScorer, visible_keys
from workers.numerics.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Linear(LogitScorer):
    """Weights z / (temperature n), n the number of keys that the query sees; rows do not sum to 1.

    A shift of the logits or of the inputs' mean changes it (paper 004, Appendix C). Source: Zhang
    et al. 2024, "Trained Transformers Learn Linear Models In-Context", equation 3.
    """

    temperature: float = knob(1.0, low=0, open_low=True)

    @property
    def sums_to_one(self) -> bool:
        return False

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return (logits / (self.temperature * visible_keys(visible, logits))).masked_fill(~visible, 0.0)
