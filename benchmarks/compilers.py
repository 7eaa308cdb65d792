"""Packs by compilers of whatever one writes, beside Graft's: JAX, and torch.func.vmap under torch.compile.

    python -m benchmarks.compilers [CASE ...] [--lanes 8] [--seconds 2] [--limit 300] [--ways graft,vmap,map,compile]
                                   [--isa avx2]

Each way in a process of its own on one core, by its processor time: a step of all lanes, the fastest of several calls
(of 20 steps in JAX), none of them compiling. `compile` takes Graft's own torch code; JAX has the same models written in
JAX, whose losses are held against Graft's first. Both have AdamW and clipping, and batches that they need not draw;
Graft's pack draws its own. `--limit`: seconds after which a way is given up. `--isa`: the vector instructions that all
of them are kept to. JAX: `pip install jax`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.compiled import compiled_step, jax_seconds, start_of
from benchmarks.machine import processor
from benchmarks.peers.commands import ROOT
from benchmarks.scorers import ISA, config_of, pack_of
from graft.plugins.collecting import plugins_asked_for
from spaces.plugins.active import using
from tests.support.outside_parts import write_parts
from workers.engine.machine.process import flush_subnormals, prepare
from workers.engine.step import describe_step
from workers.numerics import native
from workers.training.recipe import Recipe

NAMES = {
    "set complement": ("set complement, no dropout", "softmax"),
    "add_mod": ("quick/add_mod", "softmax"),
    "language": ("quick/language", "softmax"),
    "othello": ("quick/othello", "softmax"),
    "every, entmax": ("quick/every with entmax", "entmax"),
    "every, own scorer": ("quick/every", "bent"),
}
"""Name -> case of benchmarks.peers.cases, scorer."""
WAYS = ("graft", "vmap", "map", "compile")


def main() -> None:
    """Print a row for each case."""
    summary = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compilers", description=summary)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(NAMES)}; without any, all")
    parser.add_argument("--lanes", type=int, default=8, help="of set complement four times as many")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--isa", choices=ISA)
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if unknown := {*asked.cases} - {*NAMES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    if asked.isa and os.environ.get("ATEN_CPU_CAPABILITY") != ISA[asked.isa]["ATEN_CPU_CAPABILITY"]:
        command = [sys.executable, "-m", "benchmarks.compilers", *sys.argv[1:]]  # torch reads this once, as it starts
        raise SystemExit(subprocess.run(command, env={**os.environ, **ISA[asked.isa]}).returncode)
    if asked.one:
        print(measure(asked.cases[0], asked.one, asked.lanes, asked.seconds))
        return
    ways = [way for way in asked.ways.split(",") if way not in ("vmap", "map") or importlib.util.find_spec("jax")]
    print(f"{processor()}, steps compiled for {native.instruction_set()}, torch {torch.__version__}")
    print(
        "| case | lanes | step | " + " | ".join(f"{way}, ms a model-step" for way in ways) + " | Graft over the best |"
    )
    print("|---" * (len(ways) + 4) + "|")
    for case in asked.cases or NAMES:
        lanes = asked.lanes * (4 if case == "set complement" else 1)
        costs = {way: in_process(case, way, lanes, asked.seconds, asked.limit) for way in ways}
        others = [cost for way, cost in costs.items() if way != "graft" and cost]
        mine = costs.get("graft")
        ratio = f"{min(others) / mine:.1f}" if others and mine else "-"
        cells = [f"{1e3 * cost / lanes:.3g}" if cost else f"over {asked.limit:.0f} s" for cost in costs.values()]
        print(f"| {case} | {lanes} | {step_of_case(case)} | {' | '.join(cells)} | {ratio} |", flush=True)


def in_process(case: str, way: str, lanes: int, seconds: float, limit: float) -> float | None:
    """Return processor seconds of a step of all lanes; None where it took longer than `limit` to find out."""
    command = [sys.executable, "-m", "benchmarks.compilers", case, "--one", way, "--lanes", f"{lanes}"]
    most = os.environ.get("ATEN_CPU_CAPABILITY", "").upper()
    flags = ["--xla_cpu_multi_thread_eigen=false", *([f"--xla_cpu_max_isa={most}"] if most else [])]
    threads = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": " ".join(flags)}
    core = {min(os.sched_getaffinity(0))}
    try:
        done = subprocess.run(
            [*command, "--seconds", f"{seconds}"],
            cwd=ROOT,
            env={**os.environ, **threads},
            capture_output=True,
            text=True,
            timeout=limit,
            preexec_fn=lambda: os.sched_setaffinity(0, core),
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{case}, {way}: {done.stderr.strip()[-2000:]}")
    return float(done.stdout.split()[-1])


def step_of_case(case: str) -> str:
    """Return how Graft trains a case."""
    with tempfile.TemporaryDirectory() as folder, using(plugins_asked_for(write_parts(Path(folder)))):
        return describe_step(config_of(NAMES[case][0], scorer_of(case)), "cpu")


def scorer_of(case: str) -> dict[str, Any]:
    """Return the part of the model that the case sets."""
    return {"scorer": {"name": NAMES[case][1]}}


def measure(case: str, way: str, lanes: int, seconds: float) -> float:
    """Return the processor seconds of a step of all lanes, in this process."""
    prepare()
    with (
        tempfile.TemporaryDirectory() as folder,
        using(plugins_asked_for(write_parts(Path(folder)))),
        flush_subnormals(),
    ):
        config = config_of(NAMES[case][0], scorer_of(case))
        if way == "graft":
            return least_seconds(pack_of(config, lanes), seconds)
        recipe = Recipe.of(config)
        flat, batch = start_of(recipe, lanes)
        if way == "compile":
            return least_seconds(compiled_step(recipe, flat, batch), seconds)
        return jax_seconds(recipe, flat, batch, NAMES[case][1], over=way, seconds=seconds, clock=time.process_time)


def least_seconds(step: Callable[[], object], seconds: float) -> float:
    """Return the processor seconds of the fastest call."""
    step()
    taken: list[float] = []
    ends = time.monotonic() + seconds
    while not taken or time.monotonic() < ends:
        start = time.process_time()
        step()
        taken.append(time.process_time() - start)
    return min(taken)


if __name__ == "__main__":
    main()
