"""Ordinary modules of torch as models of one's own: a pack against a plain loop with the same module.

    python -m benchmarks.modules [MODULE ...] [--width 32] [--lanes 8]

MODULE is a name of tests/support/ordinary_modules.py. The task is language with 32 tokens a sequence and 32 sequences
a batch. The loop takes the module as it is: fused AdamW, clipping, the same data. Processor time of one thread, 9 turns
of pack and loop; medians.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from graft.plugins.collecting import plugins_asked_for
from graft.plugins.families import families
from spaces import plugins
from spaces.plugins.active import using
from spaces.program import complete_config
from spaces.records import Trial
from tests.support.ordinary_modules import write
from workers.data.tasks import Task
from workers.engine.machine.process import flush_subnormals, prepare
from workers.engine.speed.timing import make_pack_of_copies
from workers.networks.models import Model
from workers.networks.modules import ModuleModel
from workers.numerics.randomness import Purpose, Streams

BATCH, TURNS = 32, 9


def trial_of(name: str, width: int) -> Trial:
    """Return a trial of the module's model that never reports."""
    training = {"steps": 10**6, "batch": BATCH, "validate_every": 10**6, "validation_batch": 8, "dtype": "float32"}
    config = {
        "task": {"name": "language", "length": 32, "rare": 1},
        "model": {"name": f"own_{name}", "width": width},
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "averaging": {"name": "none"},
        "learning": {"name": "weights"},
        "training": {**training, "diagnostics": False, "pad_shapes": False},
    }
    whole, structure = complete_config(config, families())
    return Trial(number=0, group=0, seed=17, draws={}, params={}, config=whole, structure=structure)


def plain_loop(trial: Trial) -> Callable[[int], None]:
    """Make some steps of the module alone, by torch's own means."""
    model, task = plugins.build(Model, trial.config["model"]), plugins.build(Task, trial.config["task"])
    assert isinstance(model, ModuleModel), "write makes no other"
    net = model.module(task)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    seeds, made = torch.tensor([trial.seed]), 0

    def train(steps: int) -> None:
        nonlocal made
        for _ in range(steps):
            at = torch.tensor([made])
            made += 1
            batch = task.training(Streams.of(seeds, Purpose.TRAINING_DATA, at), BATCH, at)
            optimizer.zero_grad(set_to_none=True)
            cross_entropy(net(batch["inputs"][0]).flatten(0, 1), batch["targets"][0].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()

    return train


def compare(name: str, width: int, lanes: int) -> tuple[float, float]:
    """Seconds of a model-step in the pack and in the loop."""

    def seconds(train: Callable[[int], object], steps: int) -> float:
        start = time.thread_time()
        train(steps)
        return (time.thread_time() - start) / steps

    with tempfile.TemporaryDirectory() as folder, using(plugins_asked_for([str(write(Path(folder), name))])):
        trial = trial_of(name, width)
        pack, loop = make_pack_of_copies(trial, lanes, "cpu"), plain_loop(trial)
        pack.train(4)
        loop(4)
        turns = [(seconds(pack.train, 3) / lanes, seconds(loop, 6)) for _ in range(TURNS)]
    packed, alone = (statistics.median(column) for column in zip(*turns, strict=True))
    return packed, alone


def main(arguments: list[str] | None = None) -> None:
    """Print a row for each module."""
    parser = ArgumentParser(prog="python -m benchmarks.modules", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=["gated_recurrence", "mixer", "transformer_encoder"])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lanes", type=int, default=8)
    asked = parser.parse_args(arguments)
    prepare()
    with flush_subnormals():
        for name in asked.modules:
            packed, alone = compare(name, asked.width, asked.lanes)
            print(
                f"{name:<24} pack {packed * 1e3:6.2f} ms, loop {alone * 1e3:6.2f} ms, ratio {alone / packed:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
