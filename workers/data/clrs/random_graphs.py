"""The random graphs of CLRS-Text as matrices of weights, 0 where two nodes are not linked.

Four bits, uniform whatever the rest is, decide the split: the loops of the first four nodes, or,
without cycles, the links of four pairs. Legend: L lanes, N sequences, n nodes of the largest graph,
`sizes` [L, N, 1], `...` is L, N; `planes` [..., 3, n, n] are fractions of 2^32, the first for
links, the others for weights or an order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from workers.data.clrs.algorithms import THOUSAND
from workers.data.splits import Split, below, draw_in_split

PLANES = 3
BITS = 4
"""Nodes whose loops decide the split, and so the smallest size."""

FIRST_PAIRS = ((1, 0), (2, 0), (2, 1), (3, 0))
FIRST_LOOPS = tuple((node, node) for node in range(BITS))


class Links(NamedTuple):
    """Links, links that may be, and weights of linked and unlinked pairs, [..., n, n]."""

    there: Tensor
    allowed: Tensor
    weights: Tensor


@dataclass(frozen=True, kw_only=True)
class RandomGraph(ABC):
    """A distribution of graphs; `weighted` weights are in thousandths, others 1."""

    weighted: bool = False
    bits = FIRST_LOOPS

    @abstractmethod
    def links(self, planes: Tensor, sizes: Tensor) -> Links:
        """Return graphs in which the links of the pairs `bits` are as they come."""

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        """Draw matrices [..., n, n] of a split, from `fractions` [..., 1 + 3 n^2]."""
        side = int((fractions.shape[-1] // PLANES) ** 0.5)
        links = self.links(fractions[..., 1:].unflatten(-1, (PLANES, side, side)), sizes)
        index = torch.arange(side, device=sizes.device)
        inside = ((index < sizes)[..., None, :] & (index < sizes)[..., :, None]).long()
        bit, shells = _bits(side, self.bits, sizes.device), _shells(side, sizes.device)
        rest = (inside * links.there * links.allowed * links.weights).masked_fill(bit > 0, 0)
        key = torch.cat([sizes, rest.flatten(-2)[..., shells]], -1)
        number = draw_in_split(fractions[..., 0], key, 1 << BITS, split)
        chosen = (number[..., None, None] & bit > 0) & links.allowed
        return torch.where(chosen, links.weights, rest)


@dataclass(frozen=True, kw_only=True)
class Undirected(RandomGraph):
    """Two nodes are linked with the square of `chance`, a node with itself with `chance`.

    Weights are the square root of the product of two uniform numbers, plus 0.001. The loops of the
    first four nodes are there half of the time, whatever `chance` is.
    """

    chance: float = 0.5

    def links(self, planes: Tensor, sizes: Tensor) -> Links:
        index = torch.arange(planes.shape[-1], device=planes.device)
        loop = index == index[:, None]
        likely = torch.where(loop, self.chance, self.chance**2)
        first, second = planes[..., 1, :, :], planes[..., 2, :, :]
        product = first.double() * torch.where(loop, first, second).double() / 2.0**64
        weights = (THOUSAND * (product + 1e-3).sqrt()).long() if self.weighted else torch.ones_like(first)
        there = _mirror(planes[..., 0, :, :] < (likely * 2**32).long())
        return Links(there, torch.ones_like(there), _mirror(weights))


@dataclass(frozen=True, kw_only=True)
class Directed(RandomGraph):
    """Half of all ordered pairs of nodes are linked, and half of the nodes with themselves."""

    def links(self, planes: Tensor, sizes: Tensor) -> Links:
        there = planes[..., 0, :, :] < 1 << 31
        return Links(there, torch.ones_like(there), torch.ones_like(planes[..., 0, :, :]))


@dataclass(frozen=True, kw_only=True)
class Acyclic(RandomGraph):
    """Half of all pairs are linked, in a random order; weights are uniform on 0.001 .. 0.999."""

    bits = FIRST_PAIRS

    def links(self, planes: Tensor, sizes: Tensor) -> Links:
        order = _order(planes)
        later = order[..., :, None] < order[..., None, :]
        weights = 1 + below(planes[..., 1, :, :], THOUSAND - 1 if self.weighted else 1)
        return Links(_mirror(planes[..., 0, :, :] < 1 << 31), later, weights)


@dataclass(frozen=True, kw_only=True)
class Communities(RandomGraph):
    """Four parts of nodes in random order, equally large but for the last; links are decimals.

    Half of all ordered pairs within a part are linked, every hundredth from a part to a later one.
    """

    def links(self, planes: Tensor, sizes: Tensor) -> Links:
        order = _order(planes)
        inside = torch.arange(order.shape[-1], device=order.device) < sizes
        rank = ((order[..., None, :] < order[..., :, None]) & inside[..., None, :]).sum(-1)
        part = (rank // (sizes // BITS)).clamp(max=BITS - 1)
        same, later = part[..., :, None] == part[..., None, :], part[..., :, None] < part[..., None, :]
        there = planes[..., 0, :, :] < torch.where(same, 1 << 31, (1 << 32) // 100)
        return Links(there, same | later, torch.full_like(planes[..., 0, :, :], THOUSAND))


def _mirror(matrix: Tensor) -> Tensor:
    """Return the matrix [..., n, n] with its lower triangle in the upper one, too."""
    return matrix.tril() + matrix.tril(-1).mT


def _order(planes: Tensor) -> Tensor:
    """Return random numbers [..., n], no two of them the same."""
    index = torch.arange(planes.shape[-1], device=planes.device)
    return planes[..., 2, :, :].diagonal(dim1=-2, dim2=-1) * len(index) + index


@cache
def _bits(side: int, pairs: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """Return the bit of each of the pairs, in both directions, else 0, [n, n]."""
    matrix = torch.zeros(side, side, dtype=torch.int64)
    for bit, (row, column) in enumerate(pairs):
        matrix[row, column] = matrix[column, row] = 1 << bit
    return matrix.to(device)


@cache
def _shells(side: int, device: torch.device) -> Tensor:
    """Return the order of a matrix' entries [n^2] in which those of a smaller one come first."""
    index = torch.arange(side)
    return torch.maximum(index[:, None], index).flatten().argsort(stable=True).to(device)
