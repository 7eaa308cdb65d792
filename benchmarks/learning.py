"""What a step of stage one costs: several models that share a learned spline, against as many models with GELU.

    python -m benchmarks.learning

Each of the tasks of `quick/transfer`: two trials of stage one side by side, and as many trials of the baseline as these
have models; best of several bursts, in seconds of the processor.
"""

from __future__ import annotations

import argparse

from graft.plugins.families import families
from spaces import load
from spaces.transfer import TransferSpace
from workers.engine.machine.process import prepare
from workers.engine.speed.timing import best_rate

LANES = 2
"""Trials of stage one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each burst")
    seconds = parser.parse_args().seconds
    prepare()
    space = load("quick/transfer", families())
    assert isinstance(space, TransferSpace), "the space of a transfer"
    print(f"{'task':<10} {'models':>6} {'stage one, models/s':>20} {'GELU, models/s':>15} {'cost of a model':>16}")
    for number, domain in enumerate(space.domains):
        trial, baseline = space.sample(number, lambda _: 0.5), domain.baseline.sample(0, lambda _: 0.5)
        models: int = trial.config["learning"]["models"]
        stage_one = models * best_rate(trial, LANES, "cpu", seconds)
        plain = best_rate(baseline, LANES * models, "cpu", seconds)
        print(f"{domain.name:<10} {models:>6} {stage_one:>20.0f} {plain:>15.0f} {plain / stage_one:>16.2f}", flush=True)


if __name__ == "__main__":
    main()
