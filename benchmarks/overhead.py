"""What a trial costs beside its training: studies of trials of one step.

    python -m benchmarks.overhead [--trials 5000]

Two studies are launched, one with a tenth of the trials; the difference of their processor seconds, by the difference
of their trials, is the price of one trial: drawing, starting, one step and one validation on two sequences, report, and
the rows in SQLite. Start of the program and recording of steps fall out of it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.memory import measure

SPACE = """
study: one-step
task: {name: set_complement, length: 3, vocabulary: 7}
model: {name: minimal, width: 8, key_width: 3, value_width: 6, residual_dropout: "uniform(0, 0.5)"}
optimizer: {name: adamw, learning_rate: "10 ** uniform(-3, -1)", beta1: "uniform(0, 1)"}
averaging: {name: bema, eta: "uniform(0, 1)", rho: 10, kappa: 0.5}
training: {steps: 1, batch: 2, validate_every: 1, validation_batch: 2}
search: {sampler: random, trials: 5000, objective: {minimize: tvd/bema}}
"""
LIMIT = 2.0
"""Milliseconds of processor that a trial may cost."""


def launch(space: str, trials: int) -> Sequence[str]:
    """Return the command for so many trials of one step, on one worker."""
    where = ("--workers", "1", "--device", "cpu", "--checkpoints", "none")
    return ["launch", space, "--trials", str(trials), *where]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5_000)
    options = parser.parse_args()
    few, many = options.trials // 10, options.trials
    seconds: dict[int, float] = {}
    for trials in (few, many):
        with tempfile.TemporaryDirectory() as folder:
            space = Path(folder) / "one_step.yaml"
            space.write_text(SPACE)
            _, seconds[trials], peak = measure(launch(str(space), trials), f"sqlite:///{folder}/graft.db")
        print(
            f"{trials:,} trials of one step: {seconds[trials]:.1f} s of processor, at most {peak:,.0f} MiB", flush=True
        )
    price = 1000 * (seconds[many] - seconds[few]) / (many - few)
    print(f"{price:.2f} ms of processor a trial{'' if price <= LIMIT else f', above {LIMIT:g}'}")


if __name__ == "__main__":
    main()
