"""Softmax attention trained at temperature 1 and validated at others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import flag, knob, text
from spaces.records import TRAINED
from workers.networks.scorers import LogitScorer, Scorer, masked_softmax
from workers.networks.scorers._estimated import EstimatedSoftmax
from workers.networks.scorers.softmax import Softmax
from workers.numerics.parameters import Parameters
from workers.numerics.temperature import sweep


@dataclass(frozen=True, kw_only=True)
class EvaluationSoftmax(LogitScorer):
    """Weights proportional to exp(z) in training and to exp(z / temperature) in validation.

    The temperature at inference of paper 004 (section 4), chosen after training for the test's
    distribution. `temperatures`: more of them, `1.5 2 4`, at which the weights are validated. With
    `estimated`, `temperature=estimated` is `factor` times the ratio of moments of Appendix J.
    """

    temperature: float = knob(1.0, low=0, open_low=True)
    temperatures: str = text("")
    estimated: bool = flag(False)
    factor: float = knob(1.0, low=0, open_low=True)

    def __post_init__(self) -> None:
        sweep("scorer.temperatures", self.temperatures)

    @property
    def may_pad(self) -> bool:
        return not self.estimated  # from the logits of all positions

    @property
    def counts_all_keys(self) -> bool:
        return False

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits, visible)

    def evaluations(self) -> Mapping[str, Scorer]:
        swept = sweep("scorer.temperatures", self.temperatures)
        others: dict[str, Scorer] = {label: Softmax(temperature=t) for label, t in swept.items()}
        if self.estimated:
            others["temperature=estimated"] = EstimatedSoftmax(factor=self.factor)
        return {"": Softmax(temperature=self.temperature), TRAINED: self, **others}
