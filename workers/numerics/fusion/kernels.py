"""The writer of a fused kernel: the tensors that it stores, its loops, and its text.

Every block of a launch has its own run of all tensors (`Cut`). In levels of loops, each loop reads
what earlier levels have stored, and computes several tensors of as many elements. A value that is
cheap or needed once is not stored.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from workers.numerics.codegen.formulas import FUNCTIONS
from workers.numerics.codegen.values import TYPES, CannotGenerate, Kind, contiguous_strides
from workers.numerics.fusion.cuts import Cut, Place
from workers.numerics.fusion.rules import LONG, PARTS, Product, Reduction, Summed, View
from workers.numerics.fusion.writing import Rule, Scope, Writer
from workers.numerics.simplifying import Slot

THREADS = 256
CHEAP = 8
"""The largest cost of a value that is computed again for each operation that needs it."""
_CHEAP_PER_ELEMENT = 2
"""The same limit for values that belong to many elements."""
_BLOCKS_OF_LANE = 1024
_PREAMBLE = Path(__file__).with_name("fusion.hpp").read_text() + "\n" + FUNCTIONS


class KernelCode(NamedTuple):
    """A kernel and the arguments of its launch."""

    text: str
    given: list[Slot | Tensor]
    """The tensors that it reads, in the order of its parameters."""
    results: list[Slot]
    """The tensors that it writes for others, which are the next parameters."""
    scratch: list[Kind]
    """The tensors that it writes for itself, which are the last parameters."""
    blocks: int


def write_kernel(
    rules: Mapping[Slot, Rule], kinds: Mapping[Slot, Kind], results: Sequence[Slot], lanes: int
) -> KernelCode:
    """Return the kernel that computes `results`, in their order; raises CannotGenerate.

    It has the most blocks that have enough work each and need nothing of one another.
    """
    for count in _block_counts([kinds[slot] for slot in results], lanes):
        try:
            return _Layout(rules, kinds, results, Cut(lanes, count)).code()
        except CannotGenerate:
            if count == 1:
                raise
    raise AssertionError("the last count is 1")


def _block_counts(kinds: Sequence[Kind], lanes: int) -> list[int]:
    """Return the three largest numbers of blocks that divide all results of a lane, and 1."""
    rows = [(kind.shape[0] // lanes, *kind.shape[1:]) for kind in kinds]
    counts = {math.prod(shape[:depth]) for shape in rows for depth in range(1, len(shape))} - {1}
    most = min(_BLOCKS_OF_LANE, max(kind.numel for kind in kinds) // lanes // THREADS)
    fitting = (
        count
        for count in sorted(counts, reverse=True)
        if count <= most and all(Cut(lanes, count).depth(kind.shape) is not None for kind in kinds)
    )
    return [*itertools.islice(fitting, 3), 1]


@dataclass
class _Stored:
    """A tensor that a loop stores, or keeps for the rest of its round."""

    slot: Slot
    reads: dict[Any, bool] = field(default_factory=dict)
    """Key of a tensor that it reads -> True if an element reads the same element alone."""
    level: int = 0
    is_part: bool = False


class _Layout:
    def __init__(
        self, rules: Mapping[Slot, Rule], kinds: Mapping[Slot, Kind], results: Sequence[Slot], cut: Cut
    ) -> None:
        self._rules, self._results, self._cut = rules, [*results], cut
        dense = {s: kinds[s]._replace(strides=contiguous_strides(kinds[s].shape)) for s in rules}
        self._kinds: dict[Any, Kind] = {**kinds, **dense, **{slot: kinds[slot] for slot in results}}
        self._kept: list[Slot] = []
        for slot in _find_kept(rules, self._kinds, self._results):
            if cut.depth(kinds[slot].shape) is not None:
                self._kept.append(slot)
            elif slot in self._results or isinstance(rules[slot], Summed):
                raise CannotGenerate("too few numbers for the blocks")
            # Else it is computed where it is needed: the blocks of a lane cannot share it out.
        self._stored: dict[Any, _Stored] = {}
        for slot in self._kept:
            rule, part = self._rules[slot], ("part", slot)
            if isinstance(rule, Reduction) and rule.terms(self._kind(rule.source).shape) > LONG:
                self._note(part, _Stored(slot, self._reads_of(slot, part="p"), is_part=True))
                self._note(slot, _Stored(slot, {part: False}))
            else:
                self._note(slot, _Stored(slot, self._reads_of(slot, part=None)))
        self._given: list[Slot | Tensor] = []
        self._buffers: dict[Any, str] = {}

    def code(self) -> KernelCode:
        needed: list[Any] = []
        for key, stored in self._stored.items():
            for other in stored.reads:  # another loop reads a tensor that is no result
                is_elsewhere = self._loop_of(other) != self._loop_of(key)
                if is_elsewhere and other not in self._results and other not in needed:
                    needed.append(other)
        self._buffers = {key: f"s{number}" for number, key in enumerate(needed)}
        self._buffers |= {slot: f"o{number}" for number, slot in enumerate(self._results)}
        lines = self._write_levels()
        scratch: list[Kind] = []
        for key in needed:
            if isinstance(key, tuple):
                kind = self._kinds[key[1]]
                scratch.append(Kind((kind.numel * PARTS,), (1,), kind.dtype))
            else:
                scratch.append(self._kinds[key])
        if not self._given:
            raise CannotGenerate("nothing is read")
        types = [TYPES[self._kind(operand).dtype] for operand in self._given]
        parameters = [f"const {name} *g{number}" for number, name in enumerate(types)]
        for letter, kinds in (("o", [self._kinds[slot] for slot in self._results]), ("s", scratch)):
            parameters += [f"{TYPES[kind.dtype]} *{letter}{number}" for number, kind in enumerate(kinds)]
        names = ", ".join(parameter.rpartition("*")[2] for parameter in parameters)
        head = f"#define PARAMETERS {', '.join(parameters)}\n#define NAMES {names}\n"
        body = [f"    {line}" for line in lines]
        text = "\n".join([head + _PREAMBLE, "KERNEL {", *body, "}", ""])
        return KernelCode(text, self._given, self._results, scratch, self._cut.blocks)

    def _kind(self, operand: Slot | Tensor) -> Kind:
        return Kind.of(operand) if isinstance(operand, Tensor) else self._kinds[operand]

    # -- what is stored, and when ------------------------------------------------------------------

    def _note(self, key: Any, stored: _Stored) -> None:
        for other, same in stored.reads.items():
            before = self._stored[other]
            joins = same and not stored.is_part and self._numbers(other) == self._numbers(key)
            stored.level = max(stored.level, before.level if joins else before.level + 1)
        self._stored[key] = stored

    def _reads_of(self, slot: Slot, part: str | None) -> dict[Any, bool]:
        """Return the places that are stored in this kernel and read for a tensor."""
        reads: dict[Any, bool] = {}

        def look(other: Slot, place: Place) -> bool:
            if other == slot or not self._loads(other, place):
                return False
            reads[other] = reads.get(other, True) and place.flat == "f"
            return True

        writer = Writer(self._cut, self._rules, self._kinds, load=lambda operand, offset: "0", stored=look)
        scope, place = Scope(), Place(self._kinds[slot].shape, None, "f", aligned=True)
        rule = self._rules[slot]
        if part is not None and isinstance(rule, Reduction):
            rule.write_part(writer, scope, place, part)
        else:
            rule.write(writer, scope, place)
        return reads

    def _loads(self, slot: Slot, place: Place) -> bool:
        """Return whether an element is read from memory: not where another block stores it."""
        if slot not in self._kept:
            return False
        if place.aligned:
            return True
        if isinstance(self._rules[slot], Summed):
            raise CannotGenerate("another block's sums")
        return False

    def _loop_of(self, key: Any) -> tuple[int, int, Any]:
        stored = self._stored[key]
        return stored.level, self._numbers(key), key if stored.is_part else None

    def _numbers(self, key: Any) -> int:
        """Return how many elements of a stored tensor a block computes."""
        parts, slot = (PARTS, key[1]) if isinstance(key, tuple) else (1, key)
        return self._kinds[slot].numel // self._cut.blocks * parts

    # -- the text ----------------------------------------------------------------------------------

    def _write_levels(self) -> list[str]:
        loops: dict[tuple[int, int, Any], list[Any]] = {}
        for key in self._stored:
            loops.setdefault(self._loop_of(key), []).append(key)
        lines: list[str] = []
        # Names count on through all loops; arguments are numbered by their first reads.
        writer = Writer(self._cut, self._rules, self._kinds, load=self._load, stored=self._loads)
        at_level = 0
        for loop in sorted(loops, key=lambda head: head[0]):
            if loop[0] != at_level:
                lines.append("MEET;")
                at_level = loop[0]
            scope = Scope()
            for key in loops[loop]:
                self._write_one(writer, scope, key)
            lines += [f"EACH(i, {loop[1]}) {{", *(f"    {line}" for line in scope.lines), "}"]
        return lines

    def _write_one(self, writer: Writer, scope: Scope, key: Any) -> None:
        stored = self._stored[key]
        kind, rule = self._kinds[stored.slot], self._rules[stored.slot]
        run = kind.numel // self._cut.blocks
        place = Place(kind.shape, None, "f", aligned=True)
        if stored.is_part and isinstance(rule, Reduction):
            inside = rule.interleaved(self._kind(rule.source).shape)
            element, part = (f"i / {PARTS}", f"i % {PARTS}") if inside else (f"i % {run}", f"i / {run}")
            scope.say(f"const int f = block * {run} + {element};")
            scope.say(f"const int p = {part};")
            scope.say(f"{self._buffers[key]}[f * {PARTS} + p] = {rule.write_part(writer, scope, place, 'p')};")
            return
        if not scope.lines:
            scope.say(f"const int f = block * {run} + i;")
        if ("part", stored.slot) in self._stored and isinstance(rule, Reduction):
            total, part = writer.name("t"), writer.name("r")
            scope.say(f"{TYPES[rule.dtype]} {total} = {rule.start};")
            inner = Scope(scope)
            inner.say(rule.joined(total, f"{self._buffers['part', stored.slot]}[f * {PARTS} + {part}]"))
            scope.put(f"for (int {part} = 0; {part} < {PARTS}; {part}++)", inner)
            expression = rule.finish(total, self._kind(rule.source).shape)
        else:
            expression = rule.write(writer, scope, place)
        name = scope.know((stored.slot, place.key), writer.hold(scope, expression, kind.dtype))
        if buffer := self._buffers.get(key):
            offset = writer.offset(scope, kind, place)
            scope.say(f"{buffer}[{offset}] = {name};")

    def _load(self, operand: Slot | Tensor, offset: str) -> str:
        if isinstance(operand, Slot) and operand in self._rules:
            return f"{self._buffers[operand]}[{offset}]"
        for number, known in enumerate(self._given):
            if known is operand or (isinstance(known, Slot) and known == operand):
                return f"g{number}[{offset}]"
        self._given.append(operand)
        return f"g{len(self._given) - 1}[{offset}]"


def _find_kept(rules: Mapping[Slot, Rule], kinds: Mapping[Any, Kind], results: Sequence[Slot]) -> dict[Slot, None]:
    """Return the values to compute once: results, sums, and costly values that are used often."""
    users: dict[Slot, int] = dict.fromkeys(rules, 0)
    spread: set[Slot] = set()
    for slot, rule in rules.items():
        if isinstance(rule, View):
            continue
        for operand in operands_of(rule):
            base, size = operand, kinds[slot].numel
            while isinstance(base, Slot) and isinstance(view := rules.get(base), View):
                size, base = max(size, kinds[base].numel), view.source
            if isinstance(base, Slot) and base in rules:
                users[base] += 1
                if isinstance(rule, Product) or kinds[base].numel < size:
                    spread.add(base)
    kept: dict[Slot, None] = {}
    costs: dict[Any, int] = {}
    for slot, rule in rules.items():
        costs[slot] = getattr(rule, "cost", CHEAP) * (not isinstance(rule, View))
        costs[slot] += sum(costs.get(operand, 1) for operand in operands_of(rule))
        dear = costs[slot] > (_CHEAP_PER_ELEMENT if slot in spread else CHEAP)
        shared = not isinstance(rule, View) and dear and (users[slot] > 1 or slot in spread)
        if slot in results or isinstance(rule, Summed) or shared:
            kept[slot] = None
            costs[slot] = 1
    return kept


def operands_of(rule: Rule) -> list[Any]:
    """Return the tensors that a rule reads, each once."""
    operands: list[Any] = []

    def look(tree: Any) -> None:
        if isinstance(tree, Slot | Tensor):
            operands.append(tree)
        elif isinstance(tree, list | tuple):
            for part in tree:
                look(part)

    for value in vars(rule).values():
        look(value)
    return list({id(operand) if isinstance(operand, Tensor) else operand: operand for operand in operands}.values())
