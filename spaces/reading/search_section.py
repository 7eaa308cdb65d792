"""The section `search:` of a space. Nothing in it is drawn."""

from __future__ import annotations

from typing import Any, get_args

from spaces.grammar.declarations import Context
from spaces.grammar.formulas import evaluate_constant
from spaces.grammar.nodes import Node
from spaces.grammar.sections import Families, read_mapping, read_plugin
from spaces.grammar.values import read_value
from spaces.messages import no_such, shorten
from spaces.plugins import rules
from spaces.settings import Direction, Objective, Search

_KEYS = ("sampler", "stopping", "trials", "group", "seed", "objective", "history")
_DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
_VARIANTS = ("raw", "ema", "bema")


def read_search(node: Node, families: Families, context: Context) -> Search:
    """The settings of the search; the sampler is `random` unless the section names another."""
    entries = read_mapping(node, context.path)
    for key, child in entries.items():
        if key not in _KEYS:
            raise child.error(context.path, no_such("field of search", key, _KEYS))
    missing = [key for key in ("trials", "objective") if key not in entries]
    if missing:
        raise node.error(context.path, f"search needs {', '.join(missing)}")
    ruled = {key: rule for key, rule in rules(Search).items() if key in entries}
    sampler = entries.get("sampler") or Node.of_word("random", node)
    return Search(
        sampler=_build_plugin(sampler, families["sampler"], context.at("sampler")),
        stopping=_build_policies(entries.get("stopping"), families["stopping"], context.at("stopping")),
        objective=_read_objective(entries["objective"], "search.objective"),
        **{key: evaluate_constant(read_value(entries[key], rule, context.at(key))) for key, rule in ruled.items()},
    )


def _build_plugin(node: Node, family: type, context: Context) -> Any:
    return evaluate_constant(read_plugin(node, family, context))


def _build_policies(node: Node | None, family: type, context: Context) -> tuple[Any, ...]:
    if node is None:
        return ()
    listed = node.content if isinstance(node.content, tuple) else (node,)
    return tuple(_build_plugin(policy, family, context) for policy in listed)


def _read_objective(node: Node, path: str) -> Objective:
    """`{minimize: tvd/bema}` or `{maximize: accuracy/raw/length=64, at: last}`."""
    entries = read_mapping(node, path)
    directions: list[Direction] = [direction for direction in _DIRECTIONS if direction in entries]
    strange = [key for key in entries if key not in (*_DIRECTIONS, "at")]
    if strange:
        raise entries[strange[0]].error(path, no_such("field of objective", strange[0], (*_DIRECTIONS, "at")))
    if len(directions) != 1:
        raise node.error(path, f"{shorten(node.text)} must have exactly one of minimize, maximize")
    at = entries["at"].text if "at" in entries else "best"
    if at not in ("best", "last"):
        raise entries["at"].error(f"{path}.at", f"{shorten(repr(at))} must be one of best, last")
    number = entries[directions[0]]
    metric, variant, condition = _read_metric(number, f"{path}.{directions[0]}")
    return Objective(direction=directions[0], metric=metric, variant=variant, condition=condition, at=at)


def _read_metric(node: Node, path: str) -> tuple[str, str, str]:
    parts = node.text.split("/") if isinstance(node.content, str) else []
    if len(parts) not in (2, 3) or not all(parts) or parts[1] not in _VARIANTS:
        shown = shorten(repr(node.text))
        raise node.error(path, f"{shown} must be metric/variant or metric/variant/condition, variant raw, ema or bema")
    return parts[0], parts[1], parts[2] if len(parts) == 3 else ""
