"""The C++ formula of each of ATen's pointwise operations, by the operation's name.

`{0}`, `{1}` ... stand for the operands, in the type `{T}` that is computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers.numerics.codegen.values import CannotGenerate, Kind, spell
from workers.numerics.simplifying import Slot

FUNCTIONS = Path(__file__).with_name("arithmetic.hpp").read_text()
"""C++ functions that formulas call."""
ARITHMETIC = {
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "reciprocal": "{T}(1) / {0}",
    "rsqrt": "{T}(1) / sqrt({0})",
    "sqrt": "sqrt({0})",
    "exp": "exp({0})",
    "exp2": "exp2({0})",
    "expm1": "expm1({0})",
    "log": "log({0})",
    "log1p": "log1p({0})",
    "log2": "log2({0})",
    "sin": "sin({0})",
    "cos": "cos({0})",
    "tanh": "tanh({0})",
    "erf": "erf({0})",
    "sigmoid": "{T}(1) / ({T}(1) + exp(-{0}))",
    "abs": "{0} < {T}(0) ? -{0} : {0} == {T}(0) ? {T}(0) : {0}",
    "sgn": "sign_of({0})",
    "sign": "sign_of({0})",
    "floor": "floor({0})",
    "ceil": "ceil({0})",
    "trunc": "trunc({0})",
    "round": "rint({0})",
    "relu": "{0} <= {T}(0) ? {T}(0) : {0}",
    "maximum": "larger({0}, {1})",
    "minimum": "smaller({0}, {1})",
    "remainder": "left_over({0}, {1})",
    "floor_divide": "quotient_down({0}, {1})",
    "tanh_backward": "{0} * ({T}(1) - {1} * {1})",
    "sigmoid_backward": "{0} * ({T}(1) - {1}) * {1}",
    "threshold_backward": "{1} <= {2} ? {T}(0) : {0}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "__rshift__": "{0} >> {1}",
    "__lshift__": "{0} << {1}",
    "bitwise_right_shift": "{0} >> {1}",
    "bitwise_left_shift": "{0} << {1}",
    "clone": "{0}",
    "_to_copy": "{0}",
}
"""Formulas that are computed in the result's type."""

COMPARISONS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "isnan": "{0} != {0}",
    "isinf": "!isfinite({0}) && {0} == {0}",
    "isfinite": "isfinite({0})",
    "logical_and": "{0} != {T}(0) && {1} != {T}(0)",
    "logical_or": "{0} != {T}(0) || {1} != {T}(0)",
    "logical_not": "{0} == {T}(0)",
}
"""Formulas that are true or false, computed in the type that the operands have in common."""

_POWERS = {
    0.0: "{T}(1)",
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    0.5: "sqrt({0})",
    -0.5: "{T}(1) / sqrt({0})",
    -1.0: "{T}(1) / {0}",
    -2.0: "{T}(1) / ({0} * {0})",
}
_COSTLY = ("exp", "log", "sin", "cos", "tanh", "erf", "pow", "sqrt", "left_over", "quotient_down", " / ")


Formula = tuple[str, list[Any]]


def formula_of(name: str, positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    """Return an operation's formula, in its result's type, and operands; raises CannotGenerate."""
    if name in ARITHMETIC:
        return ARITHMETIC[name], take_operands(ARITHMETIC[name], positional)
    if name in _LONGER:
        if keywords.get("approximate", "none") != "none":
            raise CannotGenerate("an approximated GELU")
        return _LONGER[name](positional, keywords, dtype)
    raise CannotGenerate(name)


def take_operands(template: str, arguments: list[Any]) -> list[Any]:
    """Return the first arguments, as many as a template has places for."""
    return arguments[: 1 + ("{1}" in template) + ("{2}" in template)]


def has_formula(name: str) -> bool:
    """Return whether an operation has a formula, whatever its operands."""
    return name in ARITHMETIC or name in COMPARISONS or name in _LONGER


def cost_of(template: str) -> int:
    """Return the rough cost of a formula; a cheap one is computed again rather than kept."""
    return 8 if any(word in template for word in _COSTLY) else 1


def _sum(sign: str, positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    alpha = positional[2] if len(positional) > 2 else keywords.get("alpha", 1)
    factor = "" if alpha == 1 else f" * {spell(alpha, dtype)}"
    return f"{{0}} {sign} {{1}}{factor}", positional[:2]


def _reversed_difference(positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    template, operands = _sum("-", positional, keywords, dtype)
    return template, operands[::-1] if template == "{0} - {1}" else _refuse("rsub with a factor")


def _quotient(positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    rounding = keywords.get("rounding_mode")
    if rounding is None and dtype.is_floating_point:
        return "{0} / {1}", positional[:2]
    return ("quotient_down({0}, {1})", positional[:2]) if rounding == "floor" else _refuse("a rounded quotient")


def _power(positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    base, exponent = positional[:2]
    if isinstance(exponent, int | float) and float(exponent) in _POWERS:
        return _POWERS[float(exponent)], [base]
    return ("pow({0}, {1})", [base, exponent]) if dtype.is_floating_point else _refuse("powers of whole numbers")


def _bounded(positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    low, high = ([*positional[1:], None, None])[:2]
    low, high = keywords.get("min", low), keywords.get("max", high)
    operands, formula = [positional[0]], "{0}"
    if low is not None:
        operands.append(low)
        formula = f"larger({formula}, {{{len(operands) - 1}}})"
    if high is not None:
        operands.append(high)
        formula = f"smaller({formula}, {{{len(operands) - 1}}})"
    return formula, operands


def _finite(positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    known = torch.finfo(dtype) if dtype.is_floating_point else _refuse("whole numbers are finite")
    given = [*positional[1:], None, None, None][:3]
    chosen = [keywords.get(name, number) for name, number in zip(("nan", "posinf", "neginf"), given, strict=True)]
    usual = (0.0, known.max, known.min)
    none, most, least = (
        spell(default if number is None else number, dtype) for number, default in zip(chosen, usual, strict=True)
    )
    return f"{{0}} != {{0}} ? {none} : isfinite({{0}}) ? {{0}} : {{0}} > {{T}}(0) ? {most} : {least}", positional[:1]


def _gelu_backward(positional: list[Any], keywords: dict[str, Any], dtype: torch.dtype) -> Formula:
    root, scale = spell(0.5**0.5, dtype), spell(0.3989422804014327, dtype)
    below = f"{{T}}(0.5) * ({{T}}(1) + erf({{1}} * {root}))"
    return f"{{0}} * ({below} + {{1}} * (exp({{1}} * {{1}} * {{T}}(-0.5)) * {scale}))", positional[:2]


def _refuse(what: str) -> Any:
    raise CannotGenerate(what)


_LONGER: dict[str, Callable[[list[Any], dict[str, Any], torch.dtype], Formula]] = {
    "add": partial(_sum, "+"),
    "sub": partial(_sum, "-"),
    "rsub": _reversed_difference,
    "div": _quotient,
    "pow": _power,
    "clamp": _bounded,
    "nan_to_num": _finite,
    "gelu": lambda positional, _, dtype: (
        f"{{0}} * {{T}}(0.5) * ({{T}}(1) + erf({{0}} * {spell(0.5**0.5, dtype)}))",
        positional[:1],
    ),
    "gelu_backward": _gelu_backward,
    "bitwise_not": lambda positional, _, dtype: ("!{0}" if dtype == torch.bool else "~{0}", positional[:1]),
}


def common_type(operands: list[Any], kinds: Mapping[Slot, Kind]) -> torch.dtype:
    """Return the type in which torch's promotion compares operands, from shapes and types alone."""
    known = [Kind.of(operand) if isinstance(operand, Tensor) else kinds.get(operand) for operand in operands]
    typed: list[tuple[torch.dtype, bool]] = []
    for operand, kind in zip(operands, known, strict=True):
        number = torch.int64 if isinstance(operand, int) else torch.float32
        number = torch.bool if isinstance(operand, bool) else number
        typed.append((kind.dtype, bool(kind.shape)) if kind else (number, False))
    promoted = typed[0][0]
    for dtype, has_axes in typed[1:]:
        ranks = [_CATEGORIES.index((option.is_floating_point, option == torch.bool)) for option in (promoted, dtype)]
        if typed[0][1] == has_axes and known[0] and known[-1]:
            promoted = torch.promote_types(promoted, dtype)
        elif ranks[0] != ranks[1]:
            promoted = dtype if ranks[1] > ranks[0] else promoted
        else:
            promoted = dtype if has_axes else promoted
    return promoted


_CATEGORIES = [(False, True), (False, False), (True, False)]
"""A number or a tensor without axes changes another's type only from a later one of these."""
