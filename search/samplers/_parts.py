"""The parts of a space's configurations, and better configurations that are put together from those of others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from search.samplers._features import Floats

if TYPE_CHECKING:
    from spaces.grammar.formulas import Draw

_BASES = 2
"""Random configurations in each of which every draw is changed, to see what depends on it."""
_KEPT = 32
"""Configurations that are kept of each generation."""
_CHILDREN = 96
"""Configurations that are put together in each generation."""
_GENERATIONS = 8
_NEW_PARTS = 2.0
"""How many parts of a child come from the pool in the mean."""
_SECOND_PARENT = 0.25
"""The share of the other parts that come from its second parent."""

Parts = NDArray[np.intp]
"""The number of the part that each gene belongs to, [genes]. Genes are a configuration's draws, then its columns."""


def find_parts(draws: Sequence[Draw], resolve: Callable[[Floats], Floats], rng: np.random.Generator) -> Parts:
    """Return the parts of configurations whose genes are those that `resolve` returns.

    Draws that decide a common column, or of which one decides whether the other is made, are one part with their
    columns. So a part can replace that of another configuration, and the genes of the result are known.
    `resolve`: coordinates [configurations, draws] -> genes [configurations, genes]; draws that are not made are -1.
    """
    from scipy.sparse.csgraph import connected_components

    points = rng.random((_BASES, len(draws)))
    bases = resolve(points)
    depends = np.zeros((bases.shape[1], bases.shape[1]), dtype=bool)
    for point, genes in zip(points, bases, strict=True):
        for at, draw in enumerate(draws):
            values = (np.arange(draw.choices) + 0.5) / draw.choices if draw.choices else rng.random(2)
            changed = np.tile(point, (len(values), 1))
            changed[:, at] = values
            # Another draw's coordinate differs only if the draw is made in one of the two configurations.
            depends[at] |= (resolve(changed) != genes).any(axis=0)
    _, parts = connected_components(depends, directed=False)
    return parts.astype(np.intp)


def evolve(pool: Floats, parts: Parts, cost: Callable[[Floats], Floats], rng: np.random.Generator) -> Floats:
    """Return configurations of low cost, the lowest first, put together from the parts of those of a pool.

    `pool`: genes [configurations, genes]; `cost`: genes -> [configurations]. Of equal costs one is kept.
    """
    count = parts.max() + 1
    costs, at = np.unique(cost(pool), return_index=True)
    kept = pool[at[:_KEPT]]
    costs = costs[:_KEPT]
    genes = np.arange(pool.shape[1])
    for _ in range(_GENERATIONS):
        first, second = rng.integers(len(kept), size=(2, _CHILDREN, 1))
        chance = rng.random((_CHILDREN, count))[:, parts]
        children = np.where(chance < _NEW_PARTS / count + _SECOND_PARENT, kept[second, genes], kept[first, genes])
        new = rng.integers(len(pool), size=(_CHILDREN, count))[:, parts]
        children = np.where(chance < _NEW_PARTS / count, pool[new, genes], children)
        costs, at = np.unique(np.concatenate([costs, cost(children)]), return_index=True)
        kept, costs = np.concatenate([kept, children])[at[:_KEPT]], costs[:_KEPT]
    return kept
