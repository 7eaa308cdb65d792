"""The alpha-entmax transformation, for any alpha in [1, 4] and each row with its own, with exact gradients.

p_j = [1 + a (z_j - t)]_+ ^ (1 / a) with a = alpha - 1 and the t for which the row sums to 1 (Peters, Niculae and
Martins 2019, "Sparse Sequence-to-Sequence Models", equation 6, with tau = a t - 1). Written with log1p it meets softmax
as a falls to 0, where t becomes the log of softmax's sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 60
"""Most steps of the search; a row stops by itself, after ten or so where alpha <= 2, later where it is steeper. On a
GPU all are made: to know that every row has stopped would cost a wait at each."""
_NEXT_TO_SOFTMAX = 1e-6
_BELOW_ALL = -1e30


def entmax(logits: Tensor, visible: Tensor, alpha: Tensor | float) -> Tensor:
    """Weights [..., q, k] of the visible keys, exactly 0 for the others; `alpha` broadcasts against the logits.

    Gradients for logits and alpha are exact: t is found without them, and one more Newton step, from a point where the
    row's sum is 1 already, carries the derivative of the implicit function.
    """
    z = logits.masked_fill(~visible, _BELOW_ALL)
    z = torch.where(visible, z - z.amax(-1, keepdim=True).detach(), _BELOW_ALL)
    a = torch.as_tensor(alpha, dtype=z.dtype, device=z.device).clamp(min=1 + _NEXT_TO_SOFTMAX) - 1
    found = _threshold(z.detach(), a.detach())
    excess = _powers(z, a, found).sum(-1, keepdim=True) - 1
    slope = _slopes(z.detach(), a.detach(), found).sum(-1, keepdim=True)
    broken = torch.where(visible, logits - logits, 0).sum(-1, keepdim=True)  # 0, and NaN in a row that is not finite
    return _powers(z, a, found - excess / slope) + broken


@torch.library.custom_op("graft::entmax_threshold", mutates_args=())
def _threshold(z: Tensor, a: Tensor) -> Tensor:
    """T [..., q, 1]: Newton's method, halving its bracket where a step would leave it.

    One operation for the engine's recordings, however many steps it takes. A row is left alone once its sum is 1, so
    that its result does not depend on the rows it shares the tensor with.
    """
    keys = torch.full_like(z[..., :1], z.shape[-1])
    low, high = torch.zeros_like(keys), -torch.expm1(-a * keys.log()) / a  # all on the largest; spread over all keys
    low, high = low.expand_as(low + high).clone(), high.expand_as(low + high).clone()
    t, close = low.clone(), 16 * torch.finfo(z.dtype).eps
    for _ in range(STEPS):
        excess = _powers(z, a, t).sum(-1, keepdim=True) - 1
        open_rows = (excess.abs() > close) & z.isfinite().all(-1, keepdim=True)
        if z.device.type == "cpu" and not open_rows.any():  # a GPU would have to be waited for
            break
        low, high = torch.where(excess >= 0, t, low), torch.where(excess >= 0, high, t)
        step = t - excess / _slopes(z, a, t).sum(-1, keepdim=True)
        inside = (step >= low) & (step <= high)
        t = torch.where(open_rows, torch.where(inside, step, (low + high) / 2), t)
    return t


@_threshold.register_fake
def _threshold_shape(z: Tensor, a: Tensor) -> Tensor:
    return (z[..., :1] + a).clone()


@_threshold.register_vmap
def _threshold_stacked(info: object, dims: tuple[int | None, int | None], z: Tensor, a: Tensor) -> tuple[Tensor, int]:
    z = z.movedim(dims[0], 0) if dims[0] is not None else z[None]
    a = a.movedim(dims[1], 0) if dims[1] is not None else a[None]
    a = a.reshape(a.shape[0], *[1] * (z.ndim - a.ndim), *a.shape[1:])  # per-lane numbers meet rows from the right
    return _threshold(z, a), 0


def _powers(z: Tensor, a: Tensor, t: Tensor) -> Tensor:
    base = a * (z - t)
    support = base > -1
    return torch.where(support, (torch.log1p(torch.where(support, base, 0)) / a).exp(), 0)


def _slopes(z: Tensor, a: Tensor, t: Tensor) -> Tensor:
    """Derivatives of the powers with respect to t: -p^(1 - a)."""
    base = a * (z - t)
    support = base > -1
    return torch.where(support, -(torch.log1p(torch.where(support, base, 0)) * (1 - a) / a).exp(), 0)
