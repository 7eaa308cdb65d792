"""What drawing a training batch costs next to the step that trains on it.

    python -m benchmarks.data [SPACE ...] [--lanes 4] [--device cpu] [--seconds 2]

For each packaged space (all quick ones and the algorithmic baselines, unless some are named) a pack of its first
trials; prints processor time of the batch, of the whole step with it, their ratio, and one JSON line. On a GPU it is
the time on the wall, with the device's work finished.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

import spaces
from graft.plugins.families import families
from spaces.reading.catalogue import packaged_spaces
from spaces.records import Trial
from workers.engine.machine.process import prepare
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe


def main() -> None:
    """Time data and step of each space."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spaces", nargs="*")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="least time spent on each")
    arguments = parser.parse_args()
    prepare()
    names = arguments.spaces or [name for name in packaged_spaces() if name.startswith(("quick/", "algorithmic/"))]
    shares, clock = dict[str, float](), clock_of(arguments.device)
    print(f"{'space':28} {'batch ms':>9} {'step ms':>9} {'share':>7}")
    for name in names:
        trials = first_of_one_structure(name, arguments.lanes)
        data = fastest(batch_of(trials, arguments.device), arguments.seconds, clock)
        step = fastest(step_of(trials, arguments.device), arguments.seconds, clock)
        shares[name] = round(data / step, 4)
        print(f"{name:28} {data * 1e3:9.2f} {step * 1e3:9.2f} {data / step:7.1%}", flush=True)
    print(json.dumps({"benchmark": "data", "device": arguments.device, "lanes": arguments.lanes, "share": shares}))


def first_of_one_structure(name: str, lanes: int) -> list[Trial]:
    """Return the first trials of a space that can train in one pack."""
    space = spaces.load(name, families())
    strategy, asked = space.search.sampler.begin(space, []), list[Trial]()
    while len(asked) < min(lanes, space.search.trials):
        [trial] = strategy.ask(range(len(asked), len(asked) + 1))
        asked.append(trial)
    first = asked[0]
    return [trial for trial in asked if trial.structure == first.structure]


def batch_of(trials: list[Trial], device: str) -> Callable[[], object]:
    """Draws a training batch for all lanes."""
    recipe, target = Recipe.of(trials[0].config), torch.device(device)
    seeds = torch.tensor([trial.seed for trial in trials], device=target)
    steps = torch.full_like(seeds, 1000)
    knobs = {path: torch.full((len(trials),), value, dtype=torch.float64) for path, value in recipe.knobs().items()}
    task = recipe.bind({path: value.to(target) for path, value in knobs.items()}).task
    return lambda: task.training(Streams.of(seeds, Purpose.TRAINING_DATA, steps), recipe.training.batch, steps)


def step_of(trials: list[Trial], device: str) -> Callable[[], object]:
    """Make one step of a pack of these trials, its data included."""
    pack = Pack(trials[0], width=len(trials), device=device)
    pack.fill(trials)
    return lambda: pack.train(1)  # the least time is that of a step that no validation follows


def clock_of(device: str) -> Callable[[], float]:
    """Processor time of the process; on a GPU the time on the wall when it has nothing more to do."""
    if device == "cpu":
        return time.process_time

    def when_idle() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return when_idle


def fastest(call: Callable[[], object], seconds: float, clock: Callable[[], float] = time.thread_time) -> float:
    """Return the least time of one call, over as many as fit, at least three; by default of this thread's processor."""
    call()
    best, end, calls = float("inf"), time.monotonic() + seconds, 0
    while time.monotonic() < end or calls < 3:
        start = clock()
        call()
        best, calls = min(best, clock() - start), calls + 1
    return best


if __name__ == "__main__":
    main()
