"""The steps of another checkout and of this one in turns: whether a change has made a family of tasks slower.

    python -m benchmarks.peers.before FOLDER [--cases "quick/add;quick/every"] [--lanes 8] [--rounds 4] [--bursts 11]

Two processes of one thread, one in each checkout, train a pack of each case (benchmarks/peers/cases.py). They take
turns; printed is, of each case, the median over the rounds of the ratio of the medians of bursts, in processor time,
and its range: above 1, this checkout is slower.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.cases import CASES

_SECONDS = 0.15
"""Processor time of a burst, about."""
_TRAINER = """
import importlib, json, sys, time
import torch
torch.set_num_threads(1)
from workers.engine.pack import Pack
for name in ("tests.support.trials", "tests.trials"):
    try:
        trial = importlib.import_module(name).trial
        break
    except ImportError:
        pass
for line in sys.stdin:
    order = json.loads(line)
    try:
        if "config" in order:
            trials = [trial(number, order["config"]) for number in range(order["lanes"])]
            pack = Pack(trials[0], width=order["lanes"])
            pack.fill(trials)
            pack.train(2)
            start = time.process_time()
            pack.train(2)
            answer = (time.process_time() - start) / 2
        else:
            start = time.process_time()
            pack.train(order["steps"])
            answer = (time.process_time() - start) / order["steps"]
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print("answer", json.dumps(answer), flush=True)
"""


class _Trainer:
    """A process that trains packs with a checkout's code."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TRAINER],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **order: Any) -> Any:
        """Return seconds of processor time a step, or what went wrong."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError("the process ended")

    def end(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the other checkout")
    parser.add_argument("--cases", default=";".join(CASES))
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--bursts", type=int, default=11)
    options = parser.parse_args()
    print("| case | new over old | ms a step |\n|---|---|---|")
    for name in options.cases.split(";"):
        case = CASES[name]
        trainers = [_Trainer(Path.cwd()), _Trainer(options.folder.resolve())]
        try:
            lanes = case.lanes or options.lanes
            seconds = [trainer.ask(config=case.config(), lanes=lanes) for trainer in trainers]
            if wrong := [answer for answer in seconds if isinstance(answer, str)]:
                print(f"| {name} | {wrong[0][:100]} | |", flush=True)
                continue
            steps = [max(1, round(_SECONDS / answer)) for answer in seconds]
            ratios: list[float] = []
            medians: list[float] = []
            for _ in range(options.rounds):
                new, old = (
                    statistics.median(trainer.ask(steps=count) for _ in range(options.bursts))
                    for trainer, count in zip(trainers, steps, strict=True)
                )
                ratios.append(new / old)
                medians.append(new)
            low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
            print(f"| {name} | {middle:.3f} ({low:.3f} to {high:.3f}) | {1000 * min(medians):.3g} |", flush=True)
        finally:
            for trainer in trainers:
                trainer.end()


if __name__ == "__main__":
    main()
