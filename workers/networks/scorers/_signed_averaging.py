"""The kernel of scaled signed averaging, shared by its learned and its fixed form."""

from __future__ import annotations

import torch
from torch import Tensor


def bend(logits: Tensor, b: Tensor | float, n: Tensor | float) -> Tensor:
    """Return sign(z) n log(1 + b |z|), whose exponential is the kernel (1 + b |z|)^(sign(z) n).

    Branches instead of sign and modulus give the slope n b at z = 0, not 0. The mask comes after:
    powers of a masked logit have no finite gradient.
    """
    positive = logits >= 0
    powers = torch.log1p(b * torch.where(positive, logits, -logits))
    return n * torch.where(positive, powers, -powers)
