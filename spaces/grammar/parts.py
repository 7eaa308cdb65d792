"""Plug-ins of a space and their sections: from the three ways to write one to a term that gives the plug-in object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spaces import plugins
from spaces.errors import PluginError
from spaces.grammar.declarations import Site
from spaces.grammar.distributions import chosen
from spaces.grammar.leaves import declared, draw_form, leaf
from spaces.grammar.source import Node
from spaces.grammar.terms import Level, Scope, Term, constant_value, folded
from spaces.messages import shortened, unknown
from spaces.plugins.rules import Rule

Families = Mapping[str, type]
"""The abstract classes of the plug-ins: task, model, optimizer, averaging, learning, sampler, stopping."""


def mapping(node: Node, path: str) -> Mapping[str, Node]:
    """The entries of a section; raises SpaceError for any other value."""
    if not isinstance(node.content, Mapping):
        raise node.error(path, f"{node.text or 'nothing'} stands here, but this must be a section of key: value lines")
    return node.content


def plugin(node: Node, family: type, site: Site) -> Term:
    """The term of a plug-in, which may be a choice among plug-ins; it evaluates to the plug-in object."""
    options = draw_form(node, ("choice",), site.path)
    if options:
        return _plugin_choice(node, options[1], family, site)
    name, fields = _spelled(node, site.path)
    if name not in plugins.names(family):
        raise node.error(site.path, unknown(plugins.title(family), name, plugins.names(family)))
    site.declarations.describe(site, name, Level.CONSTANT, len(site.declarations.draws))
    return record(node, fields, plugins.load(family, name), name, site)


def record(node: Node, fields: Mapping[str, Node], member: type, name: str, site: Site) -> Term:
    """The term of an object of the dataclass `member`, called `name` in errors, from the nodes of its fields."""
    rules = plugins.rules(member)
    for key, child in fields.items():
        if key not in rules:
            raise child.error(f"{site.path}.{shortened(key)}", unknown(f"field of {name}", key, rules))
    missing = sorted(plugins.required(member) - fields.keys())
    if missing:
        raise node.error(site.path, f"{name} needs {', '.join(missing)}")
    terms = {key: _field(child, rules[key], site.at(key)) for key, child in fields.items()}
    return _constructed(node, member, site.path, terms)


def _field(node: Node, rule: Rule, site: Site) -> Term:
    return plugin(node, rule.family, site) if rule.family else leaf(node, rule, site)


def _constructed(node: Node, member: type, path: str, terms: Mapping[str, Term]) -> Term:
    moving = [(key, term.evaluate) for key, term in terms.items() if term.level is not Level.CONSTANT]
    fixed = {key: constant_value(term) for key, term in terms.items() if term.level is Level.CONSTANT}

    def evaluate(scope: Scope) -> Any:
        values = {key: compute(scope) for key, compute in moving}
        try:
            return member(**fixed, **values)
        except PluginError as error:
            # A rule between fields: the drawn ones are named, because the file does not show their values.
            shown = ", ".join(f"{key} = {value!r}" for key, value in values.items())
            rule = f"{error}, with {shown}" if shown else str(error)
            raise node.error("" if rule.startswith(path) else path, rule) from error

    level = max((term.level for term in terms.values()), default=Level.CONSTANT)
    structure = max((term.structure for term in terms.values()), default=Level.CONSTANT)
    return folded(Term(evaluate=evaluate, level=level, structure=structure))


def _plugin_choice(node: Node, options: Sequence[Node], family: type, site: Site) -> Term:
    first = len(site.declarations.draws)
    heads = [_spelled(option, site.path)[0] for option in options]
    labels = [head if heads.count(head) == 1 else option.text for head, option in zip(heads, options, strict=True)]
    draw = declared(node, site, lambda: site.draw("choice", labels))
    site.declarations.describe(site, node.text, Level.TRIAL, first)
    sites = [site.within(draw, label) for label in labels]
    term = chosen(draw, [plugin(option, family, here) for option, here in zip(options, sites, strict=True)])
    path, evaluate = site.path, term.evaluate

    def noted(scope: Scope) -> Any:
        value = evaluate(scope)
        scope.params[path] = plugins.name_of(value)
        return value

    return Term(evaluate=noted, level=term.level, structure=term.structure)


def _spelled(node: Node, path: str) -> tuple[str, Mapping[str, Node]]:
    """Name and fields of a plug-in, whichever of the three ways it is written."""
    content = node.content
    if isinstance(content, str):
        return content, {}
    if isinstance(content, Mapping):
        if "name" in content:
            return content["name"].text, {key: child for key, child in content.items() if key != "name"}
        if len(content) == 1:
            [(name, inner)] = content.items()
            return name, {} if inner.content is None else mapping(inner, f"{path}.{shortened(name)}")
    ways = "name, {name: {field: value}} or {name: name, field: value}"
    raise node.error(path, f"{shortened(node.text)} is not a plug-in, write one as {ways}")
