"""Leaves of a space, read against their fields' rules: numbers, options, flags, their draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spaces.errors import PluginError, SpaceError
from spaces.grammar.declarations import Context
from spaces.grammar.distributions import KINDS, choose_option, draw_between
from spaces.grammar.expressions import compile_expression, reason
from spaces.grammar.formulas import Formula, LanguageError, Level, Scope, constant, fold_constant, scope_without_draws
from spaces.grammar.nodes import Node
from spaces.messages import shorten
from spaces.plugins.files import written_of
from spaces.plugins.rules import Rule

_FAILURES = (LanguageError, ArithmeticError, ValueError)


def read_leaf(node: Node, rule: Rule, context: Context) -> Formula:
    """Return the formula of a field that is not a plug-in; what it draws is recorded in `params` of the trial.

    Raises SpaceError for a value outside the language or, if it is constant, outside the rule.
    """
    formula = read_value(node, rule, context)
    if formula.level is Level.CONSTANT:
        return formula
    path, evaluate = context.path, formula.evaluate

    def evaluate_and_record(scope: Scope) -> Any:
        result = evaluate(scope)
        scope.params[path] = written_of(result)
        return result

    return Formula(evaluate=evaluate_and_record, level=formula.level, structure=formula.structure)


def read_value(node: Node, rule: Rule, context: Context) -> Formula:
    """Return the formula of a value that keeps `rule`, in the type that the rule gives it.

    Raises as `read_leaf` does.
    """
    first = len(context.declarations.draws)
    inner = _read_number(node, rule, context) if rule.kind in ("knob", "size") else _read_literal(node, rule, context)
    context.declarations.describe(context, node, inner.level, first)
    if rule.padded and inner.level is not Level.CONSTANT:
        context.declarations.drawn_sizes[context.path] = inner.level
    structural = rule.structural or rule.switch
    return fold_constant(
        Formula(
            evaluate=_add_check(node, rule, context.path, inner),
            level=inner.level,
            structure=inner.level if structural else Level.CONSTANT,
        )
    )


def match_draw(node: Node, kinds: Sequence[str], path: str) -> tuple[Any, tuple[Node, ...]] | None:
    """Return kind and arguments of a draw such as `{uniform: [0, 4]}`; None for other values."""
    if not isinstance(node.content, Mapping) or len(node.content) != 1:
        return None
    [(kind, inner)] = node.content.items()
    if kind not in kinds:
        return None
    count = len(inner.content) if isinstance(inner.content, tuple) else 0
    if not isinstance(inner.content, tuple) or (count < 2 if kind == "choice" else count != 2):
        expected = "a list of at least 2 options" if kind == "choice" else "a list of two bounds"
        raise node.error(path, f"{shorten(node.text)}: {kind} needs {expected}")
    return kind, inner.content


def _read_number(node: Node, rule: Rule, context: Context) -> Formula:
    content = node.content
    if isinstance(content, int | float) and not isinstance(content, bool):
        return constant(content)
    if isinstance(content, str):
        return with_location(node, context, lambda: compile_expression(content, context))
    draw = match_draw(node, KINDS, context.path)
    if draw is None:
        text = shorten(node.text) or "nothing"
        raise node.error(
            context.path, f"{text} must be {rule.describe()}, an expression or {{{'|'.join(KINDS)}: [...]}}"
        )
    kind, arguments = draw
    if kind == "choice":

        def read_option(option: Node, here: Context) -> Formula:
            formula = _read_number(option, rule, here)
            if formula.level is Level.CONSTANT:
                _add_check(option, rule, here.path, formula)(scope_without_draws())
            return formula

        return _read_choice(node, arguments, context, read_option)
    drawn = with_location(node, context, lambda: context.draw(kind, [argument.text for argument in arguments]))
    bounds = [_read_number(argument, Rule(kind="knob"), context) for argument in arguments]
    return with_location(node, context, lambda: draw_between(drawn, bounds))


def _read_literal(node: Node, rule: Rule, context: Context) -> Formula:
    draw = match_draw(node, ("choice",), context.path)
    if draw:
        return _read_choice(node, draw[1], context, lambda option, here: _read_literal(option, rule, here))
    if isinstance(node.content, tuple | Mapping):
        raise node.error(context.path, f"{shorten(node.text)} must be {rule.describe()}")
    # A number stands as it was written; a text as a whole, where the node's own is cut for errors.
    whole = rule.kind == "flag" or isinstance(node.content, str)
    value = constant(node.content if whole else node.text)
    _add_check(node, rule, context.path, value)(scope_without_draws())
    return value


def _read_choice(
    node: Node, options: Sequence[Node], context: Context, read: Callable[[Node, Context], Formula]
) -> Formula:
    draw = with_location(node, context, lambda: context.draw("choice", [option.text for option in options]))
    return choose_option(draw, [read(option, context.within(draw, option.text)) for option in options])


def with_location(node: Node, context: Context, action: Callable[[], Any]) -> Any:
    """Return the result of `action`; a LanguageError in it becomes the SpaceError of this node."""
    try:
        return action()
    except LanguageError as error:
        text = f"{shorten(node.text)}: " if isinstance(node.content, str) else ""
        raise node.error(context.path, f"{text}{error}") from error


def _add_check(node: Node, rule: Rule, path: str, formula: Formula) -> Callable[[Scope], Any]:
    """Return what evaluates to the value of `formula` in the type of its field.

    That raises SpaceError if the value breaks the rule.
    """
    compute, check = formula.evaluate, rule.check
    origin = f", from {shorten(node.text)}" if formula.level is not Level.CONSTANT else ""

    def evaluate(scope: Scope) -> Any:
        try:
            return check(path, compute(scope))
        except PluginError as error:
            raise SpaceError(f"{node.location}: {error}{origin}") from error
        except _FAILURES as error:
            raise node.error(path, f"{shorten(node.text)}: {reason(error)}") from error

    return evaluate
