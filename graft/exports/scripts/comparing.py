"""A trial trained again by plain torch, beside the metrics that are stored of it: the end of every script."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from math import isfinite

from workers.engine.machine.process import flush_subnormals
from workers.training.plain import Key, Stage, train

TOLERANCE = 1e-5
"""Largest difference that counts as agreement: relative to the larger number, absolute below 1."""


def differ(one: float | None, other: float | None) -> float:
    """|one - other|, relative to the larger of them where that is above 1; None: no finite number."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return abs(one - other) / max(1.0, abs(one), abs(other))


def main(
    stages: Sequence[Stage],
    evaluation_seed: int,
    stored: Mapping[Key, float | None],
    not_computed: Sequence[str],
    stored_divergence: str | None,
) -> int:
    """Print each stored metric beside the one computed here, and whether they agree; 1 if they do not.

    `not_computed` are the names of stored metrics that a script does not compute: diagnostics of attention.
    """
    last = int(sys.argv[1]) if len(sys.argv) > 1 else stages[-1].until
    with flush_subnormals():
        found, divergence = train(
            stages, evaluation_seed=evaluation_seed, until=last, steps={step for step, *_ in stored}
        )
    compared = {key: value for key, value in stored.items() if key[0] <= last}
    print("stored\there\tdifference\tmetric")
    worst, agreed = 0.0, 0
    for key, value in compared.items():
        step, *name = key
        here = found.get(key)
        here = None if here is None or not isfinite(here) else here
        difference = differ(value, here)
        worst, agreed = max(worst, difference), agreed + (difference <= TOLERANCE)
        print(f"{value}\t{here}\t{difference:.1e}\t{'/'.join(part for part in name if part)} at step {step}")
    expected = stored_divergence if last >= stages[-1].until else None
    print(f"{agreed} of {len(compared)} metrics agree within {TOLERANCE:g}; the largest difference is {worst:.1e}")
    if not_computed:
        print(f"stored, but not computed here: {', '.join(not_computed)}")
    if divergence != expected:
        print(f"stored: {expected or 'no divergence'}; here: {divergence or 'no divergence'}")
    return int(agreed < len(compared) or divergence != expected)
