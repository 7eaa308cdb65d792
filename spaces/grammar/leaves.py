"""Leaves of a space, read against the rule of the field that they stand in: numbers, options, flags, their draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spaces.errors import PluginError, SpaceError
from spaces.grammar.declarations import Site
from spaces.grammar.distributions import KINDS, chosen, ranged
from spaces.grammar.expressions import compiled, reason
from spaces.grammar.source import Node
from spaces.grammar.terms import LanguageError, Level, Scope, Term, constant, folded, still
from spaces.messages import shortened
from spaces.plugins.rules import Rule

_FAILURES = (LanguageError, ArithmeticError, ValueError)


def leaf(node: Node, rule: Rule, site: Site) -> Term:
    """The term of a field that is not a plug-in; what it draws is noted in the trial's parameters.

    Raises SpaceError for a value outside the language or, if it is constant, outside the rule.
    """
    term = value(node, rule, site)
    if term.level is Level.CONSTANT:
        return term
    path, evaluate = site.path, term.evaluate

    def noted(scope: Scope) -> Any:
        result = scope.params[path] = evaluate(scope)
        return result

    return Term(evaluate=noted, level=term.level, structure=term.structure)


def value(node: Node, rule: Rule, site: Site) -> Term:
    """The term of a value that keeps `rule`, in the type that the rule gives it; raises SpaceError as `leaf` does."""
    first = len(site.declarations.draws)
    inner = _number(node, rule, site) if rule.kind in ("knob", "size") else _literal(node, rule, site)
    site.declarations.describe(site, node.text, inner.level, first)
    if rule.padded and inner.level is not Level.CONSTANT:
        site.declarations.drawn_sizes[site.path] = inner.level
    structural = rule.structural or rule.switch
    return folded(
        Term(
            evaluate=_checked(node, rule, site.path, inner),
            level=inner.level,
            structure=inner.level if structural else Level.CONSTANT,
        )
    )


def draw_form(node: Node, kinds: Sequence[str], path: str) -> tuple[Any, tuple[Node, ...]] | None:
    """Kind and arguments of a draw in mapping form, `{uniform: [0, 4]}`; None for any other value."""
    if not isinstance(node.content, Mapping) or len(node.content) != 1:
        return None
    [(kind, inner)] = node.content.items()
    if kind not in kinds:
        return None
    count = len(inner.content) if isinstance(inner.content, tuple) else 0
    if not isinstance(inner.content, tuple) or (count < 2 if kind == "choice" else count != 2):
        expected = "a list of at least 2 options" if kind == "choice" else "a list of two bounds"
        raise node.error(path, f"{shortened(node.text)}: {kind} needs {expected}")
    return kind, inner.content


def _number(node: Node, rule: Rule, site: Site) -> Term:
    content = node.content
    if isinstance(content, int | float) and not isinstance(content, bool):
        return constant(content)
    if isinstance(content, str):
        return declared(node, site, lambda: compiled(content, site))
    draw = draw_form(node, KINDS, site.path)
    if draw is None:
        shown = shortened(node.text) or "nothing"
        raise node.error(site.path, f"{shown} must be {rule.describe()}, an expression or {{{'|'.join(KINDS)}: [...]}}")
    kind, arguments = draw
    if kind == "choice":
        return _choice(node, arguments, site, lambda option, here: _option(option, rule, here))
    drawn = declared(node, site, lambda: site.draw(kind, [argument.text for argument in arguments]))
    bounds = [_number(argument, Rule(kind="knob"), site) for argument in arguments]
    return declared(node, site, lambda: ranged(drawn, bounds))


def _option(node: Node, rule: Rule, site: Site) -> Term:
    term = _number(node, rule, site)
    if term.level is Level.CONSTANT:
        _checked(node, rule, site.path, term)(still())
    return term


def _literal(node: Node, rule: Rule, site: Site) -> Term:
    draw = draw_form(node, ("choice",), site.path)
    if draw:
        return _choice(node, draw[1], site, lambda option, here: _literal(option, rule, here))
    if isinstance(node.content, tuple | Mapping):
        raise node.error(site.path, f"{shortened(node.text)} must be {rule.describe()}")
    # A number stands as it was written; a text as a whole, where the node's own is cut for errors.
    whole = rule.kind == "flag" or isinstance(node.content, str)
    value = constant(node.content if whole else node.text)
    _checked(node, rule, site.path, value)(still())
    return value


def _choice(node: Node, options: Sequence[Node], site: Site, read: Callable[[Node, Site], Term]) -> Term:
    draw = declared(node, site, lambda: site.draw("choice", [option.text for option in options]))
    return chosen(draw, [read(option, site.within(draw, option.text)) for option in options])


def declared(node: Node, site: Site, action: Callable[[], Any]) -> Any:
    """The result of `action`, its faults put in their place."""
    try:
        return action()
    except LanguageError as error:
        shown = f"{shortened(node.text)}: " if isinstance(node.content, str) else ""
        raise node.error(site.path, f"{shown}{error}") from error


def _checked(node: Node, rule: Rule, path: str, term: Term) -> Callable[[Scope], Any]:
    """The value of `term` in the type of its field; raises SpaceError if it has none or breaks the rule."""
    compute, check = term.evaluate, rule.check
    origin = f", from {shortened(node.text)}" if term.level is not Level.CONSTANT else ""

    def evaluate(scope: Scope) -> Any:
        try:
            return check(path, compute(scope))
        except PluginError as error:
            raise SpaceError(f"{node.place}: {error}{origin}") from error
        except _FAILURES as error:
            raise node.error(path, f"{shortened(node.text)}: {reason(error)}") from error

    return evaluate
