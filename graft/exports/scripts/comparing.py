"""A trial trained again in plain torch, beside its stored metrics: the end of every script."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence

from workers.engine.machine.process import flush_subnormals
from workers.training.plain import Key, Stage, train

TOLERANCE = 1e-5
"""Largest difference that counts as agreement: relative to the larger number, absolute below 1."""
NEIGHBOURS = 8
"""Trainings from starts that differ by one last bit, which tell rounding from a mistake. Four were
too few for metrics that count, which move in jumps."""
MOST_OF_SPREAD = 4.0
"""The limit beyond TOLERANCE: how many times what one last bit of the start changes it by. Rounding
comes in at every step; in trials of all families, 60 steps long, it made no more than that."""
Metrics = Mapping[Key, float | None]


def differ(metric: float | None, other: float | None) -> float:
    """Return |metric - other|, relative to the larger if above 1; None stands for no finite number."""
    known = [value for value in (metric, other) if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return float("inf") if known else 0.0
    return abs(known[0] - known[1]) / max(1.0, *map(abs, known))


def measure_spread(here: Metrics, others: Sequence[Metrics], keys: Iterable[Key]) -> dict[Key, float]:
    """Return for each key the most that its name's metrics up to its step differ from `here`."""
    spread: dict[str, float] = {}
    differences: dict[Key, float] = {}
    ordered = sorted(keys)
    for step in sorted({key[0] for key in ordered}):
        now = [key for key in ordered if key[0] == step]
        for key in now:
            difference = max(differ(here.get(key), other.get(key)) for other in others)
            spread[key[1]] = max(difference, spread.get(key[1], 0.0))
        differences |= {key: spread[key[1]] for key in now}
    return differences


@flush_subnormals()
def main(
    stages: Sequence[Stage], evaluation_seed: int, stored: Metrics, not_computed: Sequence[str], stored_end: str | None
) -> int:
    """Print each stored metric beside the one computed here; return 1 if they do not agree.

    Trainings whose starts differ by one last bit tell rounding from a mistake. `not_computed` are
    stored metrics that a script does not compute: diagnostics of attention. `stored_end` says how
    the trial diverged, if it did.
    """
    last = int(sys.argv[1]) if len(sys.argv) > 1 else stages[-1].until
    steps = {step for step, *_ in stored}
    computed, divergence = train(stages, evaluation_seed=evaluation_seed, until=last, steps=steps)
    compared = {key: value for key, value in stored.items() if key[0] <= last}
    differences = {key: differ(value, computed.get(key)) for key, value in compared.items()}
    print("stored\there\tdifference\tmetric")
    for key, value in compared.items():
        print(f"{value}\t{computed.get(key)}\t{differences[key]:.1e}\t{describe_key(key)}")
    outside = {key: difference for key, difference in differences.items() if difference > TOLERANCE}
    expected = stored_end if last >= stages[-1].until else None
    agreed, worst = len(compared) - len(outside), max(differences.values(), default=0.0)
    print(f"{agreed} of {len(compared)} metrics agree within {TOLERANCE:g}; the largest difference is {worst:.1e}")
    if not_computed:
        print(f"stored, but not computed here: {', '.join(not_computed)}")
    if divergence != expected:
        print(f"stored: {expected or 'no divergence'}; here: {divergence or 'no divergence'}")
    if not outside and divergence == expected:
        return 0
    print(f"trained {NEIGHBOURS} times more, from starts that differ by one last bit:", flush=True)
    trained = [
        train(stages, evaluation_seed=evaluation_seed, until=last, steps=steps, nudge=nudge)
        for nudge in range(1, NEIGHBOURS + 1)
    ]
    spread = measure_spread(computed, [metrics for metrics, _ in trained], compared)
    mistaken = [key for key in outside if outside[key] > MOST_OF_SPREAD * spread[key]]
    endings = {divergence, *(ending for _, ending in trained)}
    may_end_so = expected in endings or (None not in {expected, *endings} and len(endings) > 1)
    if not mistaken and may_end_so:
        print(f"all differences are rounding's: at most {MOST_OF_SPREAD:g} times what that bit changes")
        return 0
    for key in mistaken[:1]:
        print(
            f"{len(mistaken)} differences are larger than rounding's: {describe_key(key)} differs by "
            f"{outside[key]:.1e}, and that bit changes it by {spread[key]:.1e}"
        )
    if not may_end_so:
        print(f"none of them ends as it is stored: {expected or 'no divergence'}")
    return 1


def describe_key(key: Key) -> str:
    """Return a metric's name with variant, condition and step: `tvd/bema at step 3`."""
    return f"{'/'.join(part for part in key[1:] if part)} at step {key[0]}"
