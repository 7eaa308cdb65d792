"""Spaces of a few lines, parsed."""

from __future__ import annotations

from collections.abc import Mapping

import spaces
from spaces.space import Space
from tests.support.fake_plugins import FAMILIES

BASE = """\
study: demo
group:
  length: 1 + floor(2 ** uniform(0, 4))
  vocabulary: $length + floor(2 ** uniform(0, 4))
trial:
  power: uniform(0, 1)
task:
  name: copy
  length: $length
  vocabulary: $vocabulary
model:
  name: tiny
  width: 16
  dropout: relu(uniform(-1/2, 1/2))
optimizer: {sgd: {learning_rate: 10 ** uniform(-5, -1), warmup: floor(10 ** uniform(-2, 3))}}
averaging: {ema: {power: $power}}
training: {steps: 1_000, batch: 32}
search:
  trials: 100
  group: 10
  objective: {minimize: tvd/ema}
"""
CONDITIONAL = BASE.replace(
    "  width: 16\n",
    "  width: {choice: [8, 16, 32]}\n"
    "  scorer: {choice: [softmax, {ssa: {n: uniform(1, 3), b: 2}}, {name: entmax, alpha: {uniform: [1, 2]}}]}\n"
    "  activation: {choice: [relu, gelu]}\n"
    "  tied: {choice: [true, false]}\n",
)


def parse(text: str = BASE, overrides: Mapping[str, str] | None = None) -> Space:
    return spaces.parse(text, "demo.yaml", FAMILIES, overrides)
