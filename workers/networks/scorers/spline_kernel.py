"""Attention with the kernel phi(q) . phi(k), phi a learned spline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import part
from workers.networks.activations import Activation
from workers.networks.scorers import KernelScorer
from workers.numerics.parameters import Parameters

_LEAST_SUM = 1e-6


@dataclass(frozen=True, kw_only=True)
class SplineKernel(KernelScorer):
    """Weights phi(q) . phi(k) over their sum; phi, of each channel, is by default a linear spline.

    No division by sqrt(c): the sum takes it out. The sum, which a negative phi may bring near zero,
    is kept 1e-6 away from it. Source: paper 002, section 2 and Appendix B.
    """

    phi: Activation = part(Activation, "spline")

    def __post_init__(self) -> None:
        if self.phi.inputs != 1:
            raise PluginError("model.scorer.phi: a gated activation is no function of one number")

    @property
    def one_for_all(self) -> bool:
        """Paper 002 has one non-linearity for all layers."""
        return True

    @property
    def features(self) -> Activation:
        return self.phi

    def weigh(self, products: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        kernel = products.masked_fill(~visible, 0.0)
        total = kernel.sum(-1, keepdim=True)
        total = torch.where(total < 0, total.clamp(max=-_LEAST_SUM), total.clamp(min=_LEAST_SUM))
        return kernel / total
