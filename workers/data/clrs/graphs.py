"""The text of CLRS-Text's algorithms over graphs. Legend: as in `algorithms`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.data.clrs.algorithms import Algorithm, Parts, list_of, matrix_of, matrix_text
from workers.data.clrs.random_graphs import PLANES, Communities, RandomGraph
from workers.data.clrs.searches import articulation_points, bridges, topological_order
from workers.data.clrs.writing import places, thousandths, write, write_list, write_matrix
from workers.data.splits import Split, below


@dataclass(frozen=True, kw_only=True)
class OverGraph(Algorithm):
    """An algorithm over a random graph: its source, 0 if there is none, and the matrix's rows."""

    graph: RandomGraph
    sourced: bool = False

    @abstractmethod
    def answer(self, weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
        """Return the answer [..., w] about matrices [..., n, n] and sources [..., 1], in words."""

    @abstractmethod
    def longest_answer(self, size: int) -> str:
        """Return a text at least as long as any answer."""

    def numbers(self, size: int) -> int:
        return 2 + PLANES * size**2

    def draw(self, fractions: Tensor, sizes: Tensor, split: Split) -> Tensor:
        source = below(fractions[..., :1], sizes) * self.sourced
        return torch.cat([source, self.graph.draw(fractions[..., 1:], sizes, split).flatten(-2)], -1)

    def parts(self, example: Tensor, sizes: Tensor) -> Parts[Tensor]:
        side = int((example.shape[-1] - 1) ** 0.5)
        source, weights = example[..., :1], example[..., 1:].unflatten(-1, (side, side))
        matrix = write_matrix(thousandths(weights) if self._real else weights[..., None], sizes)
        start = ["s: ", places(source).flatten(-2), ", "] if self.sourced else []
        return Parts(given=write([*start, "A: ", matrix], sizes), answer=self.answer(weights, source, sizes))

    def longest(self, size: int) -> Parts[str]:
        start = f"s: {size - 1}, " if self.sourced else ""
        entry = "0.111" if self.graph.weighted else "0.0" if self._real else "0"
        return Parts(given=f"{start}A: {matrix_of(entry, size)}", answer=self.longest_answer(size))

    @property
    def _real(self) -> bool:
        return self.graph.weighted or isinstance(self.graph, Communities)


@dataclass(frozen=True, kw_only=True)
class NodeForEach(OverGraph):
    """A node for each node, as its predecessor, or itself if it has none."""

    asked: str = "pi"
    find: Callable[[Tensor, Tensor, Tensor], Tensor]

    def answer(self, weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
        return write_list(places(self.find(weights, source, sizes)), sizes)

    def longest_answer(self, size: int) -> str:
        return list_of(str(size - 1), size)


@dataclass(frozen=True, kw_only=True)
class PairPredecessors(OverGraph):
    """Each node's predecessor on the way from each other one."""

    asked: str = "Pi"
    find: Callable[[Tensor], Tensor]

    def answer(self, weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
        return write_matrix(places(self.find(weights)), sizes)

    def longest_answer(self, size: int) -> str:
        return matrix_of(str(size - 1), size)


@dataclass(frozen=True, kw_only=True)
class SpanningForest(OverGraph):
    """The links of the smallest spanning forest."""

    asked: str = "in_mst"
    find: Callable[[Tensor], Tensor]

    def answer(self, weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
        return write_matrix(self.find(weights).long()[..., None], sizes)

    def longest_answer(self, size: int) -> str:
        return matrix_of("0", size)


@dataclass(frozen=True, kw_only=True)
class TopologicalSort(OverGraph):
    """The node that comes after each, the last one's own, and the first node."""

    asked: str = "topo, topo_head"

    def answer(self, weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
        after, first = topological_order(weights > 0, sizes)
        return write([write_list(places(after), sizes), ", ", places(first).flatten(-2)], sizes)

    def longest_answer(self, size: int) -> str:
        return f"{list_of(str(size - 1), size)}, {size - 1}"


@dataclass(frozen=True, kw_only=True)
class ArticulationPoints(OverGraph):
    """The nodes that hold the graph together."""

    asked: str = "is_cut"

    def answer(self, weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
        return write_list(articulation_points(weights > 0, sizes).long()[..., None], sizes)

    def longest_answer(self, size: int) -> str:
        return list_of("0", size)


@dataclass(frozen=True, kw_only=True)
class Bridges(OverGraph):
    """The links that hold the graph together: 1, other links and the diagonal 0, no link -1."""

    asked: str = "is_bridge"

    def answer(self, weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
        index = torch.arange(weights.shape[-1], device=weights.device)
        linked = weights > 0
        marks = bridges(linked, sizes).long() - (~linked & (index != index[:, None])).long()
        return write_matrix(places(marks), sizes)

    def longest_answer(self, size: int) -> str:
        return matrix_text(["0" if row == column else "-1" for column in range(size)] for row in range(size))
