"""The Gaussian error linear unit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from spaces.plugins.fields import option
from workers.networks.activations import Activation
from workers.numerics.parameters import Parameters
from workers.numerics.tensors import fills_registers, gelu


@dataclass(frozen=True, kw_only=True)
class Gelu(Activation):
    """x Phi(x), Phi the normal distribution function. Source: Hendrycks and Gimpel 2016, section 2.

    The tanh form, of GPT-2 and jax, is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    """

    form: str = option("exact", ("exact", "tanh"))

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        if self.form == "exact":
            return gelu(values)
        if fills_registers(values):
            return nn.functional.gelu(values, approximate="tanh")
        inner = math.sqrt(2 / math.pi) * (values + 0.044715 * values * values * values)
        return 0.5 * values * (1 + inner.tanh())
