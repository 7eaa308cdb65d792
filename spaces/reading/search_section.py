"""The section `search:` of a space. Nothing in it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from spaces.grammar.declarations import Context
from spaces.grammar.formulas import LanguageError, evaluate_constant
from spaces.grammar.nodes import Node
from spaces.grammar.quantities import compile_constraint, compile_quantity
from spaces.grammar.sections import Families, read_mapping, read_plugin
from spaces.grammar.values import read_value, with_location
from spaces.messages import no_such, shorten
from spaces.plugins import load, name_of, names, required_fields, rules
from spaces.plugins.protocols import NamesVariants
from spaces.settings import OBJECTIVE, Direction, Objective, Quantity, Search, SecondObjective

_KEYS = ("sampler", "stopping", "trials", "group", "seed", "objective", "feasible", "history")
_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


def read_search(node: Node, families: Families, context: Context) -> Search:
    """Return the search's settings; the sampler is `random` unless the section names another."""
    entries = read_mapping(node, context.path)
    for key, child in entries.items():
        if key not in _KEYS:
            raise child.error(context.path, no_such("field of search", key, _KEYS))
    missing = [key for key in ("trials", "objective") if key not in entries]
    if missing:
        raise node.error(context.path, f"search needs {', '.join(missing)}")
    ruled = {key: rule for key, rule in rules(Search).items() if key in entries}
    named = [family for family in families.values() if isinstance(family, NamesVariants)]
    variants = [name for family in named for name in family.VARIANTS]
    first, second = _read_objectives(entries["objective"], variants, context.at("objective"))
    sampler = entries.get("sampler") or Node.of_word("random", node)
    policies, bounds = _list_items(entries.get("stopping")), _list_items(entries.get("feasible"))
    built = _build_plugin(sampler, families["sampler"], context.at("sampler"))
    stopping, feasible = context.at("stopping"), context.at("feasible")
    stops = [_build_plugin(policy, families["stopping"], stopping) for policy in policies]
    compiled = [_compile(bound, compile_constraint, feasible) for bound in bounds]
    values = {key: read_value(entries[key], rule, context.at(key)) for key, rule in ruled.items()}
    search = Search(
        sampler=built,
        stopping=tuple(stops),
        objective=first,
        second=second,
        feasible=tuple({constraint.text: constraint for constraint in compiled}.values()),
        **{key: evaluate_constant(value) for key, value in values.items()},
    )
    if second:
        _check_two_objectives(search, entries, families["sampler"])
    return search


def _check_two_objectives(search: Search, entries: Mapping[str, Node], family: type) -> None:
    """Refuse a sampler or a stopping policy that compares trials by one number."""
    if not search.sampler.takes_two_objectives:
        members = {name: load(family, name) for name in names(family)}
        free = {name: member for name, member in members.items() if not required_fields(member)}
        able = ", ".join(name for name, member in free.items() if member().takes_two_objectives)
        problem = f"{name_of(search.sampler)} learns from one objective, but there are two"
        message = f"{problem}; choose one of {able}"
        raise entries["sampler"].error("search.sampler", message)
    for policy in search.stopping:
        # A policy from outside that does not say what it watches may well watch the objective.
        watched = getattr(policy, "metric", OBJECTIVE), getattr(policy, "direction", OBJECTIVE)
        if OBJECTIVE in watched:
            name = name_of(policy)
            problem = f"{name} watches the objective, but there are two"
            example = f"{{{name}: {{metric: {search.objective}, direction: minimize}}}}"
            message = f"{problem}; name one metric and its better direction: {example}"
            raise entries["stopping"].error("search.stopping", message)


def _build_plugin(node: Node, family: type, context: Context) -> Any:
    return evaluate_constant(read_plugin(node, family, context))


def _list_items(node: Node | None) -> Sequence[Node]:
    """Return the items of a list; any other value is the only item, a missing node has none."""
    if node is None:
        return ()
    return node.content if isinstance(node.content, tuple) else (node,)


def _read_objectives(node: Node, variants: Sequence[str], context: Context) -> tuple[Objective, SecondObjective | None]:
    """Return one objective, or two of a list."""
    path = context.path
    if not isinstance(node.content, tuple):
        return read_objective(node, variants, path), None
    if len(node.content) != 2:
        count = len(node.content)
        raise node.error(path, f"a list of {count}; write one objective, or a list of two")
    first, second = node.content
    entries = read_mapping(second, path)
    if "at" in entries:
        rule = "the second objective is of the validation that gives the first"
        raise second.error(path, f"{rule}: `at` is the first's")
    direction, quantity = _read_direction(second, entries, path)
    compiled = _compile(quantity, compile_quantity, context.at(direction))
    first_objective = read_objective(first, variants, path)
    return first_objective, SecondObjective(direction=direction, quantity=compiled)


def _compile(node: Node, compile_text: Callable[[str], Quantity], context: Context) -> Quantity:
    """Return a text's quantity; raises SpaceError if it is no text, or no quantity."""

    def compile_node() -> Quantity:
        if not isinstance(node.content, str):
            rule = "an expression over metrics (tvd/raw) and values of a trial (model.width)"
            raise LanguageError(f"this must be {rule}")
        return compile_text(node.content)

    return with_location(node, context, compile_node)


def _read_direction(node: Node, entries: Mapping[str, Node], path: str) -> tuple[Direction, Node]:
    directions: list[Direction] = [direction for direction in _DIRECTIONS if direction in entries]
    known = (*_DIRECTIONS, "at")
    for key, child in entries.items():
        if key not in known:
            raise child.error(path, no_such("field of objective", key, known))
    if len(directions) != 1:
        raise node.error(path, f"{shorten(node.text)} must have exactly one of minimize, maximize")
    return directions[0], entries[directions[0]]


def read_objective(node: Node, variants: Sequence[str] | None, path: str) -> Objective:
    """Return `{minimize: tvd/bema}` or `{maximize: accuracy/raw, at: last}`; any of `variants`."""
    entries = read_mapping(node, path)
    direction, named = _read_direction(node, entries, path)
    at = entries["at"].text if "at" in entries else "best"
    if at not in ("best", "last"):
        raise entries["at"].error(f"{path}.at", f"{shorten(repr(at))} must be one of best, last")
    parts = named.text.split("/") if isinstance(named.content, str) else []
    is_known = variants is None or (len(parts) > 1 and parts[1] in variants)
    if len(parts) not in (2, 3) or not all(parts) or not is_known:
        known = f", variant one of {', '.join(variants)}" if variants else ""
        rule = f"must be metric/variant or metric/variant/condition{known}"
        raise named.error(f"{path}.{direction}", f"{shorten(repr(named.text))} {rule}")
    metric, variant, condition = (*parts, "")[:3]
    return Objective(direction=direction, metric=metric, variant=variant, condition=condition, at=at)
