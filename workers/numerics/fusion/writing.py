"""The text of a kernel while it is written: its scopes, and the elements that each has computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from workers.numerics.codegen.values import TYPES, CannotGenerate, Kind, contiguous_strides, spell
from workers.numerics.fusion.cuts import Cut, Place
from workers.numerics.simplifying import Slot


class Scope:
    """A block of statements; it knows what an outer scope has computed."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.lines: list[str] = []
        self._parent = parent
        self._known: dict[Hashable, str] = {}

    def find(self, key: Hashable) -> str | None:
        """Return the variable that holds the value of a key, None if there is none."""
        return self._known.get(key) or (self._parent.find(key) if self._parent else None)

    def know(self, key: Hashable, name: str) -> str:
        """Note the variable of a key for later statements, and return it."""
        self._known[key] = name
        return name

    def say(self, line: str) -> None:
        self.lines.append(line)

    def put(self, head: str, inner: Scope) -> None:
        self.lines += [f"{head} {{", *(f"    {line}" for line in inner.lines), "}"]


class Rule(Protocol):
    """The way an operation computes an element from its operands."""

    def write(self, writer: Writer, scope: Scope, place: Place) -> str:
        """Write statements that compute an element; return its expression."""
        ...


class Writer:
    """Writes elements of a fusion's tensors: loads the stored ones, computes all others."""

    def __init__(
        self,
        cut: Cut,
        rules: Mapping[Slot, Rule],
        kinds: Mapping[Any, Kind],
        *,
        load: Callable[[Any, str], str],
        stored: Callable[[Slot, Place], bool] = lambda slot, place: True,
    ) -> None:
        """Make a writer whose `load` gives the expression of a tensor's element at an offset.

        `stored` returns True if an element is loaded, not computed; it may raise CannotGenerate.
        """
        self.cut, self._rules, self._kinds = cut, rules, kinds
        self._load, self._stored = load, stored
        self._names = 0

    def kind(self, operand: Slot | Tensor) -> Kind:
        return Kind.of(operand) if isinstance(operand, Tensor) else self._kinds[operand]

    def name(self, letter: str) -> str:
        self._names += 1
        return f"{letter}{self._names}"

    def element(self, scope: Scope, operand: Any, place: Place, dtype: torch.dtype) -> str:
        """Return an operand's element, or a number's value, in this type."""
        if not isinstance(operand, Slot | Tensor):
            return spell(operand, dtype)
        kind = self.kind(operand)
        # A number in a tensor of the meta device has no value: an estimate loads it.
        if isinstance(operand, Tensor) and not kind.shape and not operand.is_meta:
            return spell(operand.item(), dtype)
        expression = self.value(scope, operand, self.broadcast(scope, place, kind.shape))
        return expression if kind.dtype == dtype else f"{TYPES[dtype]}({expression})"

    def value(self, scope: Scope, operand: Slot | Tensor, place: Place) -> str:
        """Return the variable that holds a tensor's element at a place of its shape."""
        key = (id(operand) if isinstance(operand, Tensor) else operand, place.key)
        if known := scope.find(key):
            return known
        kind = self.kind(operand)
        if kind.dtype not in TYPES:
            raise CannotGenerate(str(kind.dtype))
        rule = self._rules.get(operand) if isinstance(operand, Slot) else None
        if rule and isinstance(operand, Slot) and not self._stored(operand, place):
            expression = rule.write(self, scope, place)
        else:
            expression = self._load(operand, self.offset(scope, kind, place))
        return scope.know(key, self.hold(scope, expression, kind.dtype))

    def hold(self, scope: Scope, expression: str, dtype: torch.dtype) -> str:
        """Return a variable with the expression's value."""
        if expression.isidentifier():
            return expression
        name = self.name("v")
        scope.say(f"const {TYPES[dtype]} {name} = {TYPES[dtype]}({expression});")
        return name

    def offset(self, scope: Scope, kind: Kind, place: Place) -> str:
        """Return the offset in memory of an element of a tensor of this kind."""
        if kind.strides == contiguous_strides(kind.shape):
            return self.flat(scope, place)
        axes = self.axes(scope, place)
        terms = [
            axis if stride == 1 else f"{axis} * {stride}"
            for axis, stride, size in zip(axes, kind.strides, kind.shape, strict=True)
            if stride and size > 1 and axis != "0"
        ]
        return " + ".join(terms) or "0"

    # -- places ------------------------------------------------------------------------------------

    def axes(self, scope: Scope, place: Place) -> tuple[str, ...]:
        if place.axes is not None:
            return place.axes
        assert place.flat is not None
        key = ("axes", place.key)
        axes: list[str] = []
        for axis, size in enumerate(place.shape):
            inner = math.prod(place.shape[axis + 1 :])
            known = scope.find((key, axis))
            if known is None:
                expression = place.flat if inner == 1 else f"{place.flat} / {inner}"
                # The first axis needs no remainder; the count of lanes must not be in the text.
                expression = expression if axis == 0 else f"({expression}) % {size}"
                known = "0" if size == 1 else self.hold_index(scope, expression)
                scope.know((key, axis), known)
            axes.append(known)
        return tuple(axes)

    def flat(self, scope: Scope, place: Place) -> str:
        """Return the number of a place in the order of the axes."""
        if place.flat is not None:
            return place.flat
        assert place.axes is not None
        steps = contiguous_strides(place.shape)
        terms = [
            axis if step == 1 else f"{axis} * {step}"
            for axis, step, size in zip(place.axes, steps, place.shape, strict=True)
            if size > 1 and axis != "0"
        ]
        key = ("flat", place.key)
        return scope.find(key) or scope.know(key, self.hold_index(scope, " + ".join(terms) or "0"))

    def hold_index(self, scope: Scope, expression: str) -> str:
        if expression.isidentifier() or expression == "0":
            return expression
        name = self.name("i")
        scope.say(f"const int {name} = {expression};")
        return name

    def move(self, place: Place, shape: tuple[int, ...], axes: tuple[str, ...], touched: set[int]) -> Place:
        """Return a place of these axes in another tensor; `touched`: axes that differ."""
        aligned = place.aligned and self.cut.keeps(place.shape, shape, touched)
        return Place(shape, axes, None, aligned)

    def reshape(self, scope: Scope, place: Place, shape: tuple[int, ...]) -> Place:
        """Return the place of the same element in a tensor of another shape and the same order."""
        if place.shape == shape:
            return place
        aligned = place.aligned and None not in (self.cut.depth(place.shape), self.cut.depth(shape))
        return Place(shape, None, self.flat(scope, place), aligned)

    def broadcast(self, scope: Scope, place: Place, shape: tuple[int, ...]) -> Place:
        """Return the place of the operand's element that belongs to an element of the result."""
        if place.shape == shape:
            return place
        if math.prod(place.shape) == math.prod(shape):
            return self.reshape(scope, place, shape)
        behind = len(place.shape) - len(shape)
        axes = self.axes(scope, place)[behind:]
        indices = tuple("0" if size == 1 else axis for axis, size in zip(axes, shape, strict=True))
        touched = {axis for axis, size in enumerate(shape) if size != place.shape[axis + behind]}
        return self.move(place, shape, indices, touched if not behind else set(range(len(shape))))
