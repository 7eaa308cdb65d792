"""An activation: the non-linearity between the two maps of an MLP."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spaces.plugins.fields import knob
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters
from workers.numerics.tensors import logistic


@dataclass(frozen=True, kw_only=True)
class Example(Activation):
    """x sigmoid(slope x). Source: Ramachandran et al. 2017, arXiv 1710.05941, section 4."""

    slope: float = knob(1.5, low=0, open_low=True)

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return values * logistic(self.slope * values).to(values.dtype)
