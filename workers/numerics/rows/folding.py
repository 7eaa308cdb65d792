"""Operations whose result is decided by constants among their arguments.

A key is masked by minus infinity, which stays: addends are finite, and factors positive.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from workers.numerics.rows.nodes import Graph, Node, Operand

NOT_FOLDED, UNKNOWN = object(), object()
"""`fold` returns NOT_FOLDED if constants do not decide; UNKNOWN stands for an unknown entry."""
_MASKING = -1e8
"""A mask that fills with this number or less is read as minus infinity: no logit is near."""


def _equals(operand: Any, number: float) -> bool:
    return not isinstance(operand, Node) and isinstance(operand, int | float) and operand == number


def fold(name: str, args: list[Any], graph: Graph) -> Any:
    """Return an operation's result if constants among its arguments decide it, else NOT_FOLDED."""
    if name == "where" and isinstance(args[0], bool):
        return args[1] if args[0] else args[2]
    if name == "where" and isinstance(args[1], int | float) and _equals(args[2], args[1]):
        return args[1]
    if name == "masked_fill" and isinstance(args[1], bool):
        value = args[2] if args[1] else args[0]
        is_masked = args[1] and isinstance(value, int | float) and value <= _MASKING
        return -math.inf if is_masked else value
    if name in ("mul", "bitwise_and", "logical_and"):
        for arg, other in (args[:2], args[1::-1]):
            if arg is False or (name == "mul" and _equals(arg, 0) and not isinstance(other, int | float)):
                return arg
            if arg is True and name != "mul":
                return other
            if name == "mul" and _equals(arg, 1):
                return other
    if name in ("bitwise_or", "logical_or"):
        for arg, other in (args[:2], args[1::-1]):
            if isinstance(arg, bool):
                return True if arg else other
    if name in ("bitwise_not", "logical_not") and isinstance(args[0], bool):
        return not args[0]
    if name == "bitwise_not" and isinstance(args[0], Node):
        return graph.formula("~{0}", (args[0],), is_truth=True)
    if name.endswith("_backward") and _equals(args[0], 0):
        return args[0]
    if name == "div" and (_equals(args[1], 1) or (_equals(args[0], 0) and not isinstance(args[1], int | float))):
        return args[0]
    if name == "add" and len(args) == 2 and (_equals(args[0], 0) or _equals(args[1], 0)):
        return args[1] if _equals(args[0], 0) else args[0]
    if name in ("add", "sub", "mul", "div") and _equals(args[0], -math.inf) and not isinstance(args[1], int | float):
        return -math.inf
    if name in ("add", "mul") and _equals(args[1], -math.inf) and not isinstance(args[0], int | float):
        return -math.inf
    return NOT_FOLDED


def compute(name: str, args: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Operand:
    """Return the result of an operation on constants alone, computed by torch."""
    function = getattr(torch.ops.aten, name)
    keeps_numbers = name in ("clamp", "threshold_backward")
    operands = list(args)
    for number, arg in enumerate(args):
        if number == 0 or (isinstance(arg, bool | int | float) and not keeps_numbers):
            operands[number] = torch.tensor(arg, dtype=None if isinstance(arg, bool) else torch.float64)
    given = {key: value for key, value in keywords.items() if key in ("alpha", "min", "max")}
    return function(*operands, **given).item()
