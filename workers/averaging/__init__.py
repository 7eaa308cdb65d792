"""Averages of the parameters over training, written for ONE trial on its flat parameter vector [P]."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from torch import Tensor

Shadow = Mapping[str, Tensor]


class Averaging(ABC):
    """An average's configuration, a frozen dataclass; its powers and lags are knobs."""

    @abstractmethod
    def start(self, parameters: Tensor) -> Shadow:
        """The shadow copies before the first step, from the initial parameters theta_0 [P]."""

    @abstractmethod
    def update(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Shadow:
        """The shadow after update n = `step` (from 0), which made `parameters` = theta_{n+1}."""

    @abstractmethod
    def evaluated(self, shadow: Shadow, parameters: Tensor, step: Tensor) -> Mapping[str, Tensor]:
        """Variant name -> parameters [P] to validate beside the raw ones, after n = `step` updates."""
