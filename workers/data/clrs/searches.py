"""Searches of graphs (CLRS, chapter 22), for many graphs at once.

Legend: L lanes, N sequences, n nodes of the largest, `sizes` [L, N, 1]; `linked` [L, N, n, n].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class DepthFirst(NamedTuple):
    """Each node's predecessor, a root's itself, and when its visit began and ended, [L, N, n].

    The visit of the first root begins at 0, and it ends last of its tree. Both times of nodes
    beyond `sizes`, which are not visited, are 0.
    """

    parent: Tensor
    began: Tensor
    ended: Tensor


def depth_first(linked: Tensor, sizes: Tensor, start: Tensor | None = None) -> DepthFirst:
    """Search from node `start` [L, N, 1], else 0, then from unvisited nodes, in ascending order."""
    index = torch.arange(linked.shape[-1], device=linked.device)
    node = torch.zeros_like(sizes) if start is None else start
    seen = (index >= sizes) | (index == node)
    parent = index.expand(seen.shape)
    began, ended = torch.zeros_like(parent), torch.zeros_like(parent)
    for time in range(1, 2 * len(index)):  # at each step a node's visit begins or ends, or both
        row = linked.gather(-2, node[..., None].expand(*node.shape, len(index)))[..., 0, :]
        ahead = row & ~seen
        deeper, above = ahead.any(-1, keepdim=True), parent.gather(-1, node)
        ended = torch.where(~deeper & (index == node) & (ended == 0), time, ended)
        restarts = (above == node) & ~seen.all(-1, keepdim=True)
        root = (~seen).int().argmax(-1, keepdim=True)
        following = torch.where(deeper, ahead.int().argmax(-1, keepdim=True), torch.where(restarts, root, above))
        new = (index == following) & ~seen
        parent = torch.where(new & deeper, node, parent)
        began = torch.where(new, time, began)
        seen, node = seen | new, following
    return DepthFirst(parent, began, ended)


def breadth_first(linked: Tensor, source: Tensor) -> Tensor:
    """Return the first neighbour [..., n] that was reached before each node, or the node itself."""
    index = torch.arange(linked.shape[-1], device=linked.device)
    reached, parents = index == source, index.expand(linked.shape[:-1])
    for _ in range(linked.shape[-1] - 1):
        leads = linked & reached[..., None]  # [..., from, to]
        new = leads.any(-2) & ~reached
        parents = torch.where(new, leads.int().argmax(-2), parents)
        reached = reached | new
    return parents


def topological_order(linked: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the node after each one, for the last itself [..., n]; and the first [..., 1]."""
    ended = depth_first(linked, sizes).ended
    before = ended[..., None, :].masked_fill(ended[..., None, :] >= ended[..., None], 0)  # [..., node, earlier]
    latest, after = before.max(-1)
    index = torch.arange(linked.shape[-1], device=linked.device)
    return torch.where(latest > 0, after, index), ended.argmax(-1, keepdim=True)


def strong_components(linked: Tensor, sizes: Tensor) -> Tensor:
    """Return the node of each node's component that depth-first search visits first, [..., n]."""
    index = torch.arange(linked.shape[-1], device=linked.device)
    reaches = linked | (index == index[:, None])
    for node in range(len(index)):
        reaches = reaches | (reaches[..., :, node : node + 1] & reaches[..., node : node + 1, :])
    began = depth_first(linked, sizes).began[..., None, :]
    return began.masked_fill(~(reaches & reaches.mT), 2 * len(index)).argmin(-1)


class _Tree(NamedTuple):
    """A search: children [..., n, n] by parent, roots, when visits began, how far back they go."""

    child: Tensor
    root: Tensor
    began: Tensor
    low: Tensor


def _low_links(linked: Tensor, sizes: Tensor) -> _Tree:
    """Return the search; a node's `low` is the first visit that it or a node below links to."""
    parent, began, _ = depth_first(linked, sizes)
    index = torch.arange(linked.shape[-1], device=linked.device)
    others = linked & (index != parent[..., None])
    low = torch.minimum(began, began[..., None, :].masked_fill(~others, 2 * len(index)).amin(-1))
    order = began.argsort(-1)
    for rank in reversed(range(len(index))):
        node = order[..., rank : rank + 1]
        above = parent.gather(-1, node)
        low = torch.where(index == above, torch.minimum(low, low.gather(-1, node)), low)
    child = (parent[..., None, :] == index[:, None]) & (index != index[:, None])
    return _Tree(child, parent == index, began, low)


def articulation_points(linked: Tensor, sizes: Tensor) -> Tensor:
    """Return True at nodes [..., n] that hold an undirected graph together (problem 22-2)."""
    child, root, began, low = _low_links(linked, sizes)
    return torch.where(root, child.sum(-1) > 1, (child & (low[..., None, :] >= began[..., None])).any(-1))


def bridges(linked: Tensor, sizes: Tensor) -> Tensor:
    """Return True at links [..., n, n] that hold an undirected graph together."""
    child, _, began, low = _low_links(linked, sizes)
    down = child & (low[..., None, :] > began[..., None])
    return down | down.mT
