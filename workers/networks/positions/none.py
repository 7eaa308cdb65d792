"""No positions."""

from __future__ import annotations

from dataclasses import dataclass

from workers.networks.positions import Position


@dataclass(frozen=True, kw_only=True)
class NoPosition(Position):
    """A causal model still tells positions by what each sees. Source: Haviv et al. 2022, "NoPE"."""
