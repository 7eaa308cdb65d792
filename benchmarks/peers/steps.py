"""Steps of every family of tasks: a pack of Graft's against a plain loop and the same loop under torch.compile.

`python -m benchmarks.peers --all`. A pack of `--lanes` trials (whole steps: data, gradient, clipping, AdamW) and one
plain nn.Module with torch's own attention kernel, fused AdamW and clipping on the same batch, which it is given and
need not draw (set complement draws it, and has BEMA). All are timed in turns, five each, by the processor time of one
thread; medians. GFLOP/s count the matrix products of the plain model, attention as if nothing were masked, so positions
that a native step leaves out count as done; the ceiling is a large float32 product of torch's in the same run. Bytes a
lane: parameters, moments and averages, which a step holds twice. Trust ratios to +-20 %.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine import KNOBS
from benchmarks.machine import processor
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.layered import plain_step
from benchmarks.peers.plain import PlainTrial
from benchmarks.peers.set_complement import SetComplement
from spaces import plugins
from tests.trials import trial
from workers.data.tasks import Batch
from workers.engine.pack import Pack
from workers.engine.process import prepare
from workers.engine.step import describe_step
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_leaves
from workers.training.recipe import Recipe, initial_state, layout_of

ROUNDS = 5
CEILING = 1024
"""Rows and columns of the product that gives the ceiling."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Milliseconds of a model's step in each way of making it, and what follows."""

    case: str
    plain: float
    compiled: float | None
    """Under torch.compile."""
    pack: float
    over_plain: float
    gflops: float
    """Of the pack, per second."""
    plain_gflops: float
    ceiling_share: float
    """Of the pack's."""
    lane_bytes: int
    step: str

    def line(self) -> str:
        """One line of the table."""
        compiled = f"{self.compiled:.3g}" if self.compiled else "-"
        return (
            f"| {self.case} | {self.plain:.3g} | {compiled} | {self.pack:.3g} | {self.over_plain:.2f} | "
            f"{self.plain_gflops:.0f} | {self.gflops:.0f} | {self.ceiling_share:.0%} | {self.lane_bytes:,} | "
            f"{self.step} |"
        )


HEADER = (
    "| case | plain, ms a step | torch.compile | pack, ms a lane and step | pack over plain | plain GFLOP/s | pack "
    "GFLOP/s | of the ceiling | bytes a lane | step |\n|---|---|---|---|---|---|---|---|---|---|"
)


def compare(cases: Iterable[str], *, lanes: int, seconds: float, compiled: bool) -> None:
    """Measure these cases on one thread; prints a table, and one line of JSON."""
    prepare()
    print(HEADER)
    rows: list[Row] = []
    for name in cases:
        rows.append(_measure(name, CASES[name], lanes, seconds, compiled))
        print(rows[-1].line(), flush=True)
    machine = {"processor": processor(), "torch": torch.__version__, "load": os.getloadavg()[0]}
    date = time.strftime("%Y-%m-%d", time.gmtime())
    print(json.dumps({"date": date, "machine": machine, "lanes": lanes, "rows": [asdict(row) for row in rows]}))


def _measure(name: str, case: Case, lanes: int, seconds: float, compiled: bool) -> Row:
    settings = case.config()
    recipe, trials = Recipe.of(settings), [trial(number, settings) for number in range(lanes)]
    pack = Pack(trials[0], width=lanes)
    pack.fill(trials)
    square = torch.ones(CEILING, CEILING)
    plain, flops = _plain(recipe, case)
    works: dict[str, Callable[[], object]] = {
        "plain": plain,
        "pack": lambda: pack.train(1),
        "ceiling": lambda: square @ square,
    }
    if compiled and plugins.name_of(recipe.model) != "minimal":
        works["compiled"] = plain_step(recipe, _batch(recipe, case), compiled=True)
    cost = time_in_turns(works, seconds)
    pack_seconds = cost["pack"] / lanes
    start = initial_state(recipe, layout_of(recipe), torch.zeros(layout_of(recipe).total, dtype=recipe.dtype))
    return Row(
        case=name,
        plain=1e3 * cost["plain"],
        compiled=1e3 * cost["compiled"] if "compiled" in cost else None,
        pack=1e3 * pack_seconds,
        over_plain=cost["plain"] / pack_seconds,
        gflops=flops / pack_seconds / 1e9,
        plain_gflops=flops / cost["plain"] / 1e9,
        ceiling_share=flops / pack_seconds / (2 * CEILING**3 / cost["ceiling"]),
        lane_bytes=sum(leaf.nbytes for leaf in tree_leaves(start)),
        step=describe_step(settings, "cpu"),
    )


def _plain(recipe: Recipe, case: Case) -> tuple[Callable[[], object], int]:
    """A step of the plain loop, and the floating-point operations of its matrix products."""
    if plugins.name_of(recipe.model) == "minimal":
        sizes = {name: case.model[name] for name in ("width", "key_width", "value_width")}
        problem = SetComplement(length=case.task["length"], vocabulary=case.task["vocabulary"], **sizes)
        rates = {f"model.{name}": case.model[name] for name in problem.dropout_sites if name in case.model}
        one = PlainTrial(problem, {**KNOBS, **rates}, seed=0, steps=10**9, device="cpu")
        step: Callable[[], object] = lambda: one.train(1)  # noqa: E731
    else:
        step = plain_step(recipe, _batch(recipe, case))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step()
    return step, counter.get_total_flops()


def _batch(recipe: Recipe, case: Case) -> Batch:
    zero = torch.zeros(1, dtype=torch.int64)
    drawn = recipe.task.training(Streams.of(zero, Purpose.TRAINING_DATA, zero), case.batch, zero)
    return {name: tensor[0] for name, tensor in drawn.items()}


def time_in_turns(works: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Processor seconds of a call of each, the median of five turns."""
    counts: dict[str, int] = {}
    for name, work in works.items():
        work()
        start = time.thread_time()
        work()
        counts[name] = max(1, int(seconds / ROUNDS / max(time.thread_time() - start, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.thread_time()
            for _ in range(counts[name]):
                work()
            found[name].append((time.thread_time() - start) / counts[name])
    return {name: statistics.median(times) for name, times in found.items()}
