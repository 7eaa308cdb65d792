"""Expressions: `1 + floor(2 ** uniform(0, 4))`, `$vocabulary - 1`.

Python's grammar is used for syntax alone (`ast.parse`); a walker with a white list turns the tree
into closures, and Python never evaluates anything of the file. All arithmetic is on finite 64-bit
floats, so no expression hangs or grows; the field that takes the value may want a whole number.

    numbers     1  0.5  1e-5  10_000         constants  pi  e         named values  $width
    operators   + - * / // % ** and parentheses
    functions   floor ceil round(half to even) abs min max relu sqrt exp log log2 log10
    draws       uniform(a, b)  log_uniform(a, b)  int(a, b)  log_int(a, b)  choice(x, y, ...)
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Mapping, Sequence

from spaces.grammar.declarations import Context
from spaces.grammar.distributions import KINDS, choose_option, draw_between
from spaces.grammar.formulas import DrawKind, Formula, LanguageError, Scope, constant, fold_constant
from spaces.messages import no_such, shorten

LONGEST = 500
"""Characters of an expression."""
DEEPEST = 64
"""Operators and calls around a number."""

_REFERENCE = "ð"  # stands for `$` in what Python parses: a letter that no expression may have
_FOREIGN = re.compile(r"[^\w$.+\-*/%(), ]", re.ASCII)

_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
_OPERATORS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,
}
_FUNCTIONS: Mapping[str, Callable[[float], float]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "abs": abs,
    "relu": lambda x: max(x, 0.0),
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
}
_EXTREMES: Mapping[str, Callable[..., float]] = {"min": min, "max": max}
_CALLS = (*_FUNCTIONS, *_EXTREMES, *KINDS)


def compile_expression(text: str, context: Context) -> Formula:
    """Return an expression's formula and register its draws, outer first; raises LanguageError."""
    try:
        return _Walker(" ".join(text.split()), context).formula
    except (ArithmeticError, ValueError) as error:
        raise LanguageError(reason(error)) from error


def reason(error: Exception) -> str:
    """Explain in words why a computation has no finite result."""
    if isinstance(error, LanguageError):
        return str(error)
    if isinstance(error, ZeroDivisionError):
        return "division by zero"
    if isinstance(error, OverflowError):
        return "the result is too large"
    return "the result is not a real number"


def check_finite(value: float) -> float:
    """Return `value` as a float; raises OverflowError unless it is finite."""
    number = float(value)
    if not math.isfinite(number):
        raise OverflowError
    return number


class _Walker:
    """Turns one expression into a formula."""

    def __init__(self, text: str, context: Context) -> None:
        if len(text) > LONGEST:
            rule = f"an expression may have {LONGEST} characters"
            raise LanguageError(f"{rule}, but this one has {len(text)}")
        foreign = _FOREIGN.search(text)
        if foreign:
            raise LanguageError(f"{foreign.group()!r} cannot stand in an expression")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # `1if` and the like only warn today
                tree = ast.parse(text.replace("$", _REFERENCE), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError, Warning) as error:
            raise LanguageError("this is not an expression") from error
        self._text = text
        self.formula = self._walk(tree.body, context, 0)

    def _walk(self, node: ast.expr, context: Context, depth: int) -> Formula:
        if depth > DEEPEST:
            raise LanguageError(f"an expression may be nested {DEEPEST} deep")
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return constant(check_finite(value))
            case ast.Name(id=name) if name.startswith(_REFERENCE):
                return context.value(name.removeprefix(_REFERENCE))
            case ast.Name(id=name) if name in _CONSTANTS:
                return constant(_CONSTANTS[name])
            case ast.Name(id=name):
                shown = name.replace(_REFERENCE, "$")
                if shown in context.declarations.blocks:
                    raise LanguageError(f"{shown!r} is a named value, write ${shown}")
                rule = "a named value is written $name, and a function needs its parentheses"
                raise LanguageError(f"{shown!r} is no number; {rule}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return _apply(lambda x: -x, self._walk(operand, context, depth + 1))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                first = self._walk(left, context, depth + 1)
                second = self._walk(right, context, depth + 1)
                return _apply(_OPERATORS[type(op)], first, second)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(name, arguments, context, depth + 1)
            case _:
                raise LanguageError(f"{self._source(node)!r} is not part of the language of expressions")

    def _source(self, node: ast.expr) -> str:
        segment = ast.get_source_segment(self._text.replace("$", _REFERENCE), node) or self._text
        return shorten(segment.replace(_REFERENCE, "$"))

    def _call(self, name: str, arguments: list[ast.expr], context: Context, depth: int) -> Formula:
        if name in _FUNCTIONS:
            _check_count(name, arguments, 1)
            return _apply(_FUNCTIONS[name], self._walk(arguments[0], context, depth))
        if name in _EXTREMES:
            _check_two(name, arguments)
            return _apply(_EXTREMES[name], *(self._walk(argument, context, depth) for argument in arguments))
        if name not in KINDS:
            raise LanguageError(no_such("function", name.replace(_REFERENCE, "$"), _CALLS))
        kind: DrawKind = name
        texts = [self._source(argument) for argument in arguments]
        if kind == "choice":
            _check_two(kind, arguments)
            draw = context.draw(kind, texts)
            sites = [context.within(draw, text) for text in texts]
            pairs = zip(arguments, sites, strict=True)
            return choose_option(draw, [self._walk(node, here, depth) for node, here in pairs])
        _check_count(kind, arguments, 2)
        draw = context.draw(kind, texts)
        return draw_between(draw, [self._walk(argument, context, depth) for argument in arguments])


def _check_count(name: str, arguments: Sequence[object], expected: int) -> None:
    if len(arguments) != expected:
        count = f"{expected} argument{'s' * (expected > 1)}"
        raise LanguageError(f"{name} takes {count}, but got {len(arguments)}")


def _check_two(name: str, arguments: Sequence[object]) -> None:
    if len(arguments) < 2:
        raise LanguageError(f"{name} takes at least 2 arguments, but got {len(arguments)}")


def _apply(function: Callable[..., float], *operands: Formula) -> Formula:
    inner = [operand.evaluate for operand in operands]

    def evaluate(scope: Scope) -> float:
        return check_finite(function(*[part(scope) for part in inner]))

    level = max(operand.level for operand in operands)
    return fold_constant(Formula(evaluate=evaluate, level=level))
