"""The section `claim:` of a space: one claim about two arms, or a list of such.

It is read from the text alone, without plug-ins, so that the storage locks what the launch checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_type_hints

from spaces.experiment import Claim
from spaces.grammar.nodes import Node, compose, read
from spaces.grammar.sections import read_mapping
from spaces.messages import no_such, shorten
from spaces.reading.search_section import read_objective

_KEYS = ("arm", "than", "metric", "difference", "seeds", "test", "correction", "on")


def read_claims(root: Node) -> tuple[Claim, ...]:
    """Return the claims of a space that is otherwise read; SpaceError names line, path and rule."""
    sections = read_mapping(root, "")
    node = sections.get("claim")
    if node is None:
        return ()
    if "arms" not in sections:
        raise node.error("claim", "a claim compares two arms: name them under arms")
    arms = [*read_mapping(sections["arms"], "arms")]
    counts = read_mapping(sections["confirm"], "confirm") if "confirm" in sections else sections
    seeds = int(counts["seeds"].word.replace("_", "")) if "seeds" in counts else 1
    if len(arms) < 2 or seeds < 2:
        counts_text = f"{len(arms)} arms and {seeds} seeds"
        raise node.error("claim", f"{counts_text}; a claim needs two of each at the least")
    search = read_mapping(sections["search"], "search")
    objective = search["objective"]
    listed = node.content if isinstance(node.content, tuple) else (node,)
    rest = {"seeds": seeds, "fresh": counts is not sections}
    claims = tuple(_read_claim(entry, objective, arms, rest) for entry in listed)
    if len({claim.correction for claim in claims}) > 1:
        rule = "the claims of a space are corrected together: write one correction, holm or bh"
        raise node.error("claim", rule)
    keeps_last = "history" in search and search["history"].word == "last"
    if keeps_last and any(claim.on == "test" and claim.at == "best" for claim in claims):
        problem = "the best validation counts, and search.history: last keeps the last; write thin"
        raise node.error("claim.on", problem)
    if len({(claim.arm, claim.than, claim.metric) for claim in claims}) < len(claims):
        raise node.error("claim", "two claims are about the same arms and metric: leave one out")
    return claims


def claims_of_text(text: str) -> tuple[Claim, ...]:
    """Return the claims of the text of a stored space, which was read before."""
    if "claim" not in text:  # most spaces have none, and reading a text takes milliseconds
        return ()
    root = read(compose(text, "the space"))
    return read_claims(root) if "arms" in read_mapping(root, "") else ()


def _read_claim(node: Node, objective: Node, arms: Sequence[str], rest: Mapping[str, Any]) -> Claim:
    if not isinstance(node.content, Mapping):
        shown = shorten(node.text) or "nothing"
        raise node.error("claim", f"{shown} must be {{arm: NAME, difference: NUMBER}}")
    entries = node.content
    for key, child in entries.items():
        if key not in _KEYS:
            raise child.error(f"claim.{shorten(key)}", no_such("field of a claim", key, _KEYS))
    missing = [key for key in ("arm", "difference") if key not in entries]
    if missing:
        raise node.error("claim", f"a claim needs {' and '.join(missing)}")
    known = {key: get_args(get_type_hints(Claim)[key]) for key in ("test", "correction", "on")}
    choices: dict[str, Sequence[str]] = {"arm": arms, "than": arms, **known}
    words: dict[str, Any] = {}
    for key, options in choices.items():
        if entry := entries.get(key):
            if entry.word not in options:
                raise entry.error(f"claim.{key}", no_such("choice here", entry.text, options))
            words[key] = entry.word
    words.setdefault("than", arms[0])
    if words["arm"] == words["than"]:
        problem = f"{words['arm']} is compared with itself: name another arm, or `than`"
        raise node.error("claim.arm", problem)
    given = entries.get("seeds")
    if given and given.content != rest["seeds"]:
        raise given.error("claim.seeds", f"{shorten(given.text)}, but arms have {rest['seeds']}")
    difference, value = entries["difference"], entries["difference"].content
    metric = _read_metric(entries.get("metric"), objective)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        rule = "must be a number above 0, in the metric's units"
        raise difference.error("claim.difference", f"{shorten(repr(difference.text))} {rule}")
    return Claim(**words, **metric, difference=float(value), **rest)


def _read_metric(node: Node | None, objective: Node) -> dict[str, Any]:
    """Return direction, metric and `at` of a claim: its own, or else the objective's."""
    of_search = read_objective(objective, None, "search.objective")
    metric = of_search if node is None else read_objective(node, None, "claim.metric")
    is_objective = str(metric) == str(of_search)
    at = of_search.at if is_objective else "last"
    if node is not None and "at" in read_mapping(node, "claim.metric") and metric.at != at:
        raise node.error("claim.metric.at", f"{metric.at}: of this metric the {at} validation counts")
    return {"direction": metric.direction, "metric": str(metric), "at": at}
