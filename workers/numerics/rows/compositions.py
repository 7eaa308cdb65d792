"""Operations on tensors of rows that are composed of simpler ones, or fill a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workers.numerics.rows.algebra import KEYS, Algebra, TensorFormula, require_last, side_by_side
from workers.numerics.rows.nodes import NotOfRows

FILLS: dict[str, Callable[..., tuple[Sequence[int], float]]] = {
    "full": lambda shape, number: (shape, number),
    "scalar_tensor": lambda number: ((), number),
    "zeros_like": lambda like: (like.shape, 0.0),
    "ones_like": lambda like: (like.shape, 1.0),
    "full_like": lambda like, number: (like.shape, number),
    "new_zeros": lambda like, shape: (shape, 0.0),
    "new_ones": lambda like, shape: (shape, 1.0),
    "new_full": lambda like, shape, number: (shape, number),
}
"""Operation that fills a tensor with one number -> shape and number."""


def _exponentials(algebra: Algebra, source: TensorFormula) -> list[TensorFormula]:
    """Return a row's largest number, the exponentials of the differences from it, and their sum."""
    top = algebra.reduce("amax", source, -1, True)
    powers = algebra.apply("exp", algebra.apply("sub", source, top))
    return [top, powers, algebra.reduce("sum", powers, -1, True)]


def _softmax(algebra: Algebra, source: TensorFormula, axis: int, *_: Any) -> TensorFormula:
    require_last(source.shape, axis)
    _top, powers, total = _exponentials(algebra, source)
    return algebra.apply("div", powers, total)


def _softmax_backward(
    algebra: Algebra, gradient: TensorFormula, result: TensorFormula, axis: int, *_: Any
) -> TensorFormula:
    inner = algebra.reduce("sum", algebra.apply("mul", gradient, result), -1, True)
    return algebra.apply("mul", result, algebra.apply("sub", gradient, inner))


def _log_softmax(algebra: Algebra, source: TensorFormula, axis: int, *_: Any) -> TensorFormula:
    require_last(source.shape, axis)
    top, _powers, total = _exponentials(algebra, source)
    return algebra.apply("sub", algebra.apply("sub", source, top), algebra.apply("log", total))


def _log_softmax_backward(
    algebra: Algebra, gradient: TensorFormula, result: TensorFormula, axis: int, *_: Any
) -> TensorFormula:
    total = algebra.reduce("sum", gradient, -1, True)
    return algebra.apply("sub", gradient, algebra.apply("mul", algebra.apply("exp", result), total))


def _logsumexp(algebra: Algebra, source: TensorFormula, axis: Any, keepdim: bool = False) -> TensorFormula:
    require_last(source.shape, axis)
    top, _powers, total = _exponentials(algebra, source)
    result = algebra.apply("add", top, algebra.apply("log", total))
    return result if keepdim else algebra.reshape(result, result.shape[:-1])


def _cat(algebra: Algebra, sources: list[TensorFormula], axis: int = 0) -> TensorFormula:
    require_last(sources[0].shape, axis)
    return side_by_side([part for source in sources for part in source.parts or (source,)])


def _slice(
    algebra: Algebra, source: TensorFormula, axis: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> TensorFormula:
    if step != 1:
        raise NotOfRows("it reads some of the keys of a row")
    return algebra.select(source, axis, start, end)


def _slice_backward(
    algebra: Algebra, gradient: TensorFormula, sizes: list[int], axis: int, start: int, end: int, _: int
) -> TensorFormula:
    start, end, _ = slice(start, end).indices(sizes[axis])
    if (start, end) == (0, sizes[axis]):
        return gradient
    require_last(tuple(sizes), axis)
    zeros = TensorFormula((*gradient.shape[:-1], KEYS), gradient.dtype, 0.0, 0.0)
    before, after = [zeros] * (start // KEYS), [zeros] * ((sizes[axis] - end) // KEYS)
    return side_by_side([*before, *(gradient.parts or (gradient,)), *after])


COMPOSITIONS: dict[str, Callable[..., TensorFormula]] = {
    "cat": _cat,
    "narrow": lambda algebra, source, axis, start, length: _slice(algebra, source, axis, start, start + length),
    "slice": _slice,
    "slice_backward": _slice_backward,
    "_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax": _log_softmax,
    "_log_softmax_backward_data": _log_softmax_backward,
    "logsumexp": _logsumexp,
}
"""Operation -> its rule, made of the algebra's methods."""
