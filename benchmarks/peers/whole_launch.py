"""What a launch costs beside its training.

`python -m benchmarks.peers --end-to-end SPACE` runs `search launch` on a packaged space in a process of its own, from
the start of Python to the last row, and then times a pack of such trials, validations included, for as many steps. Both
by the clock and by the processor: a worker's share of the processor seconds is what the clock of an idle machine shows.
"""

from __future__ import annotations

import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import processor
from benchmarks.peers.commands import seconds_of
from benchmarks.peers.graft_peer import Graft, launch_command
from graft.plugins.families import families
from spaces import load
from workers.engine.machine.devices import default_width
from workers.engine.machine.process import prepare
from workers.engine.speed.timing import model_steps_per_second

SHARE, START = 1.15, 5.0
"""A launch should take at most this many times the steady time, and seconds more."""


def measure_launch(space: str, *, trials: int, steps: int, workers: int) -> dict[str, Any]:
    """Seconds of the launch, of its training alone, and what would be allowed; printed as a line of JSON, too."""
    before = _children()
    with tempfile.TemporaryDirectory(prefix="launch-", ignore_cleanup_errors=True) as name:
        command = launch_command(space, workers, "--trials", str(trials), "--steps", str(steps))
        seconds = seconds_of(command, Path(name))
        ended = Graft().results(Path(name))
    cpu = (_children() - before) / workers
    prepare()
    overrides = {"training.steps": str(steps), "search.trials": str(trials)}
    trial = load(space, families(), overrides).sample(0, lambda draw: random.Random(draw.name).random())
    width = min(default_width("cpu"), max(2, trials // workers))
    start, processor_start = time.perf_counter(), time.process_time()
    rate = model_steps_per_second(trial, width=width, device="cpu", seconds=10, clock=time.perf_counter)
    busy = (time.process_time() - processor_start) / (time.perf_counter() - start)
    made = sum(run.steps for run in ended)
    steady = made / rate / workers
    figures = {
        "space": space,
        "trials": len(ended),
        "model_steps": made,
        "seconds": seconds,
        "processor_seconds_a_worker": cpu,
        "from_first_start_to_last_end": max(run.finished for run in ended) - min(run.started for run in ended),
        "steady_seconds": steady,
        "steady_processor_seconds": steady * busy,
        "allowed_seconds": SHARE * steady + START,
        "allowed_processor_seconds": SHARE * steady * busy + START,
        "machine": {"processor": processor(), "torch": torch.__version__, "load": os.getloadavg()[0]},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    figures = {key: round(value, 2) if isinstance(value, float) else value for key, value in figures.items()}
    print(json.dumps(figures), flush=True)
    return figures


def _children() -> float:
    """Processor seconds of the processes that have ended so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
