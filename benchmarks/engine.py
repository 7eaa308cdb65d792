"""Model-steps per second of one worker's pack on one device, against the device and against one model at a time.

    python -m benchmarks.engine [--device cpu|cuda] [--lanes 2,8,32,128] [--shapes small,large]
                                [--dropout off,residual,both,token] [--scorers softmax] [--optimizers adamw]
                                [--seconds 2]

Set complement, batch 128, clipping, linear schedule, BEMA, float32, training alone. A CPU's worker has one thread, and
so do the ceilings. Needs torch and numpy alone. Prints a table, and one line of JSON.

FLOP/s count the matrix products of plain PyTorch's forward and backward pass (`benchmarks.peers.plain`, 2 per multiply
and add): useful work, whatever the engine does instead. So products that the engine saves, by tables over tokens, count
as done, and its one-hot products do not count.

Bytes are an estimate for float32 if nothing stayed in a cache and no operation were fused with another:
- 4 x 10 P: P parameters, both moments and the average are read and written, the gradient written and read;
- 4 x 5 A: A activations are written and read going forward and read going back, their gradients written and read, with
  A = N s (4 d + 2 d_k + d_v + 2 s + 2 v): stream, norm, rows and mixture; query, key and value; attention logits and
  weights; logits and probabilities;
- 16 N s for tokens and targets, and 3 N s d for each mask.
More bytes/s than the ceiling mean that caches and fusion save memory traffic.

The ceilings: a large float32 matrix product, a large triad a = b + 2 c; a bfloat16 product for information.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.machine import processor
from benchmarks.options import numbers, words_of
from benchmarks.peers.plain import PlainTrial
from benchmarks.peers.set_complement import SetComplement
from spaces import plugins
from spaces.records import Trial
from tests.support.trials import config, trial
from workers.engine.machine.process import prepare
from workers.engine.speed.timing import model_steps_per_second
from workers.networks.scorers import Scorer
from workers.training.optimizers import Optimizer

FOREVER = 10**9
SHAPES = {
    "small": SetComplement(length=4, vocabulary=12, width=22, key_width=10, value_width=16),
    "large": SetComplement(length=8, vocabulary=17, width=32, key_width=16, value_width=24),
}
DROPOUT: dict[str, dict[str, Any]] = {
    "off": {},
    "residual": {"residual_dropout": 0.1},
    "both": {"embedding_dropout": 0.1, "residual_dropout": 0.1},
    "token": {"embedding_dropout": 0.1, "residual_dropout": 0.1, "dropout_unit": "token"},
}
"""Sites where dropout is on, of every occurrence of a token, or with one mask for all occurrences; plain PyTorch drops
occurrences in either case."""
KNOBS = {
    "optimizer.learning_rate": 1e-3,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.weight_decay": 0.01,
    "optimizer.epsilon": 1e-8,
    "optimizer.clip_norm": 1.0,
    "optimizer.schedule.warmup": 10,
    "optimizer.schedule.end_multiplier": 0.1,
    "averaging.rho": 10.0,
    "averaging.kappa": 0.5,
    "averaging.eta": 0.2,
}


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What the device does per second."""

    float32_flops: float
    bfloat16_flops: float
    bytes: float


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained."""

    shape: str
    dropout: str
    scorer: str
    optimizer: str
    lanes: int

    @property
    def problem(self) -> SetComplement:
        return SHAPES[self.shape]

    def trial(self) -> Trial:
        fixed = self.problem.fixed()
        settings = config(
            steps=FOREVER,
            every=FOREVER,
            batch=self.problem.batch,
            validation_batch=self.problem.batch,
            dtype="float32",
            model={**fixed["model"], **DROPOUT[self.dropout], "scorer": {"name": self.scorer}},
            optimizer={"name": self.optimizer},
        )
        return trial(0, {**settings, "task": fixed["task"]})


def seconds_of_calls(work: Callable[[], object], device: str, seconds: float) -> list[float]:
    """Time of each call, after one to warm up."""
    on_cpu = torch.device(device).type == "cpu"
    synchronise = (lambda: None) if on_cpu else (lambda: torch.cuda.synchronize(device))
    work()
    synchronise()
    taken: list[float] = []
    while sum(taken) < seconds or not taken:
        start = time.perf_counter()
        work()
        synchronise()
        taken.append(time.perf_counter() - start)
    return taken


def ceilings(device: str, seconds: float) -> Ceilings:
    """Return the rates of the fastest call, on matrices and vectors far larger than the caches of a core."""
    size, length = (1024, 1 << 24) if torch.device(device).type == "cpu" else (8192, 1 << 28)

    def product(dtype: torch.dtype) -> float:
        left = torch.ones(size, size, device=device, dtype=dtype)
        return 2 * size**3 / min(seconds_of_calls(lambda: left @ left, device, seconds))

    a, b, c = torch.ones(3, length, device=device)
    triad = min(seconds_of_calls(lambda: torch.add(b, c, alpha=2, out=a), device, seconds))
    return Ceilings(
        float32_flops=product(torch.float32), bfloat16_flops=product(torch.bfloat16), bytes=3 * 4 * length / triad
    )


def flops_per_step(problem: SetComplement) -> int:
    """Of the matrix products of one optimizer step of one model, forward and backward."""
    model, batch = problem.model({}), problem.training("cpu")
    with FlopCounterMode(display=False) as counter:
        problem.loss(model(batch[0]), batch).backward()
    return counter.get_total_flops()


def bytes_per_step(problem: SetComplement, dropout: str) -> int:
    """Return the formula at the top of this module."""
    parameters = sum(p.numel() for p in problem.model({}).parameters())
    tokens = problem.batch * problem.length
    widths = 4 * problem.width + 2 * problem.key_width + problem.value_width
    activations = tokens * (widths + 2 * problem.length + 2 * problem.vocabulary)
    masks = 3 * tokens * problem.width * len(occurrences_of(dropout))
    return 4 * 10 * parameters + 4 * 5 * activations + 16 * tokens + masks


def occurrences_of(dropout: str) -> list[str]:
    """Return the sites with a mask for each occurrence of a token."""
    return [] if dropout == "token" else list(DROPOUT[dropout])


def single_rate(problem: SetComplement, dropout: str, device: str, seconds: float) -> float:
    """Return steps per second of one model in plain PyTorch."""
    rates = {f"model.{site}": rate for site, rate in DROPOUT[dropout].items() if isinstance(rate, float)}
    knobs = {**KNOBS, **rates}
    model = PlainTrial(problem, knobs, seed=0, steps=FOREVER, device=device)
    return 10 / statistics.mean(seconds_of_calls(lambda: model.train(10), device, seconds))


def cases(given: argparse.Namespace) -> list[Case]:
    """Every combination that was asked for."""
    choices = itertools.product(given.shapes, given.dropout, given.scorers, given.optimizers, given.lanes)
    return [
        Case(shape=shape, dropout=dropout, scorer=scorer, optimizer=optimizer, lanes=lanes)
        for shape, dropout, scorer, optimizer, lanes in choices
    ]


def result(case: Case, rate: float, single: float, limits: Ceilings) -> dict[str, str | float]:
    """Return a pack's rate, and what it is of the device's ceilings and over one model in plain PyTorch."""
    flops = rate * flops_per_step(case.problem)
    traffic = rate * bytes_per_step(case.problem, case.dropout)
    return {
        **asdict(case),
        "model_steps_per_second": round(rate, 1),
        "flops": flops,
        "flops_share": flops / limits.float32_flops,
        "bytes": traffic,
        "bytes_share": traffic / limits.bytes,
        "single": round(single, 1),
        "over_single": rate / single,
    }


HEADER = (
    f"{'shape':<8}{'dropout':<10}{'scorer':<10}{'optimizer':<11}{'lanes':>6}{'model-steps/s':>15}"
    f"{'GFLOP/s':>9}{'share':>8}{'GB/s':>8}{'share':>7}{'over one model at':>19}"
)


def line(row: Mapping[str, Any]) -> str:
    """Return a row of the table."""
    return (
        f"{row['shape']:<8}{row['dropout']:<10}{row['scorer']:<10}{row['optimizer']:<11}{row['lanes']:>6}"
        f"{row['model_steps_per_second']:>15,.0f}{row['flops'] / 1e9:>9,.1f}{row['flops_share']:>8.2%}"
        f"{row['bytes'] / 1e9:>8,.1f}{row['bytes_share']:>7.0%}{row['over_single']:>9.1f}x{row['single']:>7,.0f}/s"
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--lanes", type=numbers, default=[2, 8, 32, 128])
    parser.add_argument("--shapes", type=words_of(SHAPES), default=list(SHAPES), help=f"out of {', '.join(SHAPES)}")
    parser.add_argument("--dropout", type=words_of(DROPOUT), default=list(DROPOUT), help=f"out of {', '.join(DROPOUT)}")
    parser.add_argument(
        "--scorers", type=words_of(plugins.names(Scorer)), default=["softmax"], help="one model alone has softmax"
    )
    parser.add_argument(
        "--optimizers", type=words_of(plugins.names(Optimizer)), default=["adamw"], help="one model alone has AdamW"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    return parser.parse_args()


def main() -> None:
    """Measure the ceilings, then each case, one model alone first."""
    given = arguments()
    prepare()
    limits = ceilings(given.device, given.seconds)
    print(
        f"{device_name(given.device)}: float32 {limits.float32_flops / 1e9:,.0f} GFLOP/s, "
        f"bfloat16 {limits.bfloat16_flops / 1e9:,.0f} GFLOP/s, memory {limits.bytes / 1e9:,.1f} GB/s"
    )
    print(HEADER)
    singles: dict[tuple[str, str], float] = {}
    rows: list[dict[str, str | float]] = []
    for case in cases(given):
        key = case.shape, case.dropout
        if key not in singles:
            singles[key] = single_rate(case.problem, case.dropout, given.device, given.seconds)
        rate = model_steps_per_second(
            case.trial(), width=case.lanes, device=given.device, seconds=given.seconds, clock=time.perf_counter
        )
        rows.append(result(case, rate, singles[key], limits))
        print(line(rows[-1]), flush=True)
    date = time.strftime("%Y-%m-%d", time.gmtime())
    machine = {"device": device_name(given.device), "torch": torch.__version__, "load": os.getloadavg()[0]}
    print(json.dumps({"date": date, **machine, "ceilings": asdict(limits), "rows": rows}))


def device_name(device: str) -> str:
    """As its maker calls it, where the system tells."""
    return f"one core of {processor()}" if device == "cpu" else torch.cuda.get_device_name(device)


if __name__ == "__main__":
    main()
