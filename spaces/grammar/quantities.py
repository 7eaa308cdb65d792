"""Quantities: expressions over a trial's values and metrics, `loss/raw + 0.01 * model.width`.

A value is written by its path, as in `search trials --where`: `model.width`,
`optimizer.learning_rate`. A metric of one validation is written as an objective: `tvd/bema`,
`accuracy/raw/length=64`. Otherwise they are as expressions are, without draws.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from spaces.grammar.declarations import Context, Declarations
from spaces.grammar.expressions import compile_expression
from spaces.grammar.formulas import LanguageError, Level, Scope, named_value
from spaces.messages import shorten
from spaces.settings import MetricName, Quantity

_NAMED = re.compile(
    r"(?<![\w.$])(?:"
    r"(?<!/)(?P<metric>[a-z]\w*)/(?P<variant>[a-z]\w*)(?:/(?P<condition>[A-Za-z][^\s()+*/,<>]*))?(?![\w.(])"
    r"|(?P<path>[a-z]\w*(?:\.\w+)+)(?![\w(]))",
    re.ASCII,
)
_BOUND = re.compile(r"[<>]=?|==?(?=\s)")


def compile_quantity(text: str) -> Quantity:
    """Return an expression's quantity; LanguageError for none, or one that names nothing."""
    return _compile(text, text)


def compile_constraint(text: str) -> Quantity:
    """Return the excess over a bound such as `model.width <= 32`; LanguageError for other texts."""
    bounds = _BOUND.findall(text)
    if len(bounds) != 1 or bounds[0] not in ("<=", ">="):
        raise LanguageError("a constraint is one comparison by <= or >=, as in model.width <= 32")
    left, right = text.split(bounds[0])
    less, more = (left, right) if bounds[0] == "<=" else (right, left)
    return _compile(f"({less.strip()}) - ({more.strip()})", text)


def _compile(expression: str, text: str) -> Quantity:
    if "$" in expression:
        raise LanguageError("a named value is not kept with a trial; write the path where it is used: model.width")
    names: dict[MetricName | str, str] = {}

    def name(match: re.Match[str]) -> str:
        metric, variant, condition, path = match.group("metric", "variant", "condition", "path")
        key = path or MetricName(metric, variant, condition or "")
        return "$" + names.setdefault(key, f"q{len(names)}")

    renamed = _NAMED.sub(name, expression)
    if not names:
        raise LanguageError("it names no metric (tvd/raw) and no value of a trial (model.width)")
    declarations = Declarations(dict.fromkeys(names.values(), "trial"))
    declarations.values.update({label: named_value(label, Level.TRIAL) for label in names.values()})
    try:
        context = Context(declarations=declarations, path="", block="trial")
        formula = compile_expression(renamed, context)
    except LanguageError as error:
        known = {label: str(key) for key, label in names.items()}
        message = re.sub(r"\$(q\d+)", lambda match: known.get(match[1], match[0]), str(error))
        raise LanguageError(shorten(message, 200)) from None
    if declarations.draws:
        raise LanguageError(f"{declarations.draws[0].kind} draws a random value, but a trial has ended here")

    def compute(values: Mapping[str, float]) -> float:
        try:
            return float(formula.evaluate(Scope(lambda _: 0.0, values)))
        except (LanguageError, ArithmeticError, ValueError):
            return math.nan

    return Quantity(
        text=" ".join(text.split()),
        metrics={label: key for key, label in names.items() if isinstance(key, MetricName)},
        paths={label: key for key, label in names.items() if isinstance(key, str)},
        compute=compute,
    )
