"""The values of generated code: types, kinds of tensors, exact numbers, and `CannotGenerate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "Long",
    torch.int32: "int",
    torch.uint8: "Byte",
    torch.bool: "bool",
}
"""Type that kernels compute with -> its name in C++."""


class CannotGenerate(Exception):  # noqa: N818 - nothing is wrong: the operation stays what it is
    """An operation without generated code, or a place that another block of a GPU may write."""


class Kind(NamedTuple):
    """The shape, strides and type of a tensor, which are known before it has numbers."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor) -> Kind:
        return Kind(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose elements lie in the order of its axes."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def spell(number: float, dtype: torch.dtype) -> str:
    """Return a number in C++, to the bit."""
    if dtype == torch.bool:
        return "true" if number else "false"
    if not dtype.is_floating_point:
        return f"{TYPES[dtype]}({int(number)})" if abs(number) < 1 << 62 else f"Long({int(number)}LL)"
    value = float(torch.tensor(number, dtype=torch.float64).to(dtype))
    if math.isfinite(value):
        return f"{TYPES[dtype]}({value.hex()})"
    name = "NAN_OF" if math.isnan(value) else "INFINITY_OF"
    return f"{'-' if value < 0 else ''}{name}({TYPES[dtype]})"
