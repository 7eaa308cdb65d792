"""`--set path=value`: values of the command line put into a space's syntax tree before it is read.

The tree is changed, not the text, so that the result can be written out again as YAML that needs no
overrides. Inside the sections of plug-ins a path names fields, whichever way the file writes the
plug-in: `softmax`, `{ssa: {n: 1.5}}` or `{name: ssa, n: 1.5}`. A task of a transfer that is the
name of its space alone becomes a section in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml
from yaml.emitter import ScalarAnalysis

from spaces.errors import SpaceError
from spaces.grammar.nodes import SETTING, Node, compose, location_of
from spaces.messages import shorten

_SECTIONS = ("task", "model", "optimizer", "averaging", "learning")
_PLUGINS = (*((section,) for section in _SECTIONS), ("search", "sampler"), ("search", "stopping"))
_OF_PATHS = (
    ("arms", "*"),
    ("transfer", "learn"),
    ("transfer", "architecture"),
    ("transfer", "tasks", "*", "set"),
    ("transfer", "tasks", "*", "learn"),
)
"""Sections whose keys are paths; `*` stands for the name of an arm or a task."""
_PATH = re.compile(r"\w+(\.\w+)*", re.ASCII)
_MAP, _STR = "tag:yaml.org,2002:map", "tag:yaml.org,2002:str"


def override(root: yaml.Node, overrides: Mapping[str, str]) -> yaml.Node:
    """Return a copy with each path's value replaced or added; SpaceError names a bad override."""
    for path, value in overrides.items():
        name = SETTING + shorten(f"{path}={value}")
        if not _PATH.fullmatch(path):
            raise SpaceError(f"{name}: a path is names joined by dots, as in training.steps")
        root = _Setting(name, compose(value, name)).put(root, (), tuple(path.split(".")))
    return root


def replace_at(root: yaml.Node, path: str, value: yaml.Node) -> yaml.Node:
    """Return a copy of the tree with this node at a path; raises SpaceError as `override` does."""
    where = location_of(value.start_mark)
    if not _PATH.fullmatch(path):
        raise SpaceError(f"{where}: {shorten(path)}: a path is names joined by dots")
    return _Setting(where, value).put(root, (), tuple(path.split(".")))


def replace_all(root: yaml.Node, settings: Mapping[str, Node]) -> yaml.Node:
    """Return a copy of the tree with each of these values at its path, in their order."""
    for path, value in settings.items():
        root = replace_at(root, path, value.tree)
    return root


def to_yaml(root: yaml.Node) -> str:
    """Return the tree as YAML text, each scalar as it was written."""
    return yaml.serialize(root, Dumper=_Dumper, width=120, allow_unicode=True)


class _Dumper(yaml.BaseDumper):
    """A dumper that writes an empty value in braces as `~`; PyYAML's own makes it a text."""

    def analyze_scalar(self, scalar: str) -> ScalarAnalysis:
        """Return how a scalar may be written."""
        analysis = super().analyze_scalar(scalar)
        analysis.allow_flow_plain = analysis.allow_flow_plain or not scalar
        return analysis

    def write_plain(self, text: str, split: bool = True) -> None:
        """Write a scalar that has no quotes."""
        super().write_plain(text or ("~" if self.flow_level else ""), split)


class _Setting:
    """One override: a value, and its name in errors."""

    def __init__(self, name: str, value: yaml.Node) -> None:
        self._name = name
        self._value = value

    def put(self, node: yaml.Node, at: tuple[str, ...], steps: tuple[str, ...]) -> yaml.Node:
        """Return a copy of `node`, at the path `at`, with the value at `steps` below it."""
        if not steps:
            return self._value
        if not _is_plugin(at):
            return self._entry(node, at, steps)
        if isinstance(node, yaml.ScalarNode) and node.value:
            node = self._mapping([(self._word("name"), node)])
        if not isinstance(node, yaml.MappingNode) or len(node.value) != 1:
            return self._entry(node, at, steps)
        name, fields = node.value[0]
        is_empty = isinstance(fields, yaml.ScalarNode) and not fields.value
        if not is_empty and not isinstance(fields, yaml.MappingNode):
            return self._entry(node, at, steps)
        # The plug-in is written `{name: {field: value}}`.
        inner = steps[1:] if steps[0] == name.value else steps
        added = self._entry(fields, at, inner) if inner else self._value
        return self._mapping([(name, added)], node)

    def _entry(self, node: yaml.Node, at: tuple[str, ...], steps: tuple[str, ...]) -> yaml.Node:
        if isinstance(node, yaml.ScalarNode) and not node.value:
            node = self._mapping([])
        # A task of a transfer may be the name of its space alone.
        elif isinstance(node, yaml.ScalarNode) and at[:-1] == ("transfer", "tasks"):
            node = self._mapping([(self._word("space"), node)])
        if not isinstance(node, yaml.MappingNode):
            where = ".".join(at) or "the space"
            raise SpaceError(f"{self._name}: {where} is no section, set it as a whole")
        key, rest = steps[0], steps[1:]
        if _below_paths(at) == ():  # the longest path that is there already, else all steps
            keys = {word.value for word, _ in node.value}
            counts = range(len(steps), 0, -1)
            count = next((count for count in counts if ".".join(steps[:count]) in keys), len(steps))
            key, rest = ".".join(steps[:count]), steps[count:]
        entries = list(node.value)
        for position, (word, value) in enumerate(entries):
            if word.value == key:
                entries[position] = (word, self.put(value, (*at, key), rest))
                return self._mapping(entries, node)
        if rest and _is_plugin((*at, key)):
            whole = ".".join((*at, key))
            raise SpaceError(f"{self._name}: the file has no {whole}, set {whole}=NAME before its fields")
        added = self.put(self._mapping([]), (*at, key), rest)
        return self._mapping([*entries, (self._word(key), added)], node)

    def _mapping(self, entries: list[tuple[yaml.Node, yaml.Node]], like: yaml.Node | None = None) -> yaml.MappingNode:
        mark = like.start_mark if like else self._value.start_mark
        flow = like.flow_style if isinstance(like, yaml.MappingNode) else True
        return yaml.MappingNode(tag=_MAP, value=entries, start_mark=mark, flow_style=flow)

    def _word(self, text: str) -> yaml.ScalarNode:
        return yaml.ScalarNode(tag=_STR, value=text, start_mark=self._value.start_mark)


def _is_plugin(at: tuple[str, ...]) -> bool:
    """Return True for the path of a plug-in's section and for paths below it."""
    below = _below_paths(at)
    path = at if below is None else tuple(".".join(below).split("."))
    return any(path[: len(start)] == start for start in _PLUGINS)


def _below_paths(at: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the part of a path below a section whose keys are paths, as an arm; None outside of one."""
    for section in _OF_PATHS:
        start = at[: len(section)]
        if len(start) == len(section) and all(name in ("*", step) for name, step in zip(section, start, strict=True)):
            return at[len(section) :]
    return None
