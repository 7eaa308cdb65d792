"""The declarations of a space that is read: named values, draws, and the rows that describe it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spaces.grammar.distributions import describe_bounds
from spaces.grammar.formulas import Block, Draw, DrawKind, Formula, LanguageError, Level, named_value
from spaces.grammar.nodes import Node
from spaces.messages import no_such


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafDescription:
    """One line of a space's description: a leaf as the file writes it."""

    path: str
    text: str
    """The leaf as the file writes it, on one line."""
    node: Node = field(repr=False, compare=False)
    level: Level
    condition: str | None
    bounds: str
    """Bounds of the draws of the leaf, in order, separated by `; `; empty for none."""


class Declarations:
    """The register of one space that is being read."""

    def __init__(self, blocks: Mapping[str, Block]) -> None:
        self.blocks = blocks
        """Every named value of the file and the block that it stands in."""
        self.values: dict[str, Formula] = {}
        """The named values read so far, in the order of their evaluation."""
        self.draws: list[Draw] = []
        self.rows: list[LeafDescription] = []
        self.drawn_sizes: dict[str, Level] = {}
        """Path -> level of every size that is drawn and may be padded."""
        self._in_leaf: Counter[str] = Counter()

    def draw(self, context: Context, kind: DrawKind, arguments: Sequence[str]) -> Draw:
        """Register a draw at `context`; raises LanguageError if it must be a constant."""
        if context.block is None:
            raise LanguageError(f"{kind} draws a random value, but this must be a constant")
        self._in_leaf[context.path] += 1
        count = self._in_leaf[context.path]
        draw = Draw(
            name=context.path if count == 1 else f"{context.path}#{count}",
            kind=kind,
            scope=context.block,
            choices=len(arguments) if kind == "choice" else None,
            condition=context.condition,
            bounds=describe_bounds(kind, arguments),
        )
        self.draws.append(draw)
        return draw

    def describe(self, context: Context, node: Node, level: Level, first: int) -> None:
        """Add the row of a leaf whose draws are those registered from position `first` on."""
        bounds = "; ".join(draw.bounds for draw in self.draws[first:])
        self.rows.append(
            LeafDescription(
                path=context.path, text=node.text, node=node, level=level, condition=context.condition, bounds=bounds
            )
        )


@dataclass(frozen=True, kw_only=True)
class Context:
    """The position of a value: its path, the values that it may use, and its condition."""

    declarations: Declarations
    path: str
    block: Block | None
    """Scope of the draws made here; None if only constants may stand here."""
    condition: str | None = None

    def at(self, key: str) -> Context:
        """Return the context of the entry `key` below this one."""
        return dataclasses.replace(self, path=f"{self.path}.{key}")

    def within(self, draw: Draw, option: str) -> Context:
        """Return the same context when the choice `draw` takes `option`."""
        here = f"{draw.name}={option}"
        condition = f"{self.condition} and {here}" if self.condition else here
        return dataclasses.replace(self, condition=condition)

    def draw(self, kind: DrawKind, arguments: Sequence[str]) -> Draw:
        """Register a draw that stands here."""
        return self.declarations.draw(self, kind, arguments)

    def value(self, name: str) -> Formula:
        """Return the formula that reads a named value; LanguageError if it may not be used here."""
        blocks = self.declarations.blocks
        if name not in blocks:
            raise LanguageError(no_such("named value", f"${name}", (f"${known}" for known in blocks)))
        if self.block is None:
            raise LanguageError(f"${name} stands here, but this must be a constant")
        if self.block == "group" and blocks[name] == "trial":
            raise LanguageError(f"${name} differs from trial to trial, so a value of the group cannot depend on it")
        declared = self.declarations.values[name]
        if declared.level is Level.CONSTANT:
            return declared
        # A value of the block `trial` is computed with the trial, even of the group's draws alone.
        level = Level.TRIAL if blocks[name] == "trial" else declared.level
        return named_value(name, level)
