"""The section `transfer:` of a space: several tasks' own spaces, and what is found on each and tried on all."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from spaces.errors import SpaceError
from spaces.grammar.declarations import Row
from spaces.grammar.overrides import replaced, written
from spaces.grammar.parts import Families
from spaces.grammar.source import composed, mark_place
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


def is_transfer(root: yaml.Node) -> bool:
    """Whether a space has the section."""
    return isinstance(root, yaml.MappingNode) and any(key.value == "transfer" for key, _ in root.value)


def is_transfer_text(text: str) -> bool:
    """Whether the text is a space with the section; False for a text that is no space."""
    try:
        return is_transfer(composed(text, "the space"))
    except SpaceError:
        return False


def has_one_objective(text: str) -> bool:
    """Whether all trials of a study, whose space this is the text of, can be compared; without reading the space."""
    if not is_transfer_text(text):
        return True
    tasks = dict(_entries(_field(_field(composed(text, "the space"), "transfer"), "tasks"))).values()
    return all(isinstance(task, yaml.ScalarNode) or _optional(task, "objective") is None for task in tasks)


def self_contained(root: yaml.Node) -> yaml.Node:
    """The tree with the tasks' spaces written out where the file names them, so that it needs no other file."""
    for name, task in _entries(_field(_field(root, "transfer"), "tasks"), "transfer.tasks"):
        here = f"transfer.tasks.{name}"
        own = task if isinstance(task, yaml.ScalarNode) else _field(task, "space")
        if not _NAME.fullmatch(name):
            raise _error(task, "transfer.tasks", f"{shortened(repr(name))} must be a word of letters, digits and _")
        if isinstance(own, yaml.ScalarNode):
            if not own.value:
                raise _error(task, here, "it needs a space: the name of one, a file, or the space itself")
            whole = composed(catalogue.text(own.value), own.value)
            root = replaced(root, here, _task(whole)) if own is task else replaced(root, f"{here}.space", whole)
    return root


def transfer_space(root: yaml.Node, name: str, families: Families, parsed: Parsed, hash_: str) -> TransferSpace:
    """The space of a self-contained tree; raises SpaceError that names the place, the path and the rule."""
    _check_keys(root, "", _SECTIONS, _SECTIONS)
    transfer, search = _field(root, "transfer"), _field(root, "search")
    _check_keys(transfer, "transfer", _FIELDS, ("tasks", "architecture"))
    pairs = _pairs(transfer)
    tasks = dict(_entries(_field(transfer, "tasks"), "transfer.tasks"))
    architecture = _settings(_field(transfer, "architecture"), "transfer.architecture", "architecture")
    learn = _settings(_optional(transfer, "learn"), "transfer.learn", "learn")
    if not architecture:
        raise _error(_field(transfer, "architecture"), "transfer.architecture", "name at least one path")
    if BASELINE in tasks or len(tasks) < 2:
        raise _error(transfer, "transfer.tasks", f"name at least two tasks, none of them {BASELINE!r}")
    domains = [_domain(task, node, root, architecture, learn, parsed) for task, node in tasks.items()]
    for domain in domains:
        _check_paths(domain, architecture)
    own = [_optional(node, "objective") is not None for node in tasks.values()]
    of_one = domains[own.index(False) if False in own else 0].baseline.search
    if of_one.stopping or of_one.group != 1:
        raise _error(search, "search", "no stopping and no group here: trials are compared at fixed steps")
    space = TransferSpace(
        name=name,
        text=written(root),
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
        raise _error(transfer, "transfer.tasks", "at least one of them must be a source, and one a target")
    return replace(space, search=replace(of_one, trials=space.planned))


def _rows(domains: Sequence[Domain]) -> tuple[Row, ...]:
    found = ((domain.name, row) for domain in domains for row in (domain.searched or domain.baseline).rows)
    return tuple(replace(row, path=f"{name}: {row.path}") for name, row in found)


def _domain(
    name: str,
    task: yaml.Node,
    root: yaml.Node,
    architecture: Mapping[str, yaml.Node],
    learn: Mapping[str, yaml.Node],
    parsed: Parsed,
) -> Domain:
    here = f"transfer.tasks.{name}"
    _check_keys(task, here, _TASK_FIELDS, ("space",))
    own = _field(task, "space")
    if is_transfer(own):
        raise _error(own, f"{here}.space", "a transfer cannot be a task of another")
    own = replaced(replaced(own, "search", _field(root, "search")), "study", _word(name, task))
    own = replaced(own, "training.pad_shapes", _word("false", task))
    if objective := dict(_entries(task)).get("objective"):
        own = replaced(own, "search.objective", objective)
    baseline = _with(own, _settings(_optional(task, "set"), f"{here}.set", "set"))
    more = _settings(_optional(task, "learn"), f"{here}.learn", "learn")
    found = _with(baseline, {**architecture, **learn, **more})
    role = _one_of(_optional(task, "role"), f"{here}.role", _ROLES)
    return Domain(
        name=name,
        searched=None if role == "target" else parsed(found),
        baseline=parsed(baseline),
        is_target=role != "source",
    )


def _settings(node: yaml.Node | None, path: str, kind: str) -> dict[str, yaml.Node]:
    """Paths of a task's space and what is put there; raises SpaceError for one that is not a transfer's to set."""
    found = dict(_entries(node, path))
    for key, value in found.items():
        section, dot, _ = key.partition(".")
        if section not in _SETTABLE[kind]:
            raise _error(value, f"{path}.{shortened(key)}", f"a path here starts with {', '.join(_SETTABLE[kind])}")
        if section == "training" and not dot:
            raise _error(value, f"{path}.training", "write its fields one by one, as in training.steps")
    return found


def _with(root: yaml.Node, settings: Mapping[str, yaml.Node]) -> yaml.Node:
    for path, value in settings.items():
        root = replaced(root, path, value)
    return root


def _check_paths(domain: Domain, architecture: Mapping[str, yaml.Node]) -> None:
    """Raise SpaceError for a path that the baseline's configuration does not have."""
    config = domain.baseline.sample(0, lambda _: 0.5).config
    for path, node in architecture.items():
        value: Any = config
        for step in path.split("."):
            if not isinstance(value, Mapping) or step not in value:
                choices = value if isinstance(value, Mapping) else ()
                problem = unknown("field", step, choices)
                raise _error(
                    node, f"transfer.architecture.{path}", f"the space of {domain.name} has no such path: {problem}"
                )
            value = value[step]


def _forms(transfer: yaml.Node, variants: Sequence[str]) -> tuple[str, ...]:
    node = _optional(transfer, "forms")
    if node is None:
        return (variants[0],)
    listed = node.value if isinstance(node, yaml.SequenceNode) else [node]
    forms = [_one_of(one, "transfer.forms", variants) for one in listed]
    if not forms or len(set(forms)) < len(forms):
        raise _error(node, "transfer.forms", "name each form once, at least one")
    return tuple(variant for variant in variants if variant in forms)


def _one_of(node: yaml.Node | None, path: str, choices: Sequence[str]) -> str:
    """The word that stands there; the first choice where none does."""
    if node is None:
        return choices[0]
    word = node.value if isinstance(node, yaml.ScalarNode) else ""
    if word not in choices:
        raise _error(node, path, f"{shortened(repr(word))} must be one of {', '.join(choices)}")
    return word


def _pairs(transfer: yaml.Node) -> int:
    node = _optional(transfer, "pairs")
    if node is None:
        return 6
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= _MOST_PAIRS:
        raise _error(node, "transfer.pairs", f"{shortened(repr(text))} must be an integer in [1, {_MOST_PAIRS:,}]")
    return int(text)


def _check_keys(node: yaml.Node, path: str, known: Sequence[str], required: Sequence[str]) -> None:
    entries = dict(_entries(node, path))
    for key, value in entries.items():
        if key not in known:
            raise _error(value, path, unknown(f"field of {path or 'a space with a transfer'}", key, known))
    missing = [key for key in required if key not in entries]
    if missing:
        raise _error(node, path, f"it needs {', '.join(missing)}")


def _entries(node: yaml.Node | None, path: str = "transfer") -> Iterator[tuple[str, yaml.Node]]:
    """Keys and values of a section; of none that is left out."""
    if node is None:
        return
    if not isinstance(node, yaml.MappingNode):
        raise _error(node, path, "this must be a section of key: value lines")
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise _error(key, path, "a key must be a word")
        yield key.value, value


def _field(node: yaml.Node, name: str) -> yaml.Node:
    found = _optional(node, name)
    if found is None:
        raise _error(node, "transfer", f"it needs {name}")
    return found


def _optional(node: yaml.Node, name: str) -> yaml.Node | None:
    return dict(_entries(node)).get(name)


def _task(whole: yaml.Node) -> yaml.Node:
    return yaml.MappingNode(
        tag="tag:yaml.org,2002:map", value=[(_word("space", whole), whole)], start_mark=whole.start_mark
    )


def _word(text: str, like: yaml.Node) -> yaml.ScalarNode:
    return yaml.ScalarNode(tag="tag:yaml.org,2002:str", value=text, start_mark=like.start_mark)


def _error(node: yaml.Node, path: str, message: str) -> SpaceError:
    where = f"{path}: " if path else ""
    return SpaceError(f"{mark_place(node.start_mark)}: {where}{message}")
