"""Positions: how a model tells where a token stands.

A member overrides the hooks that it needs; each does nothing by default.
Legend: N sequences, s positions, d width, h heads, q queries, k keys, c channels of a head.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from workers.numerics.parameters import Parameter, Parameters


class Position:
    """A way to encode positions; its members are frozen dataclasses."""

    def check(self, longest: int, head_width: int) -> None:
        """Raise PluginError if inputs of this length or heads of this width cannot be encoded."""

    def parameters(self, width: int, longest: int) -> Mapping[str, Parameter]:
        """Return what is learned for inputs up to this length: the model's `position.<name>`."""
        return {}

    def add_to(self, stream: Tensor, learned: Parameters) -> Tensor:
        """Return the embedded tokens [N, s, d] with their positions."""
        return stream

    def rotate(self, vectors: Tensor) -> Tensor:
        """Return queries or keys [N, h, s, c] with their positions."""
        return vectors

    def bias(self, heads: int, like: Tensor) -> Tensor | None:
        """Return [h, s, s] to add to the scaled logits of `like` [N, s, d]; None for nothing."""
        return None
