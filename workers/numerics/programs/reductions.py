"""The rules of sums, means, variances and extremes along axes, and of cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from workers.numerics.codegen.values import CannotGenerate, Kind, contiguous_strides
from workers.numerics.programs.indices import linear
from workers.numerics.programs.lowering import Lowering
from workers.numerics.programs.values import Lazy, Stored, Value, formula, new


def reduce(name: str, lowering: Lowering, kind: Kind, source: Value, *others: Any, **_: Any) -> Value:
    """Reduce along axes: sum, mean, largest, smallest, all or any."""
    axes = others[0] if others else None
    axes = axes if isinstance(axes, list) else [] if axes is None else [axes]
    if name in ("amax", "amin") and not source.dtype.is_floating_point:
        raise CannotGenerate("an extreme of whole numbers")
    if name in ("all", "any") and (kind.dtype != torch.bool or (not axes and others)):
        raise CannotGenerate(f"{name} of {source.dtype} along {axes}")
    reduced = axes_from_front(axes, len(source.shape))
    total = _reduced(lowering, source, reduced, "sum" if name == "mean" else name, kind)
    return _divided(total, _count(source, reduced), kind) if name == "mean" else total


def _reduced(lowering: Lowering, source: Value, axes: Sequence[int], how: str, kind: Kind) -> Stored:
    """Add the loops of a reduction, and return its result; `how` as in `Loops`."""
    if not math.prod(source.shape):
        raise CannotGenerate("a sum of nothing")
    kept = [1 if axis in axes else size for axis, size in enumerate(source.shape)]
    strides = [*contiguous_strides(kept)]
    for axis in axes:
        strides[axis] = 0
    how = how if any(source.shape[axis] > 1 for axis in axes) else "store"
    to = new(kind)
    lowering.loop(to, source, source.shape, lambda _, at: linear(0, strides, at), how=how, reduced=axes)
    return to


def _count(source: Value, axes: Sequence[int]) -> int:
    return math.prod(source.shape[axis] for axis in axes)


def _divided(total: Value, count: int, kind: Kind) -> Lazy:
    return formula(f"{{0}} / {{T}}({count})", [total], kind, kind.dtype)


def var_mean(
    lowering: Lowering, kind: Kind, source: Value, axes: Any = None, unbiased: Any = None, *_: Any, **keywords: Any
) -> tuple[Value, Value]:
    """Compute the variance along axes, and the mean if it is asked for, in two passes."""
    # The overload (dim, unbiased, keepdim) has a truth value where others have a keyword.
    correction = int(unbiased) if isinstance(unbiased, bool) else keywords.get("correction", 1)
    reduced = axes_from_front([] if axes is None else axes, len(source.shape))
    count = _count(source, reduced)
    mean = lowering.store(_divided(_reduced(lowering, source, reduced, "sum", kind), count, kind))
    kept = tuple(1 if axis in reduced else size for axis, size in enumerate(source.shape))
    kept_mean = Stored.whole(mean.buffer, kept)
    source_kind = Kind(source.shape, contiguous_strides(source.shape), source.dtype)
    squares = formula("({0} - {1}) * ({0} - {1})", [source, kept_mean], source_kind, source.dtype)
    total = _reduced(lowering, squares, reduced, "sum", kind)
    return _divided(total, max(0, count - correction), kind), mean


def cumulative_sum(lowering: Lowering, kind: Kind, source: Value, axis: int, **_: Any) -> Value:
    """Compute the cumulative sum along an axis."""
    axis %= max(1, len(source.shape))
    if not source.shape or source.shape[axis] == 1:
        return formula("{0}", [source], kind, kind.dtype)
    to, shape = new(kind), source.shape
    lowering.loop(to, source, shape, lambda _, at: linear(0, to.strides, at), how="scan", scanned=axis)
    return to


def axes_from_front(axes: Sequence[int] | int, rank: int) -> list[int]:
    """Return axes from the front, in ascending order; all axes if none are given."""
    listed = [axes] if isinstance(axes, int) else [*axes]
    return sorted(axis % max(1, rank) for axis in listed) if listed else [*range(rank)]
