"""What each activation costs next to GELU: a whole optimizer step of the transformer, as the engine makes it.

    python -m benchmarks.activations [--width 32] [--seconds 3]

Set complement of 20 tokens, batch 64, two layers, two heads, MLP of four times the width, four lanes, float32, one
thread. Prints processor time of a step relative to GELU's, and one JSON line. A gated activation has three matrices
for the two of the others, of two thirds of their size.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks.scorers import fastest
from spaces import plugins
from spaces.records import Trial
from workers.engine.machine.process import prepare
from workers.engine.pack import Pack
from workers.networks.activations import Activation

LANES = 4
SETTINGS: dict[str, dict[str, Any]] = {"spline": {"knots": 361}}
"""Fields other than the defaults: a spline with the finer of the two spacings of paper 002."""


def main() -> None:
    """Time a step with every member of the family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0, help="least time spent on each")
    arguments = parser.parse_args()
    prepare()
    times = {name: seconds_of(name, arguments.width, arguments.seconds) for name in plugins.names(Activation)}
    base = times["gelu"]
    print(f"width {arguments.width}: gelu {base * 1e3:.2f} ms a step of {LANES} lanes; relative:")
    for name, seconds in sorted(times.items(), key=lambda item: item[1]):
        print(f"  {name:20} {seconds / base:6.2f}")
    relative = {name: round(seconds / base, 2) for name, seconds in times.items()}
    print(json.dumps({"benchmark": "activations", "width": arguments.width, "relative": relative}))


def seconds_of(name: str, width: int, seconds: float) -> float:
    """Processor time of one step of a pack."""
    activation = {"name": name, **SETTINGS.get(name, {})}
    model = {"name": "transformer", "width": width, "mlp_multiple": 4, "activation": activation}
    config: dict[str, Any] = {
        "task": {"name": "set_complement", "length": 18, "vocabulary": 20},
        "model": model,
        "optimizer": {"name": "adamw"},
        "averaging": {"name": "none"},
        "training": {"steps": 10**9, "batch": 64, "validate_every": 10**9, "validation_batch": 64},
    }
    trials = [
        Trial(number=n, group=0, seed=n, draws={}, params={}, config=config, structure=name) for n in range(LANES)
    ]
    pack = Pack(trials[0], width=LANES)
    pack.fill(trials)
    return fastest(lambda: pack.train(1), seconds)


if __name__ == "__main__":
    main()
