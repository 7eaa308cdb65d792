"""What a checkpoint of a pack costs, to write and to go on from, beside a step of training.

    python -m benchmarks.checkpoints [--spaces quick/set_complement,quick/add] [--lanes 32] [--repeats 5]

Medians. Written to a folder on the disk where it is run, flushed to it; read and hashed once for all lanes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from graft.plugins.families import families
from spaces import load
from spaces.records import Trial
from workers.engine.checkpoints import Archive
from workers.engine.machine.process import prepare
from workers.engine.pack import Pack

STEPS = 3
_MILLISECONDS = 1000


def milliseconds(act: Callable[[], object], repeats: int) -> float:
    """Return the median of several times."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return _MILLISECONDS * statistics.median(times)


def placed(trials: list[Trial], archive: Archive) -> Pack:
    """Return a new pack of the trials."""
    pack = Pack(trials[0], width=len(trials), archive=archive)
    pack.fill(trials)
    return pack


def measured(name: str, lanes: int, repeats: int) -> str:
    """Return a line of the table."""
    trial = load(name, families()).sample(0, lambda _: 0.5)
    trials = [replace(trial, number=number, seed=trial.seed + number) for number in range(lanes)]
    with tempfile.TemporaryDirectory() as folder:
        archive = Archive(folder, "study")
        pack = placed(trials, archive)
        pack.train(STEPS)
        step = milliseconds(lambda: pack.train(1), STEPS * repeats)
        snapshot = pack.snapshot()
        assert snapshot, "it has trained"
        write = milliseconds(lambda: archive.write("worker", snapshot), repeats)
        [first, *_] = written = archive.write("worker", snapshot)
        read = milliseconds(lambda: archive.read(first.path, first.sha256), repeats)
        resumed = [replace(copy, checkpoints=(at,)) for copy, at in zip(trials, written, strict=True)]
        again = milliseconds(lambda: placed(resumed, archive), repeats)
        anew = milliseconds(lambda: placed(trials, archive), repeats)
        size = Path(first.path).stat().st_size / 1e6
    return f"{name:<22} {size:>8.2f} {step:>8.1f} {write:>9.1f} {read:>8.1f} {again:>14.1f} {anew:>14.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spaces", default="quick/set_complement,set_complement,quick/add")
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    prepare()
    print(f"{'space':<22} {'MB':>8} {'step':>8} {'write':>9} {'read':>8} {'begin from it':>14} {'begin anew':>14}")
    for name in options.spaces.split(","):
        print(measured(name, options.lanes, options.repeats), flush=True)


if __name__ == "__main__":
    main()
