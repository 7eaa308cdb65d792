"""What bounds models of width 128 to 512: packs in float32 and with bfloat16 products, a plain loop and the peak.

    python -m benchmarks.wide [--widths 128,256,512] [--lanes 2] [--seconds 2]

A transformer of two layers reads 64 characters, 8 sequences a step. Processor time of one thread, each row's ways in
turns, the medians; FLOPs as torch counts them, forward and back; the peak is that of torch's product of two square
matrices of 1,024 in float32 on the same core, in the same run. The plain loop is the model's own torch code, run
eagerly with autograd, clipping and fused AdamW.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.machine import processor
from benchmarks.peers.cases import letters_file
from benchmarks.scorers import plain_loop, time_in_turns
from spaces.records import Trial
from tests.support.trials import config, trial
from workers.engine.machine.process import flush_subnormals, prepare
from workers.engine.pack import Pack
from workers.engine.step import describe_step
from workers.numerics import native

_FOREVER = 10**9
_SIZE = 1024


def main() -> None:
    """Print a row for each width."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--widths", default="128,256,512")
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0, help="about, of each way in a row")
    options = parser.parse_args()
    prepare()
    print(f"{processor()}, steps compiled for {native.instruction_set()}, torch {torch.__version__}")
    print("| width | step | ms a lane and step | over the plain loop | GFLOP/s | of the peak |\n" + "|---" * 6 + "|")
    with flush_subnormals():
        for width in map(int, options.widths.split(",")):
            for line in measure(width, options.lanes, options.seconds):
                print(line, flush=True)


def measure(width: int, lanes: int, seconds: float) -> list[str]:
    """Return the rows of a width: float32, bfloat16 products, the plain loop."""
    trials = {"float32": trial_of(width), "bfloat16 products": trial_of(width, autocast="bfloat16")}
    packs = {name: pack_of(sample, lanes) for name, sample in trials.items()}
    plain = plain_loop({**trials["float32"].config})
    with FlopCounterMode(display=False) as counter:
        plain()
    flops = counter.get_total_flops()
    square = torch.randn(_SIZE, _SIZE)
    ways: dict[str, Any] = {name: lambda pack=pack: pack.train(1) for name, pack in packs.items()}
    cost = time_in_turns({**ways, "plain": plain, "peak": lambda: square @ square}, seconds)
    peak = 2 * _SIZE**3 / cost["peak"]
    rows: list[str] = []
    for name, total in cost.items():
        if name == "peak":
            continue
        time = total / lanes if name in packs else total
        kind = "the plain loop" if name == "plain" else f"{name}: {describe_step(trials[name].config, 'cpu')[:9]}"
        rows.append(
            f"| {width} | {kind} | {1e3 * time:.3g} | {cost['plain'] / time:.2f} | {flops / time / 1e9:.0f} "
            f"| {flops / time / peak:.0%} |"
        )
    return rows


def trial_of(width: int, **training: Any) -> Trial:
    """Return a trial that never ends and never validates."""
    settings = config(steps=_FOREVER, every=_FOREVER, dtype="float32", batch=8, averaging={"name": "none"})
    task = {
        "name": "language",
        "corpus": {"name": "file", "path": letters_file()},
        "tokenizer": {"name": "character"},
        "length": 64,
    }
    model = {"name": "transformer", "width": width, "depth": 2, "heads": 4}
    return trial(0, {**settings, "task": task, "model": model, "training": {**settings["training"], **training}})


def pack_of(sample: Trial, lanes: int) -> Pack:
    """Return a pack that is full."""
    pack = Pack(sample, width=lanes)
    pack.fill([replace(sample, number=number) for number in range(lanes)])
    return pack


if __name__ == "__main__":
    main()
