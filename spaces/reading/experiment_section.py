"""A space's sections `arms`, `seeds`, `confirm`, `claim`: the alternatives, and their seeds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import yaml

from spaces.experiment import Arm, ExperimentSpace
from spaces.grammar.nodes import Node
from spaces.grammar.overrides import replace_all, replace_at, to_yaml
from spaces.grammar.sections import read_count
from spaces.messages import no_such, shorten
from spaces.reading.claim_section import read_claims
from spaces.space import DrawnSpace

ReadSpace = Callable[[yaml.Node], DrawnSpace]
"""A function from the syntax tree of an arm's space to the space."""

_SECTIONS = ("arms", "seeds", "confirm", "claim")
_SETTABLE = ("group", "trial", "task", "model", "optimizer", "averaging", "learning", "training")
"""Sections that an arm may set paths of."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,59}")
_MOST = 100_000
"""The most seeds, and the most configurations that are confirmed."""


def is_experiment(root: Node) -> bool:
    """Return True if a space has one of the sections."""
    return isinstance(root.content, Mapping) and not root.content.keys().isdisjoint(_SECTIONS)


def read_experiment(root: Node, name: str, read_space: ReadSpace, hash_: str) -> ExperimentSpace:
    """Return the experiment of a file; SpaceError names the line, path, value and rule."""
    sections = root.content
    assert isinstance(sections, Mapping), "a space with one of the sections is a section itself"
    base = _base_of(root)
    arms = [
        Arm(name=arm, space=read_space(replace_all(base, settings)), paths=tuple(settings))
        for arm, settings in _read_arms(sections.get("arms"), name).items()
    ]
    search = arms[0].space.search
    seeds = read_count(sections["seeds"], "seeds", _MOST) if "seeds" in sections else 1
    top, fresh = _read_confirm(sections.get("confirm"))
    _check_search(root, arms, top)
    space = ExperimentSpace(
        name=name,
        text=to_yaml(root.tree),
        hash=hash_,
        search=search,
        group_draws=(),
        trial_draws=(),
        rows=tuple(replace(row, path=f"{arm.name}: {row.path}") for arm in arms for row in arm.space.rows),
        drawn_sizes=tuple({size: None for arm in arms for size in arm.space.drawn_sizes}),
        arms=arms,
        seeds=seeds,
        confirmed=top,
        fresh_seeds=fresh,
        claims=read_claims(root),
    )
    return replace(space, search=replace(search, trials=space.planned))


def _base_of(root: Node) -> yaml.Node:
    """Return the space without these sections; an arm without draws has one configuration."""
    tree = root.tree
    assert isinstance(tree, yaml.MappingNode), "a space is a section"
    kept = [(key, value) for key, value in tree.value if key.value not in _SECTIONS]
    base = yaml.MappingNode(tree.tag, kept, tree.start_mark, flow_style=tree.flow_style)
    search = root.content.get("search") if isinstance(root.content, Mapping) else None
    if search is None or not isinstance(search.content, Mapping) or "trials" in search.content:
        return base
    return replace_at(base, "search.trials", Node.of_word("1", search).tree)


def _read_arms(node: Node | None, study: str) -> Mapping[str, Mapping[str, Node]]:
    """Return the paths that each arm sets; without the section the space is the only arm."""
    if node is None:
        return {study: {}}
    if not isinstance(node.content, Mapping) or not node.content:
        rule = "name at least one arm, each with the paths that it sets; {} sets none"
        raise node.error("arms", rule)
    arms: dict[str, Mapping[str, Node]] = {}
    for name, arm in node.content.items():
        if not _NAME.fullmatch(name):
            rule = "must be a word of letters, digits, '.', '_', '+' and '-'"
            raise arm.error("arms", f"{shorten(repr(name))} {rule}")
        if arm.content is not None and not isinstance(arm.content, Mapping):
            message = f"{shorten(arm.text)} stands here, but an arm is a section of path: value lines"
            raise arm.error(f"arms.{name}", message)
        arms[name] = arm.content or {}
        for key, value in arms[name].items():
            section, dot, _ = key.partition(".")
            if section not in _SETTABLE:
                problem = no_such("section of an arm", section, _SETTABLE)
                raise value.error(f"arms.{name}.{shorten(key)}", problem)
            if section == "training" and not dot:
                rule = "write its fields one by one, as in training.steps"
                raise value.error(f"arms.{name}.training", rule)
    texts: dict[str, str] = {}
    for name, settings in arms.items():
        text = str(sorted((path, to_yaml(value.tree)) for path, value in settings.items()))
        if text in texts:
            problem = f"{texts[text]} and {name} set the same, so that they are one arm"
            raise node.error("arms", problem)
        texts[text] = name
    return arms


def _read_confirm(node: Node | None) -> tuple[int, int]:
    """Return the number of confirmed configurations of each arm, and of their seeds."""
    if node is None:
        return 0, 0
    if not isinstance(node.content, Mapping) or set(node.content) != {"top", "seeds"}:
        raise node.error("confirm", f"{shorten(node.text)} must be {{top: N, seeds: N}}")
    top, seeds = node.content["top"], node.content["seeds"]
    return read_count(top, "confirm.top", _MOST), read_count(seeds, "confirm.seeds", _MOST)


def _check_search(root: Node, arms: list[Arm], top: int) -> None:
    """Refuse a search under which the comparison of arms would be wrong."""
    assert isinstance(root.content, Mapping), "a space with one of the sections is a section itself"
    node, search = root.content["search"], arms[0].space.search
    drawn = any((*arm.space.group_draws, *arm.space.trial_draws) for arm in arms)
    if search.trials > 1 and not drawn:
        problem = f"{search.trials} configurations, but nothing is drawn: set it to 1"
        raise node.error("search.trials", problem)
    if search.second or search.feasible:
        rule = "one objective and no feasible here: arms are compared by one number"
        raise node.error("search", rule)
    if search.stopping and not top:
        repair = "leave it out, or confirm the best by confirm: {top, seeds}"
        raise node.error("search.stopping", f"arms are compared at their ends: {repair}")
    if "claim" in root.content and search.trials > 1 and not top:
        problem = "the best of several configurations is flattered by the choice"
        repair = "write confirm: {top: 1, seeds: N}"
        raise root.content["claim"].error("claim", f"{problem}: {repair}")
    if top > search.trials:
        rule = f"{top} must be at most search.trials, {search.trials}"
        raise root.content["confirm"].error("confirm.top", rule)
