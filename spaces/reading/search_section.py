"""The section `search:` of a space. Nothing in it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
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
    variants = [name for family in families.values() if isinstance(family, NamesVariants) for name in family.VARIANTS]
    first, second = _read_objectives(entries["objective"], variants, context.at("objective"))
    sampler = entries.get("sampler") or Node.of_word("random", node)
    policies, bounds = _list_items(entries.get("stopping")), _list_items(entries.get("feasible"))
    build_policy = partial(_build_plugin, family=families["stopping"], context=context.at("stopping"))
    compile_bound = partial(_compile, compile_text=compile_constraint, context=context.at("feasible"))
    search = Search(
        sampler=_build_plugin(sampler, families["sampler"], context.at("sampler")),
        stopping=tuple(map(build_policy, policies)),
        objective=first,
        second=second,
        feasible=tuple({constraint.text: constraint for constraint in map(compile_bound, bounds)}.values()),
        **{key: evaluate_constant(read_value(entries[key], rule, context.at(key))) for key, rule in ruled.items()},
    )
    if second:
        _check_two_objectives(search, entries, families["sampler"])
    return search


def _check_two_objectives(search: Search, entries: Mapping[str, Node], family: type) -> None:
    """Refuse what compares trials by one number."""
    if not search.sampler.takes_two_objectives:
        members = {name: load(family, name) for name in names(family)}
        able = [name for name, one in members.items() if not required_fields(one) and one().takes_two_objectives]
        message = f"{name_of(search.sampler)} learns from one objective, but there are two; choose one of "
        raise entries["sampler"].error("search.sampler", message + ", ".join(able))
    for policy in search.stopping:
        # A policy from outside that does not say what it watches may well watch the objective.
        if OBJECTIVE in (getattr(policy, "metric", OBJECTIVE), getattr(policy, "direction", OBJECTIVE)):
            name = name_of(policy)
            message = f"{name} watches the objective, but there are two; name one metric and its better direction: "
            raise entries["stopping"].error(
                "search.stopping", f"{message}{{{name}: {{metric: {search.objective}, direction: minimize}}}}"
            )


def _build_plugin(node: Node, family: type, context: Context) -> Any:
    return evaluate_constant(read_plugin(node, family, context))


def _list_items(node: Node | None) -> Sequence[Node]:
    """Return the items of a list; any other value is the only item, one left out none."""
    if node is None:
        return ()
    return node.content if isinstance(node.content, tuple) else (node,)


def _read_objectives(node: Node, variants: Sequence[str], context: Context) -> tuple[Objective, SecondObjective | None]:
    """Return one objective, or two of a list."""
    path = context.path
    if not isinstance(node.content, tuple):
        return read_objective(node, variants, path), None
    if len(node.content) != 2:
        raise node.error(path, f"a list of {len(node.content)}; write one objective, or a list of two")
    first, second = node.content
    entries = read_mapping(second, path)
    if "at" in entries:
        raise second.error(path, "the second objective is of the validation that gives the first: `at` is the first's")
    direction, quantity = _read_direction(second, entries, path)
    compiled = _compile(quantity, compile_quantity, context.at(direction))
    return read_objective(first, variants, path), SecondObjective(direction=direction, quantity=compiled)


def _compile(node: Node, compile_text: Callable[[str], Quantity], context: Context) -> Quantity:
    """Return a text's quantity; raises SpaceError for what is no text, or no quantity."""

    def compile_node() -> Quantity:
        if not isinstance(node.content, str):
            raise LanguageError("this must be an expression over metrics (tvd/raw) and values of a trial (model.width)")
        return compile_text(node.content)

    return with_location(node, context, compile_node)


def _read_direction(node: Node, entries: Mapping[str, Node], path: str) -> tuple[Direction, Node]:
    directions: list[Direction] = [direction for direction in _DIRECTIONS if direction in entries]
    strange = [key for key in entries if key not in (*_DIRECTIONS, "at")]
    if strange:
        raise entries[strange[0]].error(path, no_such("field of objective", strange[0], (*_DIRECTIONS, "at")))
    if len(directions) != 1:
        raise node.error(path, f"{shorten(node.text)} must have exactly one of minimize, maximize")
    return directions[0], entries[directions[0]]


def read_objective(node: Node, variants: Sequence[str] | None, path: str) -> Objective:
    """Read `{minimize: tvd/bema}` or `{maximize: accuracy/raw, at: last}`; `variants` None: any."""
    entries = read_mapping(node, path)
    direction, named = _read_direction(node, entries, path)
    at = entries["at"].text if "at" in entries else "best"
    if at not in ("best", "last"):
        raise entries["at"].error(f"{path}.at", f"{shorten(repr(at))} must be one of best, last")
    parts = named.text.split("/") if isinstance(named.content, str) else []
    if len(parts) not in (2, 3) or not all(parts) or (variants is not None and parts[1] not in variants):
        known = f", variant one of {', '.join(variants)}" if variants else ""
        rule = f"must be metric/variant or metric/variant/condition{known}"
        raise named.error(f"{path}.{direction}", f"{shorten(repr(named.text))} {rule}")
    condition = parts[2] if len(parts) == 3 else ""
    return Objective(direction=direction, metric=parts[0], variant=parts[1], condition=condition, at=at)
