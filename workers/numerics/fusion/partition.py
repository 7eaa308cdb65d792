"""The partition of a recording into operations that become one kernel.

Operations without a generated kernel, large products above all, divide the others into levels: an
operation is at least one level above the last of these that it needs. A level's operations are one
fusion, wherever they lie. Each fusion computes cheap operations on arguments for itself.

Legend: L lanes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workers.numerics.codegen.values import CannotGenerate, Kind
from workers.numerics.fusion.cuts import Cut, Place
from workers.numerics.fusion.kernels import CHEAP, operands_of
from workers.numerics.fusion.operations import rule_of
from workers.numerics.fusion.rules import Product, Summed, View
from workers.numerics.fusion.writing import Rule, Scope, Writer
from workers.numerics.simplifying import Operation, Slot, find_written, names_in, slots_in

MOST = 160
"""The most operations of a fusion: a compiler takes long for larger kernels."""


@dataclass
class Part:
    """Operations that become one kernel."""

    operations: list[Operation]
    """The operations in their order, with the views and the cheap operations that they need."""
    rules: dict[Slot, Rule]
    results: list[Slot]
    """The slots that other parts need."""


@dataclass
class _Known:
    """The levels at which a tensor exists."""

    level: int
    """The level after whose fusion an operation outside of fusions may read it."""
    fused_level: int
    """The level in whose fusion a fused operation may read it."""
    inside: bool = False
    """True if the fusion of `fused_level` makes it."""
    cost: int | None = 0
    """The cost of computing it again from arguments alone; None if that is not done."""


@dataclass
class Partition:
    """The division of a recording's operations among kernels."""

    operations: Sequence[Operation]
    kinds: Mapping[Slot, Kind]
    lanes: int
    known: dict[Slot, _Known] = field(default_factory=dict)
    rules: dict[Slot, Rule] = field(default_factory=dict)
    levels: list[int] = field(default_factory=list)
    """The level of each operation; -1 if it can be fused."""
    makers: dict[Slot, int] = field(default_factory=dict)
    """Slot -> the number of the operation that makes it."""
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Operation -> level and number of its fusion; a cheap one has it only if it is stored."""

    def part(self, results: Sequence[Any]) -> list[Operation | Part]:
        """Return what to run, in order, for the slots among `results`."""
        written = find_written(self.operations)
        last_written = 0
        for number, operation in enumerate(self.operations):
            self.makers |= dict.fromkeys(slots_in(operation.results), number)
            is_apart = not written.isdisjoint(names_in((operation.arguments, operation.results)))
            if is_apart or not self._try_fusing(operation):
                needed = [self._known(slot).level for slot in slots_in(operation.arguments)]
                level = max([0, *needed])
                if is_apart:  # writes, and reads of what is written, stay in order
                    level = last_written = max(level, last_written)
                for slot in slots_in(operation.results):
                    self.known[slot] = _Known(level, level + 1, cost=None)
                self.levels.append(level)
            else:
                self.levels.append(-1)
        needed, views = self._needed_outside(slots_in(results))
        self._assign_owners(needed)
        arranged: dict[tuple[int, int, int], Operation | Part] = {}
        for (level, number), part in self._parts(needed).items():
            arranged[level, 0, number] = part
        for number, operation in enumerate(self.operations):
            if self.levels[number] >= 0:
                arranged[self.levels[number], 1, number] = operation
            elif number in views:
                arranged[self._level_of_view(operation), 1, number] = operation
        return [arranged[key] for key in sorted(arranged)]

    def _known(self, slot: Slot) -> _Known:
        return self.known.setdefault(slot, _Known(0, 0))

    # -- levels ------------------------------------------------------------------------------------

    def _try_fusing(self, operation: Operation) -> bool:
        """Note an operation's rules and levels; return False if it cannot be fused."""
        try:
            results = enumerate(operation.results)
            rules = {slot: rule_of(operation, number, self.kinds) for number, slot in results}
            edges = {slot: self._edges(slot, rule) for slot, rule in rules.items()}
        except CannotGenerate:
            return False
        if len(rules) != len(operation.results) or not rules:
            return False
        self.rules |= rules
        for slot, rule in rules.items():
            self.known[slot] = self._level(rule, edges[slot])
        return True

    def _edges(self, slot: Slot, rule: Rule) -> dict[Slot, bool]:
        """Return whether a block reads only its own part, by operand; raises CannotGenerate."""
        kind, cut = self.kinds[slot], Cut(self.lanes)
        if not kind.numel or kind.numel >= 1 << 31:
            raise CannotGenerate("too many numbers, or none")
        if not isinstance(rule, View) and cut.depth(kind.shape) is None:
            raise CannotGenerate("it is not made of lanes")
        if isinstance(rule, Product) and kind.shape[0] == self.lanes:
            # A sum over the lane behind a product has that effect, too; it is not looked for.
            raise CannotGenerate("one product a lane: fused, it would leave all that follows to one block")
        edges: dict[Slot, bool] = {}

        def look(other: Slot, place: Place) -> bool:
            edges[other] = edges.get(other, True) and place.aligned
            return True

        operands: dict[Slot, Rule] = {operand: rule for operand in operands_of(rule) if isinstance(operand, Slot)}
        writer = Writer(cut, operands, self.kinds, load=lambda operand, offset: "0", stored=look)
        rule.write(writer, Scope(), Place(kind.shape, None, "f", aligned=True))
        return edges

    def _level(self, rule: Rule, edges: Mapping[Slot, bool]) -> _Known:
        if isinstance(rule, View):
            if not edges:  # of a constant
                return _Known(0, 0)
            [(source, aligned)] = edges.items()
            base = self._known(source)
            beyond = base.inside and not aligned and base.cost is None
            return _Known(base.level, base.fused_level + beyond, base.inside and not beyond, base.cost)
        needed = [0]
        cost: int | None = getattr(rule, "cost", CHEAP)
        for slot, aligned in edges.items():
            known = self._known(slot)
            needed.append(known.fused_level + (known.inside and not aligned and known.cost is None))
            cost = cost + known.cost if cost is not None and known.cost is not None else None
        if isinstance(rule, Summed) or (cost is not None and cost > CHEAP):
            cost = None
        return _Known(max(needed), max(needed), inside=True, cost=cost)

    # -- fusions -----------------------------------------------------------------------------------

    def _needed_outside(self, results: set[Slot]) -> tuple[dict[Slot, int], set[int]]:
        """Return the slots needed outside of fusions, by level, and the views to make for them."""
        last = max([0, *self.levels, *(known.level for known in self.known.values())])
        needed = dict.fromkeys(results, last)
        views: set[int] = set()
        for number in reversed(range(len(self.operations))):
            operation, level = self.operations[number], self.levels[number]
            if level >= 0:
                for slot in slots_in(operation.arguments):
                    needed[slot] = min(needed.get(slot, level), level)
            elif isinstance(self.rules[operation.results[0]], View):
                by = [needed[slot] for slot in operation.results if slot in needed]
                if by:
                    views.add(number)
                    for slot in slots_in(operation.arguments):
                        needed[slot] = min([needed.get(slot, by[0]), *by])
        return needed, views

    def _assign_owners(self, needed: Mapping[Slot, int]) -> None:
        counts: dict[int, int] = {}
        for number, operation in enumerate(self.operations):
            slot = operation.results[0]
            if self.levels[number] >= 0 or isinstance(self.rules[slot], View):
                continue
            known = self.known[slot]
            if known.cost is None:
                level = known.fused_level
            elif slot in needed:
                level = known.level = max(known.fused_level, needed[slot])
            else:
                continue
            counts[level] = counts.get(level, 0) + 1
            self.owners[number] = level, counts[level] // MOST

    def _parts(self, needed: Mapping[Slot, int]) -> dict[tuple[int, int], Part]:
        numbers: dict[tuple[int, int], set[int]] = {}
        for number, owner in self.owners.items():
            numbers.setdefault(owner, set()).add(number)
        results: set[Slot] = {slot for slot in needed if self.makers.get(slot) in self.owners}
        for owner, members in numbers.items():
            reached = self._reach(members, owner)
            for slot in {slot for number in reached for slot in slots_in(self.operations[number].arguments)}:
                maker = self.makers.get(slot)
                if maker in self.owners and maker not in reached:
                    results.add(slot)
            numbers[owner] = reached
        parts: dict[tuple[int, int], Part] = {}
        for owner, reached in numbers.items():
            chosen = [self.operations[number] for number in sorted(reached)]
            rules = {slot: self.rules[slot] for operation in chosen for slot in operation.results}
            made = [slot for slot in rules if self.owners.get(self.makers[slot]) == owner]
            parts[owner] = Part(chosen, rules, [slot for slot in made if slot in results])
        return parts

    def _reach(self, members: set[int], owner: tuple[int, int]) -> set[int]:
        """Return a fusion's operations, with the views and the cheap ones that it needs."""
        reached, left = set(members), list(members)
        while left:
            for slot in slots_in(self.operations[left.pop()].arguments):
                maker = self.makers.get(slot)
                if maker is None or maker in reached or slot not in self.rules:
                    continue
                is_own = self.owners.get(maker, owner) == owner
                is_again = isinstance(self.rules[slot], View) or self.known[slot].cost is not None
                if is_own or is_again:
                    reached.add(maker)
                    left.append(maker)
        return reached

    def _level_of_view(self, operation: Operation) -> int:
        """Return the level after which the tensor that an operation views exists."""
        sources = slots_in(operation.arguments)
        maker = self.makers.get(next(iter(sources))) if sources else None
        if maker is None:
            return 0
        if self.levels[maker] >= 0:
            return self.levels[maker]
        if maker in self.owners:
            return self.owners[maker][0]
        return self._level_of_view(self.operations[maker])
