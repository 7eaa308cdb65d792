"""What padding shapes saves and costs: trials of Table 1 of paper 003 whose shapes differ, with padding and without.

    python -m benchmarks.shapes [--groups 50] [--trials 64] [--steps 200] [--batch 16] [--device cpu|cuda]

Recordings: the structures that the first trials of each of `groups` groups have, in packs of 2 lanes; what the first
step and validation take beyond the second ones, recordings for the groups before being kept. Search: `trials` trials,
each of another shape, trained for `steps` steps and validated twice, packed by structure on one worker, recordings
included. `CXX=none` in the environment turns the native step off. On a CPU seconds are those of the processor, as other
programs do not count there; on a GPU those of the clock. Prints a table, and one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch

import spaces
from benchmarks.machine import processor
from graft.plugins.families import families
from spaces.records import Trial
from workers.engine.machine.devices import default_width
from workers.engine.machine.process import prepare
from workers.engine.pack import Pack
from workers.numerics import native, tracing


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to train the same trials."""

    padded: bool
    structures_of_groups: int
    recording_seconds: float
    structures_of_trials: int
    search_seconds: float
    model_steps_per_second: float


TRIALS_OF_A_GROUP = 8
"""Enough to meet most of a group's four structures: each of two dropouts is off in half of the trials."""


def drawn(groups: int, each: int, pad: bool, given: argparse.Namespace) -> list[Trial]:
    """So many trials of each of so many groups of Table 1, cut to a short training."""
    cut = {
        "training.pad_shapes": str(pad).lower(),
        "training.steps": str(given.steps),
        "training.batch": str(given.batch),
        "training.validate_every": str(max(1, given.steps // 2)),
        "training.validation_batch": str(8 * given.batch),
    }
    space, uniform = spaces.load("set_complement", families(), cut), random.Random(0).random
    trials: list[Trial] = []
    for group in range(groups):
        draws = {draw.name: uniform() for draw in space.group_draws}
        first = group * space.search.group
        trials += [space.sample(first + n, lambda draw: draws.get(draw.name, uniform())) for n in range(each)]  # noqa: B023 - used at once
    return trials


def of_other_shapes(count: int, pad: bool, given: argparse.Namespace) -> list[Trial]:
    """Return the first trials whose shapes are all different."""
    trials: dict[str, Trial] = {}
    for trial in drawn(2 * count, 1, pad, given):
        sizes = trial.config["task"] | {
            size: trial.config["model"][size] for size in ("width", "key_width", "value_width")
        }
        trials.setdefault(str(sizes), trial)
    return list(trials.values())[:count]


def clock_of(device: str) -> Callable[[], float]:
    """Seconds of this thread's processor time, or of the clock once the device is done."""

    def finished() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return time.thread_time if device == "cpu" else finished


def recording_seconds(trials: Sequence[Trial], device: str) -> float:
    """Return what the first step and validation of each trial take beyond the second ones."""
    clock, total = clock_of(device), 0.0
    for trial in trials:
        pack = Pack(trial, width=2, device=device)
        pack.fill([trial])
        times = [clock()]
        for _ in range(2):
            pack.train(1)
            pack.evaluate([trial.number])
            times.append(clock())
        total += (times[1] - times[0]) - (times[2] - times[1])
    return total


def search_seconds(trials: Sequence[Trial], device: str) -> float:
    """Train all to their ends, a structure after the other, in packs as wide as its trials and the device allow."""
    clock, waiting = clock_of(device), defaultdict[str, list[Trial]](list)
    for trial in trials:
        waiting[trial.structure].append(trial)
    start = clock()
    for queue in waiting.values():
        pack = Pack(queue[0], width=min(len(queue), default_width(device)), device=device)
        while pack.running or queue:
            fitting = min(pack.free, len(queue))
            pack.fill(queue[:fitting])
            del queue[:fitting]
            pack.train(10**9)
    return clock() - start


def measured(pad: bool, given: argparse.Namespace) -> Row:
    groups = {trial.structure: trial for trial in drawn(given.groups, TRIALS_OF_A_GROUP, pad, given)}
    trials = of_other_shapes(given.trials, pad, given)
    recording = recording_seconds(list(groups.values()), given.device)
    tracing._RECORDINGS.clear()  # pyright: ignore[reportPrivateUsage] - the search starts with none
    seconds = search_seconds(trials, given.device)
    return Row(
        padded=pad,
        structures_of_groups=len(groups),
        recording_seconds=recording,
        structures_of_trials=len({trial.structure for trial in trials}),
        search_seconds=seconds,
        model_steps_per_second=len(trials) * given.steps / seconds,
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Measure without padding, then with it; recordings of one are of no use to the other."""
    given = arguments()
    prepare()
    step = "native" if given.device == "cpu" and native.available() else "traced"
    device = processor() if given.device == "cpu" else torch.cuda.get_device_name(given.device)
    print(f"{device}; {step} step; {given.trials} trials x {given.steps} steps, batch {given.batch}")
    print(f"{'shapes':<9}{'structures':>11}{'recording':>12}{'structures':>13}{'search':>10}{'model-steps/s':>16}")
    rows: list[Row] = []
    for pad in (False, True):
        row = measured(pad, given)
        rows.append(row)
        print(
            f"{'padded' if pad else 'exact':<9}{row.structures_of_groups:>11}{row.recording_seconds:>10.1f} s"
            f"{row.structures_of_trials:>13}{row.search_seconds:>8.1f} s{row.model_steps_per_second:>16,.0f}",
            flush=True,
        )
    facts = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "device": device, "step": step, **vars(given)}
    print(json.dumps({**facts, "load": os.getloadavg()[0], "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
