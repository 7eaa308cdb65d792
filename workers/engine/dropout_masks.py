"""Dropout masks: the units that each site of the lanes of a pack keeps.

Native steps draw their own masks in C++. Legend: L lanes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.data.tasks import Batch
from workers.networks.models import Site
from workers.numerics.randomness import SiteStreams, keep_mask, padded_keep_mask
from workers.training.recipe import Recipe


def has_masks(recipe: Recipe, inputs: Tensor) -> bool:
    """Return True if dropout is on at a site; of the inputs [L, N, s] only the shape counts."""
    return any(site.rate for site in _sites(recipe, inputs).values())


def draw_masks(recipe: Recipe, knobs: dict[str, Tensor], seeds: Tensor, step: Tensor, inputs: Tensor) -> Batch:
    """Draw the mask [L, ...] of each site that is on, at steps [L]; inputs only give a shape."""
    sites, stacked = _sites(recipe, inputs), _sites(recipe.bind(knobs), inputs)
    streams = SiteStreams(seeds=seeds, steps=step)
    masks: Batch = {}
    for number, (name, site) in enumerate(stacked.items()):
        if sites[name].rate:
            stream, rates = streams[number], torch.as_tensor(site.rate)  # [L]
            if site.actual:
                masks[name] = padded_keep_mask(stream, rates, site.shape, site.actual)
            else:
                masks[name] = keep_mask(stream, rates, *site.shape)
    return masks


def _sites(recipe: Recipe, inputs: Tensor) -> dict[str, Site]:
    return dict(recipe.model.dropout_sites(recipe.task, recipe.training.batch, inputs.shape[2]))
