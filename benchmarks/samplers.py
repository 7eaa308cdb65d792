"""What an ask costs, early and late in a search: `python -m benchmarks.samplers`.

Seconds are of processor time. The space is set_complement.yaml (20 draws), the objective the squared distance to a
point of the cube. An ask of `random` is compared with `Space.sample` alone; those of samplers that learn must not get
dearer with the history.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import spaces
from graft.plugins.families import families
from search.samplers import Sampler, Strategy
from spaces import plugins
from spaces.records import Outcome, Trial
from spaces.space import Space

BATCH = 10
WINDOW = 200


def main() -> None:
    """Print both tables, which takes ten minutes."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    space = spaces.load("set_complement", families(), {})
    single = replace(space, search=replace(space.search, group=1))
    print(f"{'random, 260,000 asks':<24}{seconds_over_sampling(space, 260_000) * 1e6:8.1f} us over Space.sample")
    print(f"\n{'ms per ask and tell':<24}{'1,000th':>10}{'10,000th':>10}{'ratio':>8}")
    for name in ("random", "qmc", "cmaes", "nsga2", "tpe"):
        report(single, name, 1_000, 10_000)
    print(f"\n{'ms per ask, resumed at':<24}{'1,000th':>10}{'10,000th':>10}{'ratio':>8}")
    report_resumed(single, "gp", 1_000, 10_000)
    cost = seconds_of_waves(single, "learned", known=10_000, lanes=256)
    print(f"\nlearned, 256 lanes, 10,000 known: {cost * 1e3:.2f} ms per ask and tell")


def seconds_over_sampling(space: Space, trials: int) -> float:
    """Seconds that `random` adds to a trial."""
    strategy = plugins.build(Sampler, {"name": "random"}).begin(space, [])
    start = time.process_time()
    for first in range(0, trials, 1000):
        strategy.ask(range(first, first + 1000))
    asked = time.process_time()
    for number in range(0, trials, 10):
        space.sample(number, lambda _: 0.4)
    return (asked - start - 10 * (time.process_time() - asked)) / trials


def report(space: Space, name: str, early: int, late: int, window: int = WINDOW) -> None:
    """Print the cost of one trial around two places of a search."""
    strategy = plugins.build(Sampler, {"name": name}).begin(space, [])
    costs = [seconds(space, strategy, range(early), window), seconds(space, strategy, range(early, late), window)]
    print(f"{name:<24}{costs[0] * 1e3:10.2f}{costs[1] * 1e3:10.2f}{costs[1] / costs[0]:8.2f}")


def report_resumed(space: Space, name: str, early: int, late: int) -> None:
    """Print the cost of an ask that follows on so many ended trials: for a sampler too slow to get there."""
    costs: list[float] = []
    for ended in (early, late):
        drawn = plugins.build(Sampler, {"name": "random"}).begin(space, []).ask(range(ended))
        strategy = plugins.build(Sampler, {"name": name}).begin(space, [outcome(trial) for trial in drawn])
        strategy.ask(range(ended, ended + 2))
        start = time.process_time()
        strategy.ask(range(ended + 2, ended + 2 + BATCH))
        costs.append((time.process_time() - start) / BATCH)
    print(f"{name:<24}{costs[0] * 1e3:10.2f}{costs[1] * 1e3:10.2f}{costs[1] / costs[0]:8.2f}")


def seconds_of_waves(space: Space, name: str, known: int, lanes: int, waves: int = 8) -> float:
    """Seconds per trial where so many are asked at once and told at once, after as many known ones."""
    drawn = plugins.build(Sampler, {"name": "random"}).begin(space, []).ask(range(known))
    strategy = plugins.build(Sampler, {"name": name}).begin(space, [outcome(trial) for trial in drawn])
    start = time.process_time()
    for first in range(known, known + waves * lanes, lanes):
        strategy.tell([outcome(trial) for trial in strategy.ask(range(first, first + lanes))])
    return (time.process_time() - start) / (waves * lanes)


def outcome(trial: Trial) -> Outcome:
    """Return the outcome of a trial: the squared distance to a point of the cube."""
    objective = sum((u - 0.3) ** 2 for u in trial.draws.values())
    return Outcome(number=trial.number, group=trial.group, draws=trial.draws, objective=objective, state="finished")


def seconds(space: Space, strategy: Strategy, numbers: range, window: int) -> float:
    """Go through `numbers`; seconds per trial over the last `window` of them."""
    start = 0.0
    for first in range(numbers.start, numbers.stop, BATCH):
        if first >= numbers.stop - window and not start:
            start = time.process_time()
        trials = strategy.ask(range(first, first + BATCH))
        strategy.tell([outcome(trial) for trial in trials])
    return (time.process_time() - start) / window


if __name__ == "__main__":
    main()
