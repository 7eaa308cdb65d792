"""Causal softmax attention by torch's fused kernel, without dropout, with a rule for stacked lanes.

`models/_blocks.SelfAttention` is attention as a whole.

Legend: N sequences, h heads, s positions, c channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from workers.numerics.tensors import fold_lanes, unfold_lanes

_Dims = tuple[int | None, ...]
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def fused_causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal softmax(query . key / sqrt(c)) value; all [N, h, s, c], in float32 or float64.

    It is for CPUs, and holds no [s, s] matrix: blocks of keys come one after another (Dao et al.
    2022). Sequences and heads are computed apart: a lane's bits do not depend on its neighbours.
    """
    return _Attention.apply(query, key, value)[0]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        close = map(_with_close_channels, (query, key, value))
        mixed, logsumexp = _forward(*close, 0.0, True, scale=1 / math.sqrt(query.shape[-1]))
        return mixed, logsumexp

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _Gradient.apply(gradients[0], *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *tensors: Tensor) -> Any:
        mixed, logsumexp = _Attention.apply(*fold_lanes(info.batch_size, in_dims, tensors))
        return tuple(unfold_lanes(info.batch_size, tensor) for tensor in (mixed, logsumexp)), (0, 0)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, mixed: Tensor, logsumexp: Tensor) -> Any:
        close = map(_with_close_channels, (gradient, query, key, value, mixed))
        return _backward(*close, logsumexp, 0.0, True, scale=1 / math.sqrt(query.shape[-1]))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: there is no second derivative."""

    @staticmethod
    def vmap(info: Any, in_dims: _Dims, *tensors: Tensor) -> Any:
        parts = _Gradient.apply(*fold_lanes(info.batch_size, in_dims, tensors))
        return tuple(unfold_lanes(info.batch_size, part) for part in parts), (0, 0, 0)


def _with_close_channels(tensor: Tensor) -> Tensor:
    """Make a head's channels adjacent: the kernel reads them so, whatever the stride says."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
