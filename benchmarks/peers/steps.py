"""Steps of every family of tasks: a pack of Graft's against a plain loop and the same loop under torch.compile.

`python -m benchmarks.peers --all`. A pack of `--lanes` trials (whole steps: data, gradient, clipping, AdamW) and one
plain nn.Module with torch's own attention kernel, fused AdamW and clipping on the same batch, which it is given and
need not draw (set complement draws it; both have BEMA). All are timed in turns, five each, by the processor time of one
thread; medians. GFLOP/s count the matrix products of the plain model, attention as if nothing were masked, so positions
that a native step leaves out count as done, so that a share may be over 1. There are two ceilings, both measured in
the same turns: a large float32 product of torch's, which reaches little of some cores, and the most that the core
multiplies and adds in registers. Bytes a lane: parameters, moments and averages, which a step holds twice. Trust
ratios to +-20 %.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.engine import KNOBS
from benchmarks.machine import processor
from benchmarks.peers.cases import CASES, Case
from benchmarks.peers.commands import ROOT
from benchmarks.peers.layered import plain_step
from benchmarks.peers.plain import PlainTrial
from benchmarks.peers.results import Results
from benchmarks.peers.set_complement import SetComplement
from spaces import plugins
from tests.support.trials import trial
from workers.data.tasks import Batch
from workers.engine.machine.process import prepare
from workers.engine.pack import Pack
from workers.engine.step import describe_step
from workers.numerics.native import library
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_leaves
from workers.training.recipe import Recipe, initial_state, layout_of

ROUNDS = 5
CEILING = 1024
"""Rows and columns of the product that gives the ceiling."""
PEAK_ROUNDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Row:
    """Milliseconds of a model's step in each way of making it, and what follows."""

    case: str
    plain: float
    compiled_over_plain: float | None
    """Plain over the same under torch.compile, in a process of their own; None: not run, or given up."""
    compile_limit: float | None
    """Seconds after which it was given up; None: not run."""
    pack: float
    over_plain: float
    gflops: float
    """Of the pack, per second."""
    plain_gflops: float
    ceiling_share: float
    """Of the pack's."""
    lane_bytes: int
    step: str
    lanes: int
    date: str
    processor: str
    torch: str
    load: float
    core_share: float | None = None
    """Of what the core multiplies and adds in registers; None: there is no compiler to measure it by."""

    def line(self) -> str:
        """One line of the table."""
        given_up = f"over {self.compile_limit:.0f} s" if self.compile_limit else "-"
        compiled = f"{self.compiled_over_plain:.2f}" if self.compiled_over_plain else given_up
        core = f"{self.core_share:.0%}" if self.core_share else "-"
        return (
            f"| {self.case} | {self.plain:.3g} | {compiled} | {self.pack:.3g} | {self.over_plain:.2f} | "
            f"{self.plain_gflops:.0f} | {self.gflops:.0f} | {self.ceiling_share:.0%} | {core} | {self.lane_bytes:,} | "
            f"{self.step} |"
        )


HEADER = (
    "| case | plain, ms a step | torch.compile over plain | pack, ms a lane and step | pack over plain | "
    "plain GFLOP/s | pack GFLOP/s | of torch's product | of the core | bytes a lane | step |\n" + "|---" * 11 + "|"
)


def compare(
    cases: Iterable[str],
    *,
    lanes: int,
    seconds: float,
    compile_limit: float,
    results: Results | None = None,
    budget: float = math.inf,
) -> None:
    """Measure these cases on one thread; prints a table, and one line of JSON.

    `compile_limit`: seconds for torch.compile and its steps, in a process of its own; 0: without. With `results` a case
    that is there is not measured again, each is added as soon as it is measured, and the table is of all of them.
    `budget`: no case is begun after so many seconds.
    """
    prepare()
    rows = {name: Row(**row) for name, row in results.read("steps").items()} if results else {}
    end = time.monotonic() + budget
    print(HEADER)
    for name in rows:
        print(rows[name].line())
    for name in cases:
        if name in rows or time.monotonic() > end:
            continue
        rows[name] = _measure(name, CASES[name], CASES[name].lanes or lanes, seconds, compile_limit)
        print(rows[name].line(), flush=True)
        if results:
            results.add("steps", name, asdict(rows[name]))
    print(json.dumps({"rows": [asdict(row) for row in rows.values()]}))


def compiled_seconds(name: str, seconds: float, limit: float) -> tuple[float, float] | None:
    """Processor seconds of a plain step and of the same under torch.compile; None: it took longer than the limit."""
    program = f"from benchmarks.peers.steps import time_compiled; time_compiled({name!r}, {seconds})"
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    finally:  # the compiler has processes of its own
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    plain, compiled = map(float, output.split()[-2:])
    return plain, compiled


def time_compiled(name: str, seconds: float) -> None:
    """Print both, as a process of its own."""
    prepare()
    recipe, batch = Recipe.of(CASES[name].config()), _batch(Recipe.of(CASES[name].config()), CASES[name])
    works = {"plain": plain_step(recipe, batch), "compiled": plain_step(recipe, batch, compiled=True)}
    cost = time_in_turns(works, seconds)
    print(cost["plain"], cost["compiled"])


def _measure(name: str, case: Case, lanes: int, seconds: float, compile_limit: float) -> Row:
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
    native = library("peak")
    operations = 0
    if native:
        operations = 2 * PEAK_ROUNDS * native.multiply_adds(ctypes.c_int64(1), ctypes.byref(ctypes.c_float()))
        works["core"] = lambda: native.multiply_adds(ctypes.c_int64(PEAK_ROUNDS), ctypes.byref(ctypes.c_float()))
    cost = time_in_turns(works, seconds)
    pack_seconds = cost["pack"] / lanes
    compiles = compile_limit > 0 and plugins.name_of(recipe.model) != "minimal"
    both = compiled_seconds(name, seconds, compile_limit) if compiles else None
    start = initial_state(recipe, layout_of(recipe), torch.zeros(layout_of(recipe).total, dtype=recipe.dtype))
    return Row(
        case=name,
        plain=1e3 * cost["plain"],
        compiled_over_plain=both[0] / both[1] if both else None,
        compile_limit=compile_limit if compiles else None,
        pack=1e3 * pack_seconds,
        over_plain=cost["plain"] / pack_seconds,
        gflops=flops / pack_seconds / 1e9,
        plain_gflops=flops / cost["plain"] / 1e9,
        ceiling_share=flops / pack_seconds / (2 * CEILING**3 / cost["ceiling"]),
        core_share=flops / pack_seconds / (operations / cost["core"]) if native else None,
        lane_bytes=sum(leaf.nbytes for leaf in tree_leaves(start)),
        step=describe_step(settings, "cpu"),
        lanes=lanes,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        processor=processor(),
        torch=torch.__version__,
        load=os.getloadavg()[0],
    )


def _plain(recipe: Recipe, case: Case) -> tuple[Callable[[], object], int]:
    """Return a step of the plain loop, and the floating-point operations of its matrix products."""
    if plugins.name_of(recipe.model) == "minimal":
        sizes = {name: case.model[name] for name in ("width", "key_width", "value_width")}
        problem = SetComplement(length=case.task["length"], vocabulary=case.task["vocabulary"], **sizes)
        rates = {f"model.{name}": case.model[name] for name in problem.dropout_sites if name in case.model}
        model = PlainTrial(problem, {**KNOBS, **rates}, seed=0, steps=10**9, device="cpu")
        step: Callable[[], object] = lambda: model.train(1)  # noqa: E731
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
    turns: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.thread_time()
            for _ in range(counts[name]):
                work()
            turns[name].append((time.thread_time() - start) / counts[name])
    return {name: statistics.median(times) for name, times in turns.items()}
