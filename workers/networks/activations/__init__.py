"""Activations: the non-linearity between the two maps of an MLP.

Legend: f hidden channels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

from spaces.records import Params
from workers.numerics.parameters import Parameter, Parameters


class Activation(ABC):
    """An activation's configuration, a frozen dataclass; in the engine its knobs are tensors."""

    @property
    def inputs(self) -> int:
        """Channels read for each channel written: 1, and 2 for a gated activation."""
        return 1

    def parameters(self) -> Mapping[str, Parameter]:
        """Return what is learned, which the model names `activation.<name>`; most learn nothing."""
        return {}

    def facts(self) -> Params:
        """Return facts that follow from its fields and are worth a column; most have none."""
        return {}

    @abstractmethod
    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        """Return [..., f] from `values` [..., inputs * f], each channel by itself."""


class Gated(Activation):
    """A gated linear unit, gate(a) * b, where a is the first half of the channels and b the second.

    The MLP has three matrices. Source: Shazeer 2020, "GLU Variants Improve Transformer", eq. 5.
    """

    @property
    def inputs(self) -> int:
        return 2

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        first, second = values.chunk(2, dim=-1)
        return self.gate(first) * second

    @abstractmethod
    def gate(self, values: Tensor) -> Tensor:
        """Return the gate's own non-linearity, element by element."""
