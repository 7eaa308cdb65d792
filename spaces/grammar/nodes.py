"""A YAML file as nodes: a tree of plain values that know their line in the file.

Scalars are read more plainly than YAML 1.1 does: `1e-5` and `10_000_000` are numbers, `true` and
`false` are the only truth values, and everything else (`on`, `1:30`, a date) is text. Nothing is
ever constructed from a tag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from spaces.errors import SpaceError
from spaces.messages import shorten

LARGEST = 1 << 20
"""Characters of a space file."""
MOST_NODES = 10_000
"""Values of a space, aliases written out: a small file of nested aliases may stand for billions."""
DEEPEST = 32
"""Mappings and lists around a value."""
_TOO_MANY = f"a space may have {MOST_NODES:,} values, nested {DEEPEST} deep"
SETTING = "--set "
"""Start of the name of a text that comes from the command line and has no lines worth naming."""

Content = bool | int | float | str | tuple["Node", ...] | Mapping[str, "Node"] | None
_SHOWN = 500
_INT = re.compile(r"[-+]?[0-9][0-9_]*", re.ASCII)
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(e[-+]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_UNTAGGED = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map")}
_LARGEST_INT = 1 << 63
_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True, kw_only=True)
class Node:
    """A value of the file. An entry of a mapping stands where its key stands."""

    location: str
    """`file:line`, or the `--set path=value` that gave the value."""
    content: Content
    text: str
    """The value as the file writes it, on one line."""
    tree: yaml.Node
    """The syntax tree that it was read from."""

    @classmethod
    def of_word(cls, word: str, like: Node) -> Node:
        """Return a word that the file leaves out, as if it were written where `like` stands."""
        mark = like.tree.start_mark
        tree = yaml.ScalarNode(tag="tag:yaml.org,2002:str", value=word, start_mark=mark)
        return cls(location=like.location, content=word, text=word, tree=tree)

    @property
    def word(self) -> str:
        """A scalar as the file writes it; empty for a section, a list and nothing."""
        return self.tree.value if isinstance(self.tree, yaml.ScalarNode) else ""

    def error(self, path: str, message: str) -> SpaceError:
        """Return the error of this value: its location, its dotted path, and what is wrong."""
        where = f"{path}: " if path else ""
        return SpaceError(f"{self.location}: {where}{message}")


class _Loader(yaml.BaseLoader):
    """Composes nodes until there are too many: some texts make half a million in a second."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes += 1
        if self._nodes > 2 * MOST_NODES:  # a key and a value each
            raise SpaceError(f"{_format_location(self.name, self.line + 1)}: {_TOO_MANY}")
        return super().compose_node(parent, index)


def compose(text: str, name: str) -> yaml.Node:
    """Return a YAML document's syntax tree; SpaceError with the line if it is broken or empty."""
    if len(text) > LARGEST:
        raise SpaceError(f"{name}: a space may have {LARGEST:,} characters, but this text has {len(text):,}")
    try:
        loader = _Loader(text)
        loader.name = name
        root = loader.get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpaceError(
            f"{_format_location(name, line)}: YAML cannot hold the character {chr(error.character)!r}"
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = shorten(error.problem or error.context or "broken YAML")
        raise SpaceError(f"{_format_location(name, line)}: broken YAML: {problem}") from error
    except RecursionError as error:
        raise SpaceError(f"{name}: broken YAML: nested too deeply") from error
    except (ValueError, OverflowError) as error:  # chr() of a code point beyond Unicode
        raise SpaceError(f"{name}: broken YAML: an escape sequence stands for no character") from error
    if root is None:
        raise SpaceError(f"{name}: it is empty")
    _join_calls(root)
    return root


def read(root: yaml.Node) -> Node:
    """Return plain values; SpaceError for duplicate keys, tags, keys without text, alias bombs."""
    return _Reader().read(root, root.start_mark, 0)


def to_plain(node: Node) -> Any:
    """Return a value of a file as JSON has it, without its location."""
    if isinstance(node.content, Mapping):
        return {key: to_plain(child) for key, child in node.content.items()}
    if isinstance(node.content, tuple):
        return [to_plain(child) for child in node.content]
    return node.content


def _join_calls(root: yaml.Node) -> None:
    """Join calls that YAML cut at their commas: `{n: uniform(1, 3)}` has the keys `n` and `3)`."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.ScalarNode) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            node.value = _join_parts(node.value) if node.flow_style else node.value
            waiting += [part for entry in node.value for part in entry]
        elif isinstance(node, yaml.SequenceNode):
            parts = _join_parts([(item,) for item in node.value]) if node.flow_style else []
            node.value = [item for (item,) in parts] if node.flow_style else node.value
            waiting += node.value


def _join_parts(parts: list[tuple[yaml.Node, ...]]) -> list[tuple[yaml.Node, ...]]:
    """Return items, or entries of key and value, with each cut call put back where it began."""
    whole: list[tuple[yaml.Node, ...]] = []
    for first, *others in parts:
        *before, last = whole[-1] if whole else (first,)
        is_open = bool(whole) and _is_plain(last) and last.value.count("(") > last.value.count(")")
        is_part = all(_is_plain(other) and not other.value for other in others)
        if is_open and _is_plain(first) and is_part:
            text, ends = f"{last.value}, {first.value}", (last.start_mark, first.end_mark)
            joined = yaml.ScalarNode(last.tag, text, *ends)
            whole[-1] = (*before, joined)
        else:
            whole.append((first, *others))
    return whole


def _is_plain(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None


class _Reader:
    def __init__(self) -> None:
        self._nodes = 0

    def read(self, node: yaml.Node, mark: yaml.Mark, depth: int) -> Node:
        is_setting = node.start_mark.name.startswith(SETTING)
        location = location_of(node.start_mark if is_setting else mark)
        self._nodes += 1
        if self._nodes > MOST_NODES or depth > DEEPEST:
            raise SpaceError(f"{location}: {_TOO_MANY}")
        if node.tag not in _UNTAGGED:
            raise SpaceError(f"{location}: {shorten(node.tag)}: tags are not part of a space")
        match node:
            case yaml.ScalarNode():
                content, text = _scalar(node), shorten(node.value, limit=_SHOWN)
                return Node(location=location, content=content, text=text, tree=node)
            case yaml.SequenceNode():
                items = tuple(self.read(item, item.start_mark, depth + 1) for item in node.value)
                text = f"[{', '.join(item.text for item in items)}]"
                return Node(location=location, content=items, text=text, tree=node)
            case _:
                return self._mapping(node, location, depth)

    def _mapping(self, node: yaml.Node, location: str, depth: int) -> Node:
        entries: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise SpaceError(f"{location_of(key.start_mark)}: a key must be a word")
            if key.value in entries:
                where = f"{location_of(key.start_mark)}: {shorten(repr(key.value))}"
                raise SpaceError(f"{where} stands here twice, first at {entries[key.value].location}")
            entries[key.value] = self.read(value, key.start_mark, depth + 1)
        text = ", ".join(f"{shorten(key)}: {entry.text}" for key, entry in entries.items())
        return Node(location=location, content=entries, text=f"{{{text}}}", tree=node)


def location_of(mark: yaml.Mark) -> str:
    """Return `file:line` of a mark."""
    return _format_location(mark.name, mark.line + 1)


def _format_location(name: str, line: int) -> str:
    return name if name.startswith(SETTING) else f"{name}:{line}"


def _scalar(node: yaml.ScalarNode) -> bool | int | float | str | None:
    text: str = node.value
    if node.style is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    digits = text.replace("_", "")
    if _INT.fullmatch(text) and len(digits) < 20 and abs(int(digits)) < _LARGEST_INT:
        return int(digits)
    # A longer integer would only overflow later; as a float it is a number that a rule can refuse.
    return float(digits) if _FLOAT.fullmatch(text) else text
