"""The section `search:` of a space. Nothing in it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, get_args

from spaces.grammar.declarations import Context
from spaces.grammar.formulas import LanguageError, evaluate_constant
from spaces.grammar.nodes import Node
from spaces.grammar.quantities import compile_constraint, compile_quantity
from spaces.grammar.sections import Families, read_mapping, read_plugin
from spaces.grammar.values import read_value, with_location
from spaces.messages import no_such, shorten
from spaces.plugins import NamesVariants, load, name_of, names, required_fields, rules
from spaces.settings import OBJECTIVE, Direction, Objective, Quantity, Search, SecondObjective

_KEYS = ("sampler", "stopping", "trials", "group", "seed", "objective", "feasible", "history")
_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


def read_search(node: Node, families: Families, context: Context) -> Search:
    """Return the settings of the search; the sampler is `random` unless the section names another."""
    entries = read_mapping(node, context.path)
    for key, child in entries.items():
        if key not in _KEYS:
            raise child.error(context.path, no_such("field of search", key, _KEYS))
    missing = [key for key in ("trials", "objective") if key not in entries]
    if missing:
        raise node.error(context.path, f"search needs {', '.join(missing)}")
    ruled = {key: rule for key, rule in rules(Search).items() if key in entries}
    sampler = entries.get("sampler") or Node.of_word("random", node)
    first, second = _read_objectives(entries["objective"], _list_variants(families), context.at("objective"))
    search = Search(
        sampler=_build_plugin(sampler, families["sampler"], context.at("sampler")),
        stopping=_build_policies(entries.get("stopping"), families["stopping"], context.at("stopping")),
        objective=first,
        second=second,
        feasible=_read_constraints(entries.get("feasible"), context.at("feasible")),
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


def _build_policies(node: Node | None, family: type, context: Context) -> tuple[Any, ...]:
    if node is None:
        return ()
    listed = node.content if isinstance(node.content, tuple) else (node,)
    return tuple(_build_plugin(policy, family, context) for policy in listed)


def _list_variants(families: Families) -> list[str]:
    return [name for family in families.values() if isinstance(family, NamesVariants) for name in family.VARIANTS]


def _read_objectives(node: Node, variants: Sequence[str], context: Context) -> tuple[Objective, SecondObjective | None]:
    """One objective, or a list of two."""
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
    compiled = with_location(quantity, context.at(direction), lambda: compile_quantity(_text_of(quantity)))
    return read_objective(first, variants, path), SecondObjective(direction=direction, quantity=compiled)


def _read_constraints(node: Node | None, context: Context) -> tuple[Quantity, ...]:
    """`model.width <= 32`, or a list of such."""
    if node is None:
        return ()
    listed = node.content if isinstance(node.content, tuple) else (node,)
    found = [with_location(one, context, partial(_compile_constraint, one)) for one in listed]
    return tuple({constraint.text: constraint for constraint in found}.values())


def _compile_constraint(node: Node) -> Quantity:
    return compile_constraint(_text_of(node))


def _text_of(node: Node) -> str:
    if not isinstance(node.content, str):
        raise LanguageError("this must be an expression over metrics (tvd/raw) and values of a trial (model.width)")
    return node.content


def _read_direction(node: Node, entries: Mapping[str, Node], path: str) -> tuple[Direction, Node]:
    directions: list[Direction] = [direction for direction in _DIRECTIONS if direction in entries]
    strange = [key for key in entries if key not in (*_DIRECTIONS, "at")]
    if strange:
        raise entries[strange[0]].error(path, no_such("field of objective", strange[0], (*_DIRECTIONS, "at")))
    if len(directions) != 1:
        raise node.error(path, f"{shorten(node.text)} must have exactly one of minimize, maximize")
    return directions[0], entries[directions[0]]


def read_objective(node: Node, variants: Sequence[str] | None, path: str) -> Objective:
    """Read `{minimize: tvd/bema}` or `{maximize: accuracy/raw/length=64, at: last}`; `variants` None: any."""
    entries = read_mapping(node, path)
    direction, named = _read_direction(node, entries, path)
    at = entries["at"].text if "at" in entries else "best"
    if at not in ("best", "last"):
        raise entries["at"].error(f"{path}.at", f"{shorten(repr(at))} must be one of best, last")
    metric, variant, condition = _read_metric(named, variants, f"{path}.{direction}")
    return Objective(direction=direction, metric=metric, variant=variant, condition=condition, at=at)


def _read_metric(node: Node, variants: Sequence[str] | None, path: str) -> tuple[str, str, str]:
    parts = node.text.split("/") if isinstance(node.content, str) else []
    if len(parts) not in (2, 3) or not all(parts) or (variants is not None and parts[1] not in variants):
        known = f", variant one of {', '.join(variants)}" if variants else ""
        rule = f"must be metric/variant or metric/variant/condition{known}"
        raise node.error(path, f"{shorten(repr(node.text))} {rule}")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""
