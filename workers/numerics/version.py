"""The version of the numerics: what decides a trial's bits beside its configuration, its seed and the processor."""

from __future__ import annotations

NUMERICS = 2
"""Counted up with every change that may move a bit of what a trial computes: an order of additions, a precision, an
initialisation. Stored with each study; bits are promised between equal numbers alone.

1  Graft 0.1.0
2  second moments and averages in float64, subnormal numbers are zero, compiled steps for transformers
"""
