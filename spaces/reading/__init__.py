"""Reads YAML text into a Space: an ordinary one, an experiment of several arms, or a transfer between tasks."""

from __future__ import annotations

import graphlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import yaml

from spaces.grammar.declarations import Context, Declarations
from spaces.grammar.formulas import Block, Formula
from spaces.grammar.nodes import Node, compose, read, to_plain
from spaces.grammar.overrides import override, to_yaml
from spaces.grammar.sections import Families, defaults_of, read_mapping, read_plugin, read_record
from spaces.grammar.values import read_value
from spaces.messages import no_such, shorten
from spaces.plugins import canonical_json
from spaces.plugins.rules import Rule
from spaces.program import Program
from spaces.reading import catalogue, plugins_section
from spaces.reading.experiment_section import is_experiment, read_experiment
from spaces.reading.padding import follow_space, padding_rule
from spaces.reading.search_section import read_search
from spaces.reading.transfer_section import inline_spaces, is_transfer, read_transfer
from spaces.settings import Training
from spaces.space import DrawnSpace, Space

_BLOCKS: tuple[Block, ...] = get_args(Block)
_DEFAULTS = {"averaging": "none", "learning": "weights"}
"""Plug-ins of a trial that a space may leave out."""
_PLUGINS = ("task", "model", "optimizer", *_DEFAULTS)
_SECTIONS = ("study", plugins_section.SECTION, *_BLOCKS, *_PLUGINS, "training", "search")
REQUIRED = ("study", "task", "model", "optimizer", "training", "search")
_STUDY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"\$(\w+)", re.ASCII)


def load(origin: str, families: Families, overrides: Mapping[str, str] | None = None) -> Space:
    """Return the space in a file, or a packaged one (`set_complement`, `quick/set_complement`).

    `overrides` maps dotted paths to YAML values, as `--set training.steps=2000` gives them. Raises
    SpaceError that names the file, the line, the path, the value, the rule and the choices.
    """
    return parse(catalogue.read_text(origin), origin, families, overrides)


def parse_stored(study: Mapping[str, Any], families: Families, overrides: Mapping[str, str] | None = None) -> Space:
    """Return the space of a stored study, by its row, with the defaults of its time."""
    with defaults_of(study["numerics"]):
        return parse(study["space"], f"the space of study {study['name']}", families, overrides)


def parse(text: str, origin: str, families: Families, overrides: Mapping[str, str] | None = None) -> Space:
    """Return the space in a YAML text, which errors call `origin`; otherwise as `load`."""
    tree = compose(text, origin)
    if overrides:
        tree = override(tree, overrides)
        text = to_yaml(tree)
    root = read(tree)
    if not is_transfer(root) and not is_experiment(root):
        return _SpaceReader(root, families).read_space(text)
    whole = inline_spaces(root) if is_transfer(root) else root  # with the texts of the tasks' spaces
    if "study" not in (sections := read_mapping(whole, "")):
        raise root.error("", "a space needs the section study")
    name = _read_study_name(sections["study"])

    def read_drawn(node: yaml.Node) -> DrawnSpace:
        return _SpaceReader(read(node), families).read_space(to_yaml(node))

    if is_transfer(root):
        return read_transfer(whole, name, families, read_drawn, _hash_content(whole))
    return read_experiment(whole, name, read_drawn, _hash_content(whole))


def content_of(text: str, origin: str) -> Any:
    """Return the plain values that a space's hash is computed from; SpaceError if it is no YAML."""
    root = read(compose(text, origin))
    return to_plain(inline_spaces(root) if is_transfer(root) else root)


def _hash_content(root: Node) -> str:
    return hashlib.sha256(canonical_json(to_plain(root)).encode()).hexdigest()


class _SpaceReader:
    """Reads one ordinary space, or that of an arm or of a task."""

    def __init__(self, root: Node, families: Families) -> None:
        self._root = root
        self._families = families
        self._sections = read_mapping(root, "")
        for key, node in self._sections.items():
            if key not in _SECTIONS:
                raise node.error("", no_such("section", key, _SECTIONS))
        if plugins_section.SECTION in self._sections:
            plugins_section.check_section(self._sections[plugins_section.SECTION])
        missing = [key for key in REQUIRED if key not in self._sections]
        if missing:
            noun = f"section{'s' * (len(missing) > 1)}"
            raise root.error("", f"a space needs the {noun} {', '.join(missing)}")
        self._named: dict[Block, Mapping[str, Node]] = {}
        blocks: dict[str, Block] = {}
        for block in _BLOCKS:
            node = self._sections.get(block)
            named: Mapping[str, Node] = {}
            if node and node.content is not None:
                named = read_mapping(node, block)
            self._named[block] = named
            for name, child in named.items():
                if not _NAME.fullmatch(name):
                    rule = "must be a name of a-z, 0-9 and _"
                    raise child.error(block, f"{shorten(repr(name))} {rule}")
                if name in blocks:
                    problem = f"{name!r} is a value of the {blocks[name]} already"
                    raise child.error(f"{block}.{name}", problem)
                blocks[name] = block
        self._declarations = Declarations(blocks)

    def read_space(self, text: str) -> DrawnSpace:
        """Return the whole space, which was read from `text`."""
        name = _read_study_name(self._sections["study"])
        group = self._read_values("group")
        trial = self._read_values("trial")  # after the group's, which it may use
        present = [key for key in self._sections if key in (*_PLUGINS, "training")]
        left_out = [key for key in _DEFAULTS if key not in present]
        sections = {key: self._read_section(key) for key in (*present, *left_out)}
        context = Context(declarations=self._declarations, path="search", block=None)
        search = read_search(self._sections["search"], self._families, context)
        says_pad_shapes = "pad_shapes" in read_mapping(self._sections["training"], "training")
        sizes, draws = self._declarations.drawn_sizes, self._declarations.draws
        decides_padding = follow_space if says_pad_shapes else padding_rule(sizes.values(), search)
        return DrawnSpace(
            name=name,
            text=text,
            hash=_hash_content(self._root),
            search=search,
            group_draws=tuple(draw for draw in draws if draw.scope == "group"),
            trial_draws=tuple(draw for draw in draws if draw.scope == "trial"),
            rows=tuple(self._declarations.rows),
            drawn_sizes=tuple(sizes),
            program=Program(group, trial, sections, decides_padding),
        )

    def _read_section(self, key: str) -> Formula:
        context = Context(declarations=self._declarations, path=key, block="trial")
        node = self._sections.get(key) or Node.of_word(_DEFAULTS[key], self._root)
        if key == "training":
            return read_record(node, read_mapping(node, key), Training, key, context)
        return read_plugin(node, self._families[key], context)

    def _read_values(self, block: Block) -> Mapping[str, Formula]:
        """Return the formulas of a block's named values, each after those it depends on."""
        known, nodes = self._declarations.values, self._named[block]
        uses = {name: [used for used in _find_references(node) if used in nodes] for name, node in nodes.items()}
        try:
            ordered = list(graphlib.TopologicalSorter(uses).static_order())
        except graphlib.CycleError as error:
            cycle: list[str] = error.args[1][::-1]
            path = f"{block}.{cycle[0]}"
            problem = f"the value depends on itself: {' -> '.join(cycle)}"
            raise nodes[cycle[0]].error(path, problem) from error
        formulas: dict[str, Formula] = {}
        for name in ordered:
            context = Context(declarations=self._declarations, path=f"{block}.{name}", block=block)
            formulas[name] = read_value(nodes[name], Rule(kind="knob"), context)
            known[name] = formulas[name]
        return formulas


def _read_study_name(node: Node) -> str:
    if isinstance(node.content, tuple | Mapping) or not _STUDY.fullmatch(node.text):
        rule = "must be a word of letters, digits, '.', '_' and '-'"
        raise node.error("study", f"{shorten(repr(node.text))} {rule}")
    return node.text


def _find_references(node: Node) -> Iterator[str]:
    if isinstance(node.content, str):
        yield from _REFERENCE.findall(node.content)
    elif isinstance(node.content, tuple | Mapping):
        children = node.content.values() if isinstance(node.content, Mapping) else node.content
        for child in children:
            yield from _find_references(child)
