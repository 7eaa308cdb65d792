"""Calls of compiled row functions on rows of one head, to compare them with their sources."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from workers.numerics.native import address
from workers.numerics.rows.activations import ActivationCode
from workers.numerics.rows.scorers import ScorerCode


class Found(NamedTuple):
    """A scorer's results for rows [r, k]."""

    weights: Tensor
    by_logits: Tensor
    by_learned: Tensor  # [n], by each number that the head learns


def run(
    code: ScorerCode,
    library: ctypes.CDLL,
    given: Sequence[float],
    logits: Tensor,
    gradient: Tensor,
    visible: Sequence[int],
    *,
    beside: bool = False,
) -> Found:
    """Return weights of logits [r, k] and the gradients by `gradient` [r, k].

    Row i has the first visible[i] keys. `beside`: rows lie side by side, with equally many keys.
    """
    rows, keys = logits.shape
    width = library.register_bytes() // logits.element_size()
    values = torch.tensor([*given, 0.0], dtype=logits.dtype)[:, None].expand(-1, width).contiguous()
    seen = torch.tensor(visible, dtype=torch.int32)
    if beside:
        groups, length = -(-rows // width), keys
        padded = [torch.nn.functional.pad(tensor, (0, 0, 0, -rows % width)) for tensor in (logits, gradient)]
        arranged = [tensor.view(-1, width, keys).mT for tensor in padded]  # [groups, k, width]
        seen, room = seen[:1].expand(groups).contiguous(), width
    else:
        groups, length, room = rows, -(-keys // width), 1
        arranged = [torch.nn.functional.pad(tensor, (0, length * width - keys)) for tensor in (logits, gradient)]
    inputs, by_logits = (tensor.contiguous() for tensor in arranged)
    stride = inputs.numel() // groups
    weights = torch.empty_like(inputs)
    kept = inputs.new_zeros(groups * code.kept * room + 1)
    totals, to = inputs.new_zeros(code.totals + 1, width), inputs.new_zeros(code.learned + 1, width)
    tail = ctypes.c_ssize_t(stride), address(seen), groups, keys, length
    side = "beside" if beside else "along"
    tensors = values, inputs, weights, kept
    getattr(library, f"weigh_{side}")(*map(address, tensors), *tail)
    getattr(library, f"gradient_{side}")(*map(address, (*tensors, by_logits, totals)), *tail)
    summed = totals.sum(1, keepdim=True).expand(-1, width).contiguous()
    library.finish(address(values), address(summed), address(to))
    results = weights, by_logits
    unpadded = [tensor.mT.reshape(-1, keys)[:rows] if beside else tensor[:, :keys] for tensor in results]
    return Found(unpadded[0], unpadded[1], to[: code.learned, 0])


class Activated(NamedTuple):
    """An activation's results for rows [r, f]."""

    values: Tensor
    by_hidden: Tensor  # [r, parts * f]
    by_learned: Tensor  # [n]


def run_activation(
    code: ActivationCode, library: ctypes.CDLL, given: Sequence[float], hidden: Tensor, gradient: Tensor
) -> Activated:
    """Return the values of numbers [r, parts * f], and the gradients by `gradient` [r, f]."""
    rows, channels = gradient.shape
    width = library.register_bytes() // hidden.element_size()
    numbers = torch.tensor([*given, 0.0], dtype=hidden.dtype)[:, None].expand(-1, width).contiguous()
    registers = -(-channels // width)
    pitch = registers * width
    room = (0, pitch - channels)
    points = torch.nn.functional.pad(hidden.view(rows, code.parts, channels), room).contiguous()
    slopes, incoming = points.clone(), torch.nn.functional.pad(gradient, room).contiguous()
    active = torch.empty_like(incoming)
    strides = [ctypes.c_ssize_t(stride) for stride in (code.parts * pitch, pitch, pitch)]
    tail = *strides, rows, channels, registers
    library.activate_rows(*map(address, (numbers, slopes, active)), *tail)
    totals, to = hidden.new_zeros(code.totals + 1, width), hidden.new_zeros(code.learned + 1, width)
    if code.learned:
        library.learn_rows(*map(address, (numbers, points, incoming, totals)), *tail)
        summed = totals.sum(1, keepdim=True).expand(-1, width).contiguous()
        library.finish(address(numbers), address(summed), address(to))
    by_hidden = (slopes * incoming[:, None])[..., :channels].reshape(rows, -1)
    return Activated(active[:, :channels], by_hidden, to[: code.learned, 0])
