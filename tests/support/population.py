"""The copies among the trials of a population."""

from __future__ import annotations

from dataclasses import replace

from spaces.records import Ancestor, Trial


def copied(parent: Trial, number: int, step: int, knobs: Trial) -> Trial:
    """Return a copy of `parent` at a step, with the knobs of another trial and a seed of its own."""
    line = (*parent.lineage, Ancestor(parent.number, parent.seed, parent.config, step))
    return replace(knobs, number=number, seed=10_000 + number, lineage=line)
