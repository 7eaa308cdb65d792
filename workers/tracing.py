"""Tracing: a function of tensors becomes a flat list of tensor operations, recorded once for its shapes.

Replaying the list leaves out autograd, vmap and Python's own work between operations. No compiler is needed, so it
runs on a machine that has torch alone. The one place that touches torch's tracer and its trees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

tree_map = pytree.tree_map
"""Apply a function to every tensor of nested dicts and tuples of equal form."""


class Traced:
    """A pure function of nested tensors, replayed from its recording; recorded anew for each set of shapes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._recorded: dict[tuple[torch.Size, ...], tuple[Callable[..., list[Tensor]], pytree.TreeSpec]] = {}

    def __call__(self, *arguments: Any) -> Any:
        leaves, form = pytree.tree_flatten(arguments)
        shapes = tuple(leaf.shape for leaf in leaves)
        if shapes not in self._recorded:
            self._recorded[shapes] = self._record(leaves, form)
        replay, form_out = self._recorded[shapes]
        with torch.no_grad():
            return pytree.tree_unflatten(replay(*leaves), form_out)

    def _record(
        self, leaves: list[Tensor], form: pytree.TreeSpec
    ) -> tuple[Callable[..., list[Tensor]], pytree.TreeSpec]:
        forms: list[pytree.TreeSpec] = []

        def flat(*leaves: Tensor) -> list[Tensor]:
            results, form_out = pytree.tree_flatten(self._function(*pytree.tree_unflatten(leaves, form)))
            forms.append(form_out)
            return results

        return make_fx(flat)(*leaves), forms[0]
