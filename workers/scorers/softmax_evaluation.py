"""Softmax attention trained at temperature 1 and validated at another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.fields import knob
from workers.parameters import Parameters
from workers.scorers import TRAINED, LogitScorer, Scorer, masked_softmax
from workers.scorers.softmax import Softmax


@dataclass(frozen=True, kw_only=True)
class EvaluationSoftmax(LogitScorer):
    """Weights proportional to exp(z) in training and to exp(z / temperature) in validation.

    The temperature at inference of paper 004 (section 4): chosen after training, for the distribution one is tested on.
    """

    temperature: float = knob(1.0, low=0, open_low=True)

    def scored(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits, visible)

    def evaluations(self) -> Mapping[str, Scorer]:
        return {"": Softmax(temperature=self.temperature), TRAINED: self}
