"""The kernel of scaled signed averaging, shared by its learned and its fixed form."""

from __future__ import annotations

import torch
from torch import Tensor


def bend(logits: Tensor, b: Tensor | float, n: Tensor | float) -> Tensor:
    """sign(z) n log(1 + b |z|): its exponential is the kernel (1 + b |z|)^(sign(z) n).

    Branches rather than sign and modulus, so that the slope at z = 0 is n b and not 0. The mask comes after: powers of
    a masked logit have no finite gradient.
    """
    positive = logits >= 0
    powers = torch.log1p(b * torch.where(positive, logits, -logits))
    return n * torch.where(positive, powers, -powers)
