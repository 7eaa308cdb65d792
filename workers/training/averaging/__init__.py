"""Averages of the parameters over training, for ONE trial on its flat parameter vector [P].

Compiled code repeats the formulas: native/update.hpp with the scalars of native_update.py on a CPU,
cuda_update.cu for traced steps of a GPU, and cuda/training.hpp for fused ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

Shadow = Mapping[str, Tensor]


class Variant(NamedTuple):
    """Parameters that are validated beside the raw ones."""

    name: str
    """The name in metrics: `ema`, `bema`."""
    condition: str = ""
    """The one of several of that name, as in metrics' conditions: `kappa=0.5 eta=0.2`."""

    @property
    def label(self) -> str:
        """`bema`, `bema kappa=0.5 eta=0.2`."""
        return f"{self.name} {self.condition}".strip()


RAW = Variant("raw")
"""The parameters themselves."""


class Averaging(ABC):
    """An average's configuration, a frozen dataclass; its powers and lags are knobs."""

    VARIANTS: ClassVar[Sequence[str]] = ("raw", "ema", "bema")
    """All names that variants may have; reports draw each in its own way."""

    @property
    @abstractmethod
    def variants(self) -> Sequence[Variant]:
        """The averages that `average` computes, in the order of its index."""

    @abstractmethod
    def start(self, parameters: Tensor) -> Shadow:
        """Return the first shadow copies, of initial parameters theta_0 [P]; float64 averages."""

    @abstractmethod
    def update(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Shadow:
        """Return the shadow after update n = `step` (from 0), whose result is `parameters`."""

    @abstractmethod
    def average(self, shadow: Shadow, parameters: Tensor, step: Tensor, index: Tensor) -> Tensor:
        """Return the variant [P] with this index, an int64 scalar, after n = `step` updates."""
