"""Shortest paths and spanning trees (CLRS, chapters 23 to 25), for many graphs at once.

Predecessors are those that CLRS-Text's procedures find, of equally short paths on the first.
Legend: L lanes, N sequences, n nodes of the largest graph, `sizes` and `source` [L, N, 1];
`weights` [L, N, n, n] from row to column, 0 where there is no link.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.data.clrs.searches import depth_first

FAR = 1 << 40


def _lengths(weights: Tensor) -> Tensor:
    return weights.masked_fill(weights == 0, FAR)


def _start(weights: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the nodes' indices [n]; distances and predecessors [..., n] before the first step."""
    index = torch.arange(weights.shape[-1], device=weights.device)
    return index, torch.where(index == source, 0, FAR), index.expand(weights.shape[:-1])


def _row(lengths: Tensor, node: Tensor) -> Tensor:
    """Return the lengths [..., n] of the links of one node [..., 1]."""
    return lengths.gather(-2, node[..., None].expand(*node.shape, lengths.shape[-1]))[..., 0, :]


def bellman_ford(weights: Tensor, source: Tensor) -> Tensor:
    """Return predecessors [..., n]; every round takes the distances of the round before."""
    lengths, (_, distance, parent) = _lengths(weights), _start(weights, source)
    for _ in range(weights.shape[-1] - 1):
        shortest, through = (distance[..., None] + lengths).min(-2)
        better = shortest < distance
        distance, parent = torch.where(better, shortest, distance), torch.where(better, through, parent)
    return parent


def dijkstra(weights: Tensor, source: Tensor) -> Tensor:
    """Return predecessors [..., n]."""
    return _grow(weights, source, along=True)


def prim(weights: Tensor, source: Tensor) -> Tensor:
    """Return predecessors [..., n] in the smallest spanning tree of the nodes that are reached."""
    return _grow(weights, source, along=False)


def _grow(weights: Tensor, source: Tensor, *, along: bool) -> Tensor:
    """Return predecessors in a tree; the node nearest to it, or to the source `along` it, joins."""
    lengths, (index, key, parent) = _lengths(weights), _start(weights, source)
    joined = torch.zeros_like(parent, dtype=torch.bool)
    for _ in range(len(index)):
        near, node = key.masked_fill(joined, FAR).min(-1, keepdim=True)
        reached = near < FAR
        joined = joined | ((index == node) & reached)
        offered = _row(lengths, node) + (near if along else 0)
        better = reached & ~joined & (offered < key)
        key, parent = torch.where(better, offered, key), torch.where(better, node, parent)
    return parent


def dag_shortest_paths(weights: Tensor, source: Tensor, sizes: Tensor) -> Tensor:
    """Return predecessors [..., n] in a graph without cycles, node by node in topological order."""
    lengths, (index, distance, parent) = _lengths(weights), _start(weights, source)
    order = depth_first(weights > 0, sizes, source).ended.argsort(-1, descending=True)
    for rank in range(len(index)):
        node = order[..., rank : rank + 1]  # one that is not reached moves nothing
        offered = distance.gather(-1, node) + _row(lengths, node)
        better = offered < distance
        distance, parent = torch.where(better, offered, distance), torch.where(better, node, parent)
    return parent


def floyd_warshall(weights: Tensor) -> Tensor:
    """Return each column's predecessor on the shortest path from each row, [..., n, n].

    It is the row if there is none. As in CLRS-Text a loop is a path, unless a round trip is
    shorter.
    """
    index = torch.arange(weights.shape[-1], device=weights.device)
    distance = torch.where((weights == 0) & (index == index[:, None]), 0, _lengths(weights))
    parent = index[:, None].expand(weights.shape)
    for node in range(len(index)):
        at = slice(node, node + 1)
        offered = distance[..., :, at] + distance[..., at, :]
        better = offered < distance
        distance, parent = torch.where(better, offered, distance), torch.where(better, parent[..., at, :], parent)
    return parent


def kruskal(weights: Tensor) -> Tensor:
    """Return the links [..., n, n] that no path of smaller ones goes around; ties in order."""
    index = torch.arange(weights.shape[-1], device=weights.device)
    pair = torch.minimum(index[:, None], index) * len(index) + torch.maximum(index[:, None], index)
    rank = (weights * len(index) ** 2 + pair).masked_fill((weights == 0) | (index == index[:, None]), FAR)
    widest = rank
    for node in range(len(index)):
        at = slice(node, node + 1)
        widest = torch.minimum(widest, torch.maximum(widest[..., :, at], widest[..., at, :]))
    return (rank < FAR) & (rank == widest)
