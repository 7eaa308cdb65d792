"""Variants of the transformer."""

from __future__ import annotations

from typing import Any

EVERYTHING = {
    "canon": "ABCD",
    "query_key_norm": True,
    "logit_cap": 3.0,
    "position": {"name": "rotary"},
    "activation": {"name": "spline", "knots": 13, "low": -1.0, "high": 1.0},
    "norm": "rms_norm",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gpt-2": {},
    "paper 002": {"pre_norm": False},
    "everything": EVERYTHING,
    "attention only": {"mlp_multiple": 0, "position": {"name": "alibi"}, "tied": True, "bias": False},
    "gated": {"activation": {"name": "swiglu"}, "position": {"name": "sinusoidal"}, "canon": "D"},
    "spline in each layer": {"activation": {"name": "spline", "knots": 9}, "activation_per_layer": True},
}
