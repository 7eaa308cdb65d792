"""The simplification of recordings: the same numbers from fewer operations at each replay.

Operations that no result needs are left out, those on constants are computed once, and repeated
ones are shared; bits stay. Tensors that are written into, or returned, are neither shared nor kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

LARGEST_KEPT = 1 << 14
"""The most entries of a kept tensor: some hundred recordings are remembered."""

_ATEN: Any = torch.ops.aten
_SHARING = (
    *(_ATEN._unsafe_view.default, _ATEN.unsafe_chunk.default, _ATEN.unsafe_split.Tensor),
    *(_ATEN.unsafe_split_with_sizes.default, _ATEN.lift.default),
)
"""Operations that return the memory of an argument, though their schemas do not say so."""


@dataclass(frozen=True)
class Slot:
    """Stands for a tensor that was given to the function or made by it."""

    number: int


class Operation(NamedTuple):
    """A call of a tensor operation, with slots in place of tensors other than constants."""

    function: Callable[..., Any]
    arguments: list[Any]
    """The positional arguments, and the keywords."""
    results: list[Any]


def replace(kind: type, new: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function as `tree_map_only` does; faster for an operation's many simple arguments."""
    if isinstance(tree, kind):
        return new(tree)
    if isinstance(tree, (list, tuple)):
        return [replace(kind, new, leaf) for leaf in tree]
    if isinstance(tree, dict):
        return {name: replace(kind, new, leaf) for name, leaf in tree.items()}
    return tree


def slots_in(tree: Any) -> set[Slot]:
    """Return all slots in a tree."""
    return {leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Slot)}


def simplify(operations: Sequence[Operation], results: Sequence[Any]) -> list[Operation]:
    """Return fewer operations that give the slots among `results` the same numbers."""
    apart = find_written(operations, slots_in(results))  # callers may write into results
    known: dict[Slot, Any] = {}
    """Slot -> its replacement: a constant, or the result of an earlier operation."""
    done: dict[Hashable, list[Any]] = {}
    """Key of an operation that was computed -> its results."""
    left: list[Operation] = []
    for function, own_arguments, own_results in operations:
        arguments = replace(Slot, lambda slot: known.get(slot, slot), own_arguments)
        operation = Operation(function, arguments, own_results)
        tags = getattr(function, "tags", None)
        is_apart = not apart.isdisjoint(names_in((own_arguments, own_results)))
        if is_apart or tags is None or torch.Tag.nondeterministic_seeded in tags:
            left.append(operation)
            continue
        key = function, _key_of(arguments)
        if key not in done:
            done[key] = _compute(operation) or own_results
        if done[key] is own_results:
            left.append(operation)
        known.update(zip(own_results, done[key], strict=True))
    return _needed(left, slots_in(results))


def join_gradients(operations: Sequence[Operation], results: Sequence[Any]) -> list[Operation]:
    """Return the operations with one join in place of each sum of gradients of a tensor's parts.

    The gradient of `q, k, v = x.unbind(1)` is a sum of three tensors of x's size, each zero but for
    one part: five passes over memory. Numbers stay, but a negative zero stays negative.
    """
    written = find_written(operations)
    pieces: dict[Slot, tuple[_Whole, list[tuple[int, int, Slot]]]] = {}
    left: list[Operation] = []
    for operation in operations:
        is_written = bool(slots_in((operation.arguments, operation.results)) & written)
        if not is_written and (division := _pieces_of(operation, pieces)):
            whole, parts = pieces[operation.results[0]] = division
            parts = sorted(parts, key=lambda part: part[0])
            ends = [0, *(end for _, end, _ in parts)]
            touch = all(start == end for (start, _, _), end in zip(parts, ends, strict=False))
            if len(parts) > 1 and touch and ends[-1] == whole.size:
                arguments = [[[slot for *_, slot in parts], whole.axis], {}]
                operation = Operation(whole.join, arguments, operation.results)
        left.append(operation)
    return _needed(left, slots_in(results))


class _Whole(NamedTuple):
    """The tensor that gradients of parts are put into."""

    join: Callable[..., Any]
    """`stack` for selected parts, `cat` for slices."""
    sizes: tuple[int, ...]
    axis: int

    @property
    def size(self) -> int:
        return self.sizes[self.axis]


def _pieces_of(
    operation: Operation, known: dict[Slot, tuple[_Whole, list[tuple[int, int, Slot]]]]
) -> tuple[_Whole, list[tuple[int, int, Slot]]] | None:
    """Return the parts [start, end) of an operation's result along an axis, None if it has none."""
    function, (positional, keywords), _ = operation
    if function is _ATEN.select_backward.default:
        slot, sizes, axis, index = positional
        whole = _Whole(_ATEN.stack.default, tuple(sizes), axis % len(sizes))
        return whole, [(index % whole.size, index % whole.size + 1, slot)]
    if function is _ATEN.slice_backward.default and positional[5] == 1:
        slot, sizes, axis, start, end, _ = positional
        whole = _Whole(_ATEN.cat.default, tuple(sizes), axis % len(sizes))
        start, end, _ = slice(start, end).indices(whole.size)
        return (whole, [(start, end, slot)]) if start < end else None
    if function is not _ATEN.add.Tensor or keywords or len(positional) != 2:
        return None
    left, right = (known.get(term) if isinstance(term, Slot) else None for term in positional)
    return (left[0], [*left[1], *right[1]]) if left and right and left[0] == right[0] else None


def find_written(operations: Sequence[Operation], others: Iterable[Slot] = ()) -> set[Any]:
    """Return slots and ids of constants whose memory, views included, is written or in `others`."""
    shared: dict[Any, Any] = {}

    def root(name: Any) -> Any:
        while name in shared:
            name = shared[name]
        return name

    written: set[Any] = set(others)
    for operation in operations:
        schema: Any = getattr(operation.function, "_schema", None)
        has_alias = schema is None or schema.is_mutable or any(result.alias_info for result in schema.returns)
        if not has_alias and operation.function not in _SHARING:
            continue
        names = [*names_in(operation.arguments), *slots_in(operation.results)]
        if schema is None or schema.is_mutable:
            written.update(names)
        for name in names[1:]:
            if root(name) != root(names[0]):
                shared[root(name)] = root(names[0])
    roots = {root(name) for name in written}
    every = slots_in([(operation.arguments, operation.results) for operation in operations])
    return written | {name for name in {*every, *shared, *shared.values()} if root(name) in roots}


def _compute(operation: Operation) -> list[Any] | None:
    """Return the small results of an operation on constants, else None."""
    if slots_in(operation.arguments):
        return None
    positional, keywords = operation.arguments
    results = pytree.tree_leaves(operation.function(*positional, **keywords))
    return results if all(result is None or result.numel() <= LARGEST_KEPT for result in results) else None


def _needed(operations: Sequence[Operation], needed: set[Slot]) -> list[Operation]:
    """Return the operations whose results are needed, and those that write."""
    kept: list[Operation] = []
    needed = set(needed)
    for operation in reversed(operations):
        schema: Any = getattr(operation.function, "_schema", None)
        is_used = not needed.isdisjoint(slots_in(operation.results))
        if schema is None or schema.is_mutable or is_used:
            kept.append(operation)
            needed |= slots_in(operation.arguments)
    return kept[::-1]


def names_in(tree: Any) -> list[Any]:
    """Return the slots of a tree and the ids of its constants."""
    leaves = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, (Slot, Tensor))]
    return [id(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _key_of(tree: Any) -> Hashable:
    """Return a key, equal for equal values of equal types; a tensor equals itself alone."""
    if isinstance(tree, Tensor):
        return "tensor", id(tree)
    if isinstance(tree, (list, tuple)):
        return tuple(map(_key_of, tree))
    if isinstance(tree, dict):
        return tuple((name, _key_of(leaf)) for name, leaf in sorted(tree.items()))
    return type(tree), repr(tree) if isinstance(tree, float) else tree
