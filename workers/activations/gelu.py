"""The Gaussian error linear unit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from spaces.fields import option
from workers.activations import Activation
from workers.parameters import Parameters


@dataclass(frozen=True, kw_only=True)
class Gelu(Activation):
    """x Phi(x), where Phi is the normal distribution function. Source: Hendrycks and Gimpel 2016, section 2.

    The tanh form is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which GPT-2 and jax have.
    """

    form: str = option("exact", ("exact", "tanh"))

    def apply(self, values: Tensor, learned: Parameters) -> Tensor:
        return nn.functional.gelu(values, approximate="none" if self.form == "exact" else "tanh")
