"""The algorithms of CLRS-Text over tables: graphs, and pairs of strings.

Legend: as in `algorithms`; e = n (n + 1) / 2 entries of a lower triangle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.clrs.algorithms import Algorithm, Parts, list_of, within
from workers.data.clrs.writing import ALPHABET, BLANK, places, write, write_list
from workers.data.splits import Split, below, draw_in_split
from workers.numerics.tensors import constant

LOOPS = 4
"""Nodes whose loops decide the split, and so the smallest size."""

LETTERS = 4


@dataclass(frozen=True, kw_only=True)
class BreadthFirst(Algorithm):
    """Each node's predecessor on the way from the source, of several the first; its own if it is not reached.

    Two nodes are neighbours with probability 1/4, and every node its own with 1/2, which changes no answer. Whether the
    first four are and the rest decide the split. An example is its source and the lower triangle of the matrix.
    """

    asked: str = "pi"

    def numbers(self, size: int) -> int:
        return 1 + size * (size + 1) // 2

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        source, edge = below(fractions[..., :1], sizes), fractions[..., 1:]
        row, column = _triangle(edge)
        linked = torch.where(row == column, edge < 1 << 31, edge < 1 << 30) & (row < sizes)
        loops = constant(tuple(node * (node + 3) // 2 for node in range(LOOPS)), edge.device)
        rest = linked.long().index_fill(-1, loops, 0)
        number = draw_in_split(edge[..., 0], torch.cat([sizes, source, rest], -1), 1 << LOOPS, split)
        bits = number[..., None] >> torch.arange(LOOPS, device=edge.device) & 1
        return torch.cat([source, rest.index_copy(-1, loops, bits)], -1)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        source, matrix = example[..., :1], _matrix(example[..., 1:])  # [..., n, n]
        rows = write_list(matrix[..., None], sizes[..., None])
        found = places(source).flatten(-2)
        return Parts(
            given=write(["s: ", found, ", A: ", write_list(rows, sizes, ", ")], sizes),
            answer=write_list(places(_predecessors(matrix.bool(), source)), sizes),
        )

    def longest(self, size: int) -> Parts[str]:
        matrix = list_of(list_of("0", size), size, ", ")
        return Parts(given=f"s: {size - 1}, A: {matrix}", answer=list_of(str(size - 1), size))


@dataclass(frozen=True, kw_only=True)
class LongestCommonSubsequence(Algorithm):
    """The table of directions from which the longest common subsequence of two strings is read.

    The first half of the letters (and the middle one), uniform on 0 .. 3, are one string, the others are the second. A
    cell is 0 where its two letters are equal, else 1 or 2: the first or the second string can do without its last
    letter, the first if both can. The answer is a square matrix over all letters, -1 wherever the row is not of the
    first or the column not of the second string. The first two letters and the others decide the split.
    """

    asked: str = "b"

    def numbers(self, size: int) -> int:
        return size

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        letters = within(below(fractions, LETTERS), sizes, 0)
        rest = torch.cat([sizes, letters[..., 2:]], -1)
        pair = draw_in_split(fractions[..., 0], rest, LETTERS**2, split)[..., None]
        return torch.cat([pair // LETTERS, pair % LETTERS, letters[..., 2:]], -1)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        index = torch.arange(example.shape[-1], device=example.device)
        first = sizes - sizes // 2  # [..., 1] length of the first string
        string = write_list((index >= first).long()[..., None], sizes)
        key = write_list(example[..., None], sizes)
        rows = write_list(_directions(example, first), sizes[..., None])
        return Parts(given=write(["string: ", string, ", key: ", key], sizes), answer=write_list(rows, sizes, ", "))

    def longest(self, size: int) -> Parts[str]:
        first, second = size - size // 2, size // 2
        above = "[" + " ".join(["-1"] * first + ["0"] * second) + "]"
        rows = ", ".join([above] * first + [list_of("-1", size)] * second)
        return Parts(given=f"string: {list_of('0', size)}, key: {list_of('0', size)}", answer=f"[{rows}]")


def _triangle(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column [e] of the entries of a lower triangle, row by row: a smaller one's entries come first."""
    size = _side(edges)
    row, column = torch.tril_indices(size, size, device=edges.device)
    return row, column


def _side(edges: Tensor) -> int:
    return int((2 * edges.shape[-1]) ** 0.5)


def _matrix(edges: Tensor) -> Tensor:
    """[..., n, n] the symmetric matrix of a lower triangle [..., n (n + 1) / 2]."""
    index = torch.arange(_side(edges), device=edges.device)
    high, low = torch.maximum(index[:, None], index), torch.minimum(index[:, None], index)
    return edges[..., high * (high + 1) // 2 + low]


def _predecessors(linked: Tensor, source: Tensor) -> Tensor:
    """[..., n] the first neighbour that was reached before a node was; the node itself where there is none."""
    index = torch.arange(linked.shape[-1], device=linked.device)
    reached, found = index == source, index.expand(linked.shape[:-1])
    for _ in range(linked.shape[-1] - 1):
        leads = linked & reached[..., None]  # [..., from, to]
        new = leads.any(-2) & ~reached
        found = torch.where(new, leads.int().argmax(-2), found)
        reached = reached | new
    return found


def _directions(letters: Tensor, first: Tensor) -> Tensor:
    """[..., n, n, 2] the table (section 15.4) within the matrix of all letters, each cell in two columns."""
    size = letters.shape[-1]
    half = size - size // 2
    index = torch.arange(size, device=letters.device)
    second = index >= first
    lengths, rows = torch.zeros_like(letters), list[Tensor]()
    for row in range(half):
        equal = second & (letters == letters[..., row : row + 1])
        both = torch.nn.functional.pad(lengths, (1, -1)) + 1
        longest = torch.where(equal, both, lengths).cummax(-1).values
        left = torch.nn.functional.pad(longest, (1, -1))
        rows.append(torch.where(equal, 0, torch.where(lengths >= left, 1, 2)))
        lengths = longest
    table = torch.nn.functional.pad(torch.stack(rows, -2), (0, 0, 0, size - half))
    filled = second[..., None, :] & (index[:, None] < first[..., None])
    sign = torch.where(filled, BLANK, ALPHABET.index("-"))
    return torch.stack([sign, torch.where(filled, table, 1)], -1)
