"""The section `transfer:` of a space: tasks' own spaces, searched one by one and tried on all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import yaml

from spaces.errors import SpaceError
from spaces.grammar.nodes import Node, compose, read
from spaces.grammar.overrides import replace_all, replace_at, to_yaml
from spaces.grammar.sections import Families, read_count
from spaces.messages import no_such, shorten
from spaces.reading import catalogue
from spaces.reading.search_section import read_objective
from spaces.settings import Objective
from spaces.space import DrawnSpace
from spaces.transfer import BASELINE, Domain, TransferSpace, list_forms

ReadSpace = Callable[[yaml.Node], DrawnSpace]
"""A function from the syntax tree of a task's space to the space."""

_SECTIONS = ("study", "transfer", "search")
_FIELDS = ("tasks", "architecture", "learn", "forms", "pairs")
_TASK_FIELDS = ("space", "set", "learn", "objective", "role")
SETTABLE = {
    "set": ("task", "model", "optimizer", "averaging", "training"),
    "learn": ("model", "optimizer", "averaging", "learning", "training"),
    "architecture": ("model", "optimizer", "averaging"),
}
"""Sections that paths may lie in."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ROLES = ("both", "source", "target")
_MOST_PAIRS = 10_000
_TEXTS = 256
"""The most texts that are remembered: each study's space is looked at again and again."""


def is_transfer(root: Node) -> bool:
    """Return True if a space has the section."""
    return isinstance(root.content, Mapping) and "transfer" in root.content


@lru_cache(_TEXTS)
def is_transfer_text(text: str) -> bool:
    """Return True if the text is a space with the section; False if it is no space."""
    try:
        return is_transfer(read(compose(text, "the space")))
    except SpaceError:
        return False


@lru_cache(_TEXTS)
def has_one_objective(text: str) -> bool:
    """Return True if one number compares all trials of a study, by its space's unread text."""
    try:
        root = read(compose(text, "the space"))
    except SpaceError:
        return True  # it is no space, as in old databases
    if not is_transfer(root):
        search = _find(root, "search") if _is_section(root) else None
        objective = _find(search, "objective") if search else None
        return objective is None or not isinstance(objective.content, tuple)
    return len(set(objectives_of_text(text).values())) == 1


@lru_cache(_TEXTS)
def objectives_of_text(text: str) -> Mapping[str, Objective]:
    """Map each task of a transfer to its objective, by its space's unread text; else empty."""
    if not is_transfer_text(text):
        return {}
    root = read(compose(text, "the space"))
    search, objectives = _require(root, "search"), dict[str, Objective]()
    for name, task in _read_tasks(root).items():
        node = _find(task, "objective") or _require(search, "objective")
        objectives[name] = read_objective(node, None, f"transfer.tasks.{name}.objective")
    return objectives


def has_one_direction(text: str) -> bool:
    """Return False if some tasks of a transfer minimize and others maximize, so that no trial is the best."""
    return len({objective.direction for objective in objectives_of_text(text).values()}) < 2


def inline_spaces(root: Node) -> Node:
    """Return the whole space, with tasks' spaces in place of their files' names."""
    tree = root.tree
    for name, task in _read_tasks(root).items():
        here = f"transfer.tasks.{name}"
        source = _require(task, "space") if _is_section(task) else task
        if not _NAME.fullmatch(name):
            rule = "must be a word of letters, digits and _"
            raise task.error("transfer.tasks", f"{shorten(repr(name))} {rule}")
        if isinstance(source.content, Mapping | tuple):
            continue
        if not source.word:
            raise task.error(here, "it needs a space: the name of one, a file, or the space itself")
        origin = catalogue.find_beside(source.word, source.tree.start_mark.name)
        space = compose(catalogue.read_text(origin), origin)
        if _is_section(task):
            tree = replace_at(tree, f"{here}.space", space)
        else:
            mark = space.start_mark
            key = yaml.ScalarNode("tag:yaml.org,2002:str", "space", mark)
            section = yaml.MappingNode("tag:yaml.org,2002:map", [(key, space)], mark)
            tree = replace_at(tree, here, section)
    return read(tree)


def read_transfer(root: Node, name: str, families: Families, read_space: ReadSpace, hash_: str) -> TransferSpace:
    """Return the space of a whole file; raises SpaceError that names line, path and rule."""
    _check_keys(root, "", (*_SECTIONS, "plugins"), _SECTIONS)
    transfer, search = _require(root, "transfer"), _require(root, "search")
    _check_keys(transfer, "transfer", _FIELDS, ("tasks", "architecture"))
    given = _find(transfer, "pairs")
    pairs = read_count(given, "transfer.pairs", _MOST_PAIRS) if given else 6
    tasks = _read_tasks(root)
    where = _require(transfer, "architecture")
    architecture = _read_settings(where, "transfer.architecture", "architecture")
    learn = _read_settings(_find(transfer, "learn"), "transfer.learn", "learn")
    if not architecture:
        raise where.error("transfer.architecture", "name at least one path")
    if BASELINE in tasks or len(tasks) < 2:
        rule = f"name at least two tasks, none of them {BASELINE!r}"
        raise transfer.error("transfer.tasks", rule)
    domains = [_read_domain(task, node, search, architecture, learn, read_space) for task, node in tasks.items()]
    for domain in domains:
        _check_paths(domain, architecture)
    flags = [_find(node, "objective") is not None for node in tasks.values()]
    of_one = domains[flags.index(False) if False in flags else 0].baseline.search
    if of_one.stopping or of_one.group != 1:
        rule = "no stopping and no group here: trials are compared at fixed steps"
        raise search.error("search", rule)
    if of_one.second or of_one.feasible:
        rule = "one objective and no feasible here: a cell of the matrix is one number"
        raise search.error("search", rule)
    space = TransferSpace(
        name=name,
        text=to_yaml(root.tree),
        hash=hash_,
        search=of_one,
        group_draws=(),
        trial_draws=(),
        rows=tuple(
            replace(row, path=f"{domain.name}: {row.path}")
            for domain in domains
            for row in (domain.searched or domain.baseline).rows
        ),
        drawn_sizes=(),
        domains=domains,
        paths=tuple(architecture),
        forms=_read_forms(transfer, list_forms(families)),
        tried=of_one.trials,
        pairs=pairs,
        families=families,
    )
    if not space.sources or not space.targets:
        rule = "at least one of them must be a source, and one a target"
        raise transfer.error("transfer.tasks", rule)
    return replace(space, search=replace(of_one, trials=space.planned))


def _read_domain(
    name: str,
    task: Node,
    search: Node,
    architecture: Mapping[str, Node],
    learn: Mapping[str, Node],
    read_space: ReadSpace,
) -> Domain:
    here = f"transfer.tasks.{name}"
    _check_keys(task, here, _TASK_FIELDS, ("space",))
    space = _require(task, "space")
    if is_transfer(space):
        raise space.error(f"{here}.space", "a transfer cannot be a task of another")
    tree = replace_at(space.tree, "search", search.tree)
    tree = replace_at(tree, "study", Node.of_word(name, task).tree)
    tree = replace_at(tree, "training.pad_shapes", Node.of_word("false", task).tree)
    if objective := _find(task, "objective"):
        tree = replace_at(tree, "search.objective", objective.tree)
    baseline = replace_all(tree, _read_settings(_find(task, "set"), f"{here}.set", "set"))
    more = _read_settings(_find(task, "learn"), f"{here}.learn", "learn")
    searched = replace_all(baseline, {**architecture, **learn, **more})
    role = _read_choice(_find(task, "role"), f"{here}.role", _ROLES)
    return Domain(
        name=name,
        searched=None if role == "target" else read_space(searched),
        baseline=read_space(baseline),
        is_target=role != "source",
    )


def _read_settings(node: Node | None, path: str, kind: str) -> Mapping[str, Node]:
    """Return the settable paths of a task's space -> values; SpaceError for other paths."""
    settings = _read_entries(node, path)
    for key, value in settings.items():
        section, dot, _ = key.partition(".")
        if section not in SETTABLE[kind]:
            rule = f"a path here starts with {', '.join(SETTABLE[kind])}"
            raise value.error(f"{path}.{shorten(key)}", rule)
        if section == "training" and not dot:
            rule = "write its fields one by one, as in training.steps"
            raise value.error(f"{path}.training", rule)
    return settings


def _check_paths(domain: Domain, architecture: Mapping[str, Node]) -> None:
    """Raise SpaceError for a path that the baseline's configuration does not have."""
    config = domain.baseline.sample(0, lambda _: 0.5).config
    for path, node in architecture.items():
        value: Any = config
        for step in path.split("."):
            if not isinstance(value, Mapping) or step not in value:
                choices = value if isinstance(value, Mapping) else ()
                problem = f"the space of {domain.name} has no such path"
                message = f"{problem}: {no_such('field', step, choices)}"
                raise node.error(f"transfer.architecture.{path}", message)
            value = value[step]


def _read_forms(transfer: Node, forms: Sequence[str]) -> tuple[str, ...]:
    node = _find(transfer, "forms")
    if node is None:
        return (forms[0],)
    listed = node.content if isinstance(node.content, tuple) else (node,)
    wanted = [_read_choice(entry, "transfer.forms", forms) for entry in listed]
    if not wanted or len(set(wanted)) < len(wanted):
        raise node.error("transfer.forms", "name each form once, at least one")
    return tuple(form for form in forms if form in wanted)


def _read_choice(node: Node | None, path: str, choices: Sequence[str]) -> str:
    """Return the word of a node; without a node the first choice."""
    if node is None:
        return choices[0]
    if node.word not in choices:
        raise node.error(path, f"{shorten(repr(node.word))} must be one of {', '.join(choices)}")
    return node.word


def _check_keys(node: Node, path: str, known: Sequence[str], required: Sequence[str]) -> None:
    entries = _read_entries(node, path)
    for key, value in entries.items():
        if key not in known:
            noun = f"field of {path or 'a space with a transfer'}"
            raise value.error(path, no_such(noun, key, known))
    missing = [key for key in required if key not in entries]
    if missing:
        raise node.error(path, f"it needs {', '.join(missing)}")


def _read_tasks(root: Node) -> Mapping[str, Node]:
    return _read_entries(_require(_require(root, "transfer"), "tasks"), "transfer.tasks")


def _read_entries(node: Node | None, path: str = "transfer") -> Mapping[str, Node]:
    """Return keys and values of a section; a missing one is empty."""
    if node is None:
        return {}
    if not isinstance(node.content, Mapping):
        raise node.error(path, "this must be a section of key: value lines")
    return node.content


def _is_section(node: Node) -> bool:
    return isinstance(node.content, Mapping)


def _require(node: Node, name: str) -> Node:
    child = _find(node, name)
    if child is None:
        raise node.error("transfer", f"it needs {name}")
    return child


def _find(node: Node, name: str) -> Node | None:
    return _read_entries(node).get(name)
