"""A gated linear unit with any activation for its gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import Examples
from spaces.plugins.fields import part
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameter, Parameters, under, within


@dataclass(frozen=True, kw_only=True)
class GatedUnit(Activation):
    """gate(a) * b, a the first half of the channels, b the second; the gate is learned by default.

    "GLU/Ours" of paper 002, Table 3. Source of the unit: Shazeer 2020, equation 5.
    """

    EXAMPLES: ClassVar[Examples] = (
        {"gate": {"name": "tanh"}},
        {"gate": {"name": "spline", "knots": 13, "low": -3, "high": 3}},
    )

    gate: Activation = part(Activation, "spline")

    def __post_init__(self) -> None:
        if self.gate.inputs != 1:
            raise PluginError("model.activation.gate: a gated activation is no function of one number")

    @property
    def inputs(self) -> int:
        return 2

    def parameters(self) -> Mapping[str, Parameter]:
        return under("gate", self.gate.parameters())

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        first, second = values.chunk(2, dim=-1)
        return self.gate.apply(first, within("gate", learned)) * second
