"""An experiment of two arms, as a space."""

from __future__ import annotations

EXPERIMENT = """
study: tiny-arms
task: {name: set_complement, length: 3, vocabulary: 6}
model: {name: minimal, width: 8, key_width: 4, value_width: 6}
optimizer: {name: adamw, learning_rate: 0.01}
averaging: none
training: {steps: 4, batch: 4, validate_every: 2, validation_batch: 8}
arms:
  softmax: {}
  average: {model.scorer: average}
seeds: 4
search: {objective: {minimize: tvd/raw}}
"""
