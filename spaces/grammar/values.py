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
from spaces.plugins.rules import Rule

_FAILURES = (LanguageError, ArithmeticError, ValueError)


def read_leaf(node: Node, rule: Rule, context: Context) -> Formula:
    """Return the formula of a field that is not a plug-in; `params` of a trial record its draws.

    Raises SpaceError for a value outside the language or, if it is constant, outside the rule.
    """
    formula = read_value(node, rule, context)
    if formula.level is Level.CONSTANT:
        return formula
    path, evaluate, is_file = context.path, formula.evaluate, rule.kind == "file"

    def evaluate_and_record(scope: Scope) -> Any:
        result = evaluate(scope)
        scope.params[path] = result.written if is_file else result
        return result

    return Formula(evaluate=evaluate_and_record, level=formula.level, structure=formula.structure)


def read_value(node: Node, rule: Rule, context: Context) -> Formula:
    """Return the formula of a value that keeps `rule`, in its type; raises as `read_leaf` does."""
    first = len(context.declarations.draws)
    read = _read_number if rule.kind in ("knob", "size") else _read_literal
    inner = read(node, rule, context)
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
        text, draws = shorten(node.text) or "nothing", f"{{{'|'.join(KINDS)}: [...]}}"
        message = f"{text} must be {rule.describe()}, an expression or {draws}"
        raise node.error(context.path, message)
    kind, arguments = draw
    if kind == "choice":

        def read_option(option: Node, here: Context) -> Formula:
            formula = _read_number(option, rule, here)
            if formula.level is Level.CONSTANT:
                _add_check(option, rule, here.path, formula)(scope_without_draws())
            return formula

        return _read_choice(node, arguments, context, read_option)
    texts = [argument.text for argument in arguments]
    drawn = with_location(node, context, lambda: context.draw(kind, texts))
    bounds = [_read_number(argument, Rule(kind="knob"), context) for argument in arguments]
    return with_location(node, context, lambda: draw_between(drawn, bounds))


def _read_literal(node: Node, rule: Rule, context: Context) -> Formula:
    draw = match_draw(node, ("choice",), context.path)
    if draw:
        options = draw[1]
        return _read_choice(node, options, context, lambda option, here: _read_literal(option, rule, here))
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
    texts = [option.text for option in options]
    draw = with_location(node, context, lambda: context.draw("choice", texts))
    return choose_option(draw, [read(option, context.within(draw, option.text)) for option in options])


def with_location(node: Node, context: Context, action: Callable[[], Any]) -> Any:
    """Return the result of `action`; a LanguageError in it becomes the SpaceError of this node."""
    try:
        return action()
    except LanguageError as error:
        text = f"{shorten(node.text)}: " if isinstance(node.content, str) else ""
        raise node.error(context.path, f"{text}{error}") from error


def _add_check(node: Node, rule: Rule, path: str, formula: Formula) -> Callable[[Scope], Any]:
    """Return an evaluation of `formula` in its field's type, with a SpaceError outside the rule."""
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
