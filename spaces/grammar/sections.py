"""Sections and plug-ins of a space: from the three ways to write a plug-in to its formula."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from spaces import plugins
from spaces.errors import PluginError
from spaces.grammar.declarations import Context
from spaces.grammar.distributions import choose_option
from spaces.grammar.formulas import Formula, Level, Scope, constant, evaluate_constant, fold_constant
from spaces.grammar.nodes import Node
from spaces.grammar.values import match_draw, read_leaf, with_location
from spaces.messages import no_such, shorten

Families = Mapping[str, type]
"""The plug-ins' base classes: task, model, optimizer, averaging, learning, sampler, stopping."""
_AS_OF = ContextVar[int | None]("the version of the numerics whose defaults hold", default=None)


@contextmanager
def defaults_of(numerics: int | None) -> Generator[None]:
    """Give fields that are left out the defaults of a version of the numerics; None is today's."""
    token = _AS_OF.set(numerics)
    try:
        yield
    finally:
        _AS_OF.reset(token)


def read_mapping(node: Node, path: str) -> Mapping[str, Node]:
    """Return the entries of a section; raises SpaceError for any other value."""
    if not isinstance(node.content, Mapping):
        shown = node.text or "nothing"
        message = f"{shown} stands here, but this must be a section of key: value lines"
        raise node.error(path, message)
    return node.content


def read_count(node: Node, path: str, most: int) -> int:
    """Return an integer from 1 to `most`, written out; raises SpaceError for any other value."""
    digits = node.word.replace("_", "")
    if not re.fullmatch(r"[0-9]{1,7}", digits) or not 1 <= int(digits) <= most:
        raise node.error(path, f"{shorten(repr(node.text))} must be an integer in [1, {most:,}]")
    return int(digits)


def read_plugin(node: Node, family: type, context: Context) -> Formula:
    """Return the formula of a plug-in, maybe a choice of several; it gives the plug-in object."""
    options = match_draw(node, ("choice",), context.path)
    if options:
        return _read_plugin_choice(node, options[1], family, context)
    name, fields = _split_name(node, context.path)
    if name not in plugins.names(family):
        raise node.error(context.path, plugins.unknown_member(family, name))
    declarations = context.declarations
    word = Node.of_word(name, node)
    declarations.describe(context, word, Level.CONSTANT, len(declarations.draws))
    try:
        member = plugins.load(family, name)
    except PluginError as error:  # a file from outside that cannot be imported
        raise node.error(context.path, str(error)) from error
    return read_record(node, fields, member, name, context)


def read_record(node: Node, fields: Mapping[str, Node], member: type, name: str, context: Context) -> Formula:
    """Return the formula of a `member` with these nodes of its fields; errors call it `name`."""
    rules = plugins.rules(member)
    for key, child in fields.items():
        if key not in rules:
            raise child.error(f"{context.path}.{shorten(key)}", no_such(f"field of {name}", key, rules))
    missing = sorted(plugins.required_fields(member) - fields.keys())
    if missing:
        raise node.error(context.path, f"{name} needs {', '.join(missing)}")
    contents = {key: child.content for key, child in fields.items()}
    formulas: dict[str, Formula] = {}
    for key, child in fields.items():
        try:
            rule = rules[key].for_fields(contents)
        except PluginError as error:
            raise fields[rules[key].ending].error(context.path, str(error)) from error
        here = context.at(key)
        formulas[key] = read_plugin(child, rule.family, here) if rule.family else read_leaf(child, rule, here)
    numerics = _AS_OF.get()
    for key, rule in rules.items():
        earlier = rule.earlier
        if key not in fields and earlier and numerics is not None and numerics <= earlier[0]:
            formulas[key] = constant(earlier[1])
    return _construct(node, member, context.path, formulas)


def _construct(node: Node, member: type, path: str, formulas: Mapping[str, Formula]) -> Formula:
    varying = {key: formula.evaluate for key, formula in formulas.items() if formula.level > Level.CONSTANT}
    fixed = {key: evaluate_constant(formula) for key, formula in formulas.items() if key not in varying}

    def evaluate(scope: Scope) -> Any:
        values = {key: compute(scope) for key, compute in varying.items()}
        try:
            return member(**fixed, **values)
        except PluginError as error:
            # A rule between fields: drawn ones are named, because the file does not show them.
            drawn = ", ".join(f"{key} = {value!r}" for key, value in values.items())
            rule = f"{error}, with {drawn}" if drawn else str(error)
            raise node.error("" if rule.startswith(path) else path, rule) from error

    level = max((formula.level for formula in formulas.values()), default=Level.CONSTANT)
    structure = max((formula.structure for formula in formulas.values()), default=Level.CONSTANT)
    return fold_constant(Formula(evaluate=evaluate, level=level, structure=structure))


def _read_plugin_choice(node: Node, options: Sequence[Node], family: type, context: Context) -> Formula:
    first = len(context.declarations.draws)
    heads = [_split_name(option, context.path)[0] for option in options]
    named = zip(heads, options, strict=True)
    labels = [head if heads.count(head) == 1 else option.text for head, option in named]
    draw = with_location(node, context, lambda: context.draw("choice", labels))
    context.declarations.describe(context, node, Level.TRIAL, first)
    formulas: list[Formula] = []
    for option, label in zip(options, labels, strict=True):
        formula = read_plugin(option, family, context.within(draw, label))
        formulas.append(_record_label(formula, context.path, label))
    return choose_option(draw, formulas)


def _record_label(formula: Formula, path: str, label: str) -> Formula:
    """Return the plug-in with its option in the trial's params, in full if options share a name."""

    def evaluate(scope: Scope) -> Any:
        # Before the plug-in, which may be a choice itself and know better.
        scope.params[path] = label
        return formula.evaluate(scope)

    return Formula(evaluate=evaluate, level=formula.level, structure=formula.structure)


def _split_name(node: Node, path: str) -> tuple[str, Mapping[str, Node]]:
    """Return name and fields of a plug-in, whichever of the three ways it is written."""
    content = node.content
    if isinstance(content, str):
        return content, {}
    if isinstance(content, Mapping):
        if "name" in content:
            fields = {key: child for key, child in content.items() if key != "name"}
            return content["name"].text, fields
        if len(content) == 1:
            [(name, inner)] = content.items()
            if inner.content is None:
                return name, {}
            return name, read_mapping(inner, f"{path}.{shorten(name)}")
    ways = "name, {name: {field: value}} or {name: name, field: value}"
    raise node.error(path, f"{shorten(node.text)} is not a plug-in, write one as {ways}")
