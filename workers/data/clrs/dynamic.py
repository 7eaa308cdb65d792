"""Dynamic programming of CLRS-Text: subsequences, chains, search trees. Legend: `algorithms`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.clrs.algorithms import THOUSAND, Algorithm, Keyed, Parts, list_of, matrix_text, move_first, within
from workers.data.clrs.writing import places, thousandths, write_fields, write_matrix
from workers.data.splits import Split, below, draw_in_split, split_pair

LETTERS = 4


@dataclass(frozen=True, kw_only=True)
class LongestCommonSubsequence(Algorithm):
    """The table of directions from which the longest common subsequence of two strings is read.

    The first half of the letters (and the middle one), uniform on 0 .. 3, are the first string. A
    cell is 0 where its letters are equal, else 1 or 2: the first or the second string can do
    without its last letter, the first if both can. The matrix is square, -1 outside the first
    string's rows and the second's columns. The first two letters and the others decide the split.
    """

    asked: str = "b"

    def numbers(self, size: int) -> int:
        return size

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        letters = within(below(fractions, LETTERS), sizes, 0)
        rest = torch.cat([sizes, letters[..., 2:]], -1)
        pair = draw_in_split(fractions[..., 0], rest, LETTERS**2, split)
        return torch.cat([split_pair(pair, LETTERS), letters[..., 2:]], -1)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        first = sizes - sizes // 2  # [..., 1] length of the first string
        given = write_strings(example, first, sizes)
        return Parts(given=given, answer=write_matrix(places(_directions(example, first)), sizes))

    def longest(self, size: int) -> Parts[str]:
        first, second = size - size // 2, size // 2
        rows = [["-1"] * first + ["0"] * second] * first + [["-1"] * size] * second
        return Parts(given=longest_strings(size), answer=matrix_text(rows))


@dataclass(frozen=True, kw_only=True)
class MatrixChainOrder(Keyed):
    """The best splits of all parts of a chain of matrices, whose sides are the keys.

    A split is best if it needs the fewest multiplications. Entry i, j is the last matrix of the
    left part of matrices i .. j, of equally good ones the first, and 0 elsewhere.
    """

    asked: str = "s"

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        def cost(length: int, left: int) -> Tensor:
            count = example.shape[-1] - 1 - length
            first, middle, last = (example[..., at : at + count] for at in (0, left + 1, length + 1))
            return first * middle * last

        single = torch.zeros_like(example[..., 1:])
        splits = torch.nn.functional.pad(_best_splits(single, cost, first=1), (1, 0, 1, 0))
        given = write_fields({"p": thousandths(example)}, sizes)
        return Parts(given=given, answer=write_matrix(places(splits), sizes))

    def longest(self, size: int) -> Parts[str]:
        return Parts(given=f"p: {list_of('0.111', size)}", answer=_longest_splits(size, first=1))


@dataclass(frozen=True, kw_only=True)
class OptimalSearchTree(Algorithm):
    """The root of the best search tree over each range of keys, of equals the first (section 15.5).

    A search ends at key i with probability p_i, and beside keys with q_i: 2 n + 1 uniform numbers
    over their sum, cut to three decimals; p ends with a 0. q_0 in its block of twenty thousandths
    and the others decide the split. Entry i, j is the root over keys i .. j - 1.
    """

    asked: str = "root"

    def numbers(self, size: int) -> int:
        return 2 * size + 2

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        numbers = within(fractions[..., 1:], 2 * sizes + 1, 0)  # q_0, p_0, q_1, p_1, ... q_n
        shares = THOUSAND * numbers // numbers.sum(-1, keepdim=True)
        return move_first(shares, fractions[..., 0], sizes, split)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        between, keys = example[..., ::2], example[..., 1::2]  # [..., n + 1], [..., n]
        upto = torch.nn.functional.pad(example.cumsum(-1), (1, 0))

        def weight(length: int, left: int) -> Tensor:
            ends = upto[..., 2 * length + 1 :: 2]
            return ends - upto[..., ::2][..., : ends.shape[-1]]

        fields = {"p": thousandths(torch.nn.functional.pad(keys, (0, 1))), "q": thousandths(between)}
        given, roots = write_fields(fields, sizes + 1), _best_splits(between, weight, first=0)
        return Parts(given=given, answer=write_matrix(places(roots), sizes + 1))

    def longest(self, size: int) -> Parts[str]:
        keys = f"[{' '.join(['0.111'] * size)} 0.0]"
        return Parts(given=f"p: {keys}, q: {list_of('0.111', size + 1)}", answer=_longest_splits(size + 1, first=0))


def write_strings(letters: Tensor, first: Tensor, sizes: Tensor) -> Tensor:
    """Write each letter's string [..., n], 0 for the first `first`, else 1, and the letters."""
    second = (torch.arange(letters.shape[-1], device=letters.device) >= first).long()
    return write_fields({"string": second[..., None], "key": letters[..., None]}, sizes)


def longest_strings(size: int) -> str:
    """Return a text as long as the longest that `write_strings` writes for `size` letters."""
    return f"string: {list_of('0', size)}, key: {list_of('0', size)}"


def _directions(letters: Tensor, first: Tensor) -> Tensor:
    """Return the table (section 15.4) within the matrix of all letters, [..., n, n]."""
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
    return torch.where(filled, table, -1)


def _best_splits(single: Tensor, cost: Callable[[int, int], Tensor], first: int) -> Tensor:
    """Return the last item of the left part of each range i .. j, items from `first`, [..., n, n].

    A range costs what its two parts do and `cost(j - i, k - i)`, for all i at once; an item alone
    `single` [..., n]. Of equal splits the first; 0 in the diagonal and where there is no range.
    """
    best, table = [single], torch.zeros_like(torch.diag_embed(single))
    for length in range(1, single.shape[-1]):
        count = single.shape[-1] - length
        costs = list[Tensor]()
        for left in range(length):
            right = best[length - 1 - left][..., left + 1 : left + 1 + count]
            costs.append(best[left][..., :count] + right + cost(length, left))
        least, split = torch.stack(costs, -1).min(-1)
        best.append(least)
        split = split + torch.arange(first, first + count, device=split.device)
        table = table + torch.diag_embed(split, offset=length)
    return table


def _longest_splits(size: int, first: int) -> str:
    """Return a matrix in which each range from `first` is split before its last item."""
    return matrix_text([str(max(j - 1, 0)) if first <= i < j else "0" for j in range(size)] for i in range(size))
