"""The section `transfer:` of a space: several tasks' own spaces, and what is found on each and tried on all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from spaces.errors import SpaceError
from spaces.grammar.declarations import Row
from spaces.grammar.overrides import replaced, written
from spaces.grammar.parts import Families
from spaces.grammar.source import Node, composed, read
from spaces.messages import shortened, unknown
from spaces.reading import catalogue
from spaces.space import DrawnSpace
from spaces.transfer import BASELINE, Domain, TransferSpace, list_variants

Parsed = Callable[[yaml.Node], DrawnSpace]
"""The space of one task, from its syntax tree."""

_SECTIONS = ("study", "transfer", "search")
_FIELDS = ("tasks", "architecture", "learn", "forms", "pairs")
_TASK_FIELDS = ("space", "set", "learn", "objective", "role")
_SETTABLE = {
    "set": ("task", "model", "optimizer", "averaging", "training"),
    "learn": ("model", "optimizer", "averaging", "learning", "training"),
    "architecture": ("model", "optimizer", "averaging"),
}
"""Sections that paths may lie in."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_ROLES = ("both", "source", "target")
_MOST_PAIRS = 10_000


def is_transfer(root: Node) -> bool:
    """Whether a space has the section."""
    return isinstance(root.content, Mapping) and "transfer" in root.content


def is_transfer_text(text: str) -> bool:
    """Whether the text is a space with the section; False for a text that is no space."""
    try:
        return is_transfer(read(composed(text, "the space")))
    except SpaceError:
        return False


def has_one_objective(text: str) -> bool:
    """Whether all trials of a study, whose space this is the text of, can be compared; without reading the space."""
    if not is_transfer_text(text):
        return True
    tasks = _tasks(read(composed(text, "the space"))).values()
    return all(not isinstance(task.content, Mapping) or "objective" not in task.content for task in tasks)


def self_contained(root: Node) -> Node:
    """The space with the tasks' spaces written out where the file names them, so that it needs no other file."""
    tree = root.tree
    for name, task in _tasks(root).items():
        here = f"transfer.tasks.{name}"
        own = _field(task, "space") if _is_section(task) else task
        if not _NAME.fullmatch(name):
            raise task.error("transfer.tasks", f"{shortened(repr(name))} must be a word of letters, digits and _")
        if isinstance(own.content, Mapping | tuple):
            continue
        if not own.word:
            raise task.error(here, "it needs a space: the name of one, a file, or the space itself")
        space = composed(catalogue.text(own.word), own.word)
        tree = replaced(tree, f"{here}.space", space) if _is_section(task) else replaced(tree, here, _task_of(space))
    return read(tree)


def transfer_space(root: Node, name: str, families: Families, parsed: Parsed, hash_: str) -> TransferSpace:
    """The space of a self-contained file; raises SpaceError that names the place, the path and the rule."""
    _check_keys(root, "", _SECTIONS, _SECTIONS)
    transfer, search = _field(root, "transfer"), _field(root, "search")
    _check_keys(transfer, "transfer", _FIELDS, ("tasks", "architecture"))
    pairs = _pairs(transfer)
    tasks = _tasks(root)
    architecture = _settings(_field(transfer, "architecture"), "transfer.architecture", "architecture")
    learn = _settings(_optional(transfer, "learn"), "transfer.learn", "learn")
    if not architecture:
        raise _field(transfer, "architecture").error("transfer.architecture", "name at least one path")
    if BASELINE in tasks or len(tasks) < 2:
        raise transfer.error("transfer.tasks", f"name at least two tasks, none of them {BASELINE!r}")
    domains = [_domain(task, node, search, architecture, learn, parsed) for task, node in tasks.items()]
    for domain in domains:
        _check_paths(domain, architecture)
    own = [_optional(node, "objective") is not None for node in tasks.values()]
    of_one = domains[own.index(False) if False in own else 0].baseline.search
    if of_one.stopping or of_one.group != 1:
        raise search.error("search", "no stopping and no group here: trials are compared at fixed steps")
    space = TransferSpace(
        name=name,
        text=written(root.tree),
        hash=hash_,
        search=of_one,
        group_draws=(),
        trial_draws=(),
        rows=_rows(domains),
        drawn_sizes=(),
        domains=domains,
        paths=tuple(architecture),
        forms=_forms(transfer, list_variants(families)),
        tried=of_one.trials,
        pairs=pairs,
        families=families,
    )
    if not space.sources or not space.targets:
        raise transfer.error("transfer.tasks", "at least one of them must be a source, and one a target")
    return replace(space, search=replace(of_one, trials=space.planned))


def _rows(domains: Sequence[Domain]) -> tuple[Row, ...]:
    found = ((domain.name, row) for domain in domains for row in (domain.searched or domain.baseline).rows)
    return tuple(replace(row, path=f"{name}: {row.path}") for name, row in found)


def _domain(
    name: str,
    task: Node,
    search: Node,
    architecture: Mapping[str, Node],
    learn: Mapping[str, Node],
    parsed: Parsed,
) -> Domain:
    here = f"transfer.tasks.{name}"
    _check_keys(task, here, _TASK_FIELDS, ("space",))
    own = _field(task, "space")
    if is_transfer(own):
        raise own.error(f"{here}.space", "a transfer cannot be a task of another")
    tree = replaced(replaced(own.tree, "search", search.tree), "study", Node.of_word(name, task).tree)
    tree = replaced(tree, "training.pad_shapes", Node.of_word("false", task).tree)
    if objective := _optional(task, "objective"):
        tree = replaced(tree, "search.objective", objective.tree)
    baseline = _with(tree, _settings(_optional(task, "set"), f"{here}.set", "set"))
    more = _settings(_optional(task, "learn"), f"{here}.learn", "learn")
    found = _with(baseline, {**architecture, **learn, **more})
    role = _one_of(_optional(task, "role"), f"{here}.role", _ROLES)
    return Domain(
        name=name,
        searched=None if role == "target" else parsed(found),
        baseline=parsed(baseline),
        is_target=role != "source",
    )


def _settings(node: Node | None, path: str, kind: str) -> Mapping[str, Node]:
    """Paths of a task's space and what is put there; raises SpaceError for one that is not a transfer's to set."""
    found = _entries(node, path)
    for key, value in found.items():
        section, dot, _ = key.partition(".")
        if section not in _SETTABLE[kind]:
            raise value.error(f"{path}.{shortened(key)}", f"a path here starts with {', '.join(_SETTABLE[kind])}")
        if section == "training" and not dot:
            raise value.error(f"{path}.training", "write its fields one by one, as in training.steps")
    return found


def _with(tree: yaml.Node, settings: Mapping[str, Node]) -> yaml.Node:
    for path, value in settings.items():
        tree = replaced(tree, path, value.tree)
    return tree


def _check_paths(domain: Domain, architecture: Mapping[str, Node]) -> None:
    """Raise SpaceError for a path that the baseline's configuration does not have."""
    config = domain.baseline.sample(0, lambda _: 0.5).config
    for path, node in architecture.items():
        value: Any = config
        for step in path.split("."):
            if not isinstance(value, Mapping) or step not in value:
                choices = value if isinstance(value, Mapping) else ()
                problem = unknown("field", step, choices)
                raise node.error(
                    f"transfer.architecture.{path}", f"the space of {domain.name} has no such path: {problem}"
                )
            value = value[step]


def _forms(transfer: Node, variants: Sequence[str]) -> tuple[str, ...]:
    node = _optional(transfer, "forms")
    if node is None:
        return (variants[0],)
    listed = node.content if isinstance(node.content, tuple) else (node,)
    forms = [_one_of(one, "transfer.forms", variants) for one in listed]
    if not forms or len(set(forms)) < len(forms):
        raise node.error("transfer.forms", "name each form once, at least one")
    return tuple(variant for variant in variants if variant in forms)


def _one_of(node: Node | None, path: str, choices: Sequence[str]) -> str:
    """The word that stands there; the first choice where none does."""
    if node is None:
        return choices[0]
    if node.word not in choices:
        raise node.error(path, f"{shortened(repr(node.word))} must be one of {', '.join(choices)}")
    return node.word


def _pairs(transfer: Node) -> int:
    node = _optional(transfer, "pairs")
    if node is None:
        return 6
    if not re.fullmatch(r"[0-9]{1,5}", node.word) or not 1 <= int(node.word) <= _MOST_PAIRS:
        raise node.error("transfer.pairs", f"{shortened(repr(node.word))} must be an integer in [1, {_MOST_PAIRS:,}]")
    return int(node.word)


def _check_keys(node: Node, path: str, known: Sequence[str], required: Sequence[str]) -> None:
    entries = _entries(node, path)
    for key, value in entries.items():
        if key not in known:
            raise value.error(path, unknown(f"field of {path or 'a space with a transfer'}", key, known))
    missing = [key for key in required if key not in entries]
    if missing:
        raise node.error(path, f"it needs {', '.join(missing)}")


def _tasks(root: Node) -> Mapping[str, Node]:
    return _entries(_field(_field(root, "transfer"), "tasks"), "transfer.tasks")


def _entries(node: Node | None, path: str = "transfer") -> Mapping[str, Node]:
    """Keys and values of a section; of none that is left out."""
    if node is None:
        return {}
    if not isinstance(node.content, Mapping):
        raise node.error(path, "this must be a section of key: value lines")
    return node.content


def _is_section(node: Node) -> bool:
    return isinstance(node.content, Mapping)


def _field(node: Node, name: str) -> Node:
    found = _optional(node, name)
    if found is None:
        raise node.error("transfer", f"it needs {name}")
    return found


def _optional(node: Node, name: str) -> Node | None:
    return _entries(node).get(name)


def _task_of(space: yaml.Node) -> yaml.Node:
    """The section of a task that has a space and nothing else."""
    mark = space.start_mark
    name = yaml.ScalarNode(tag="tag:yaml.org,2002:str", value="space", start_mark=mark)
    return yaml.MappingNode(tag="tag:yaml.org,2002:map", value=[(name, space)], start_mark=mark)
