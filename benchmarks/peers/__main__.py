"""The same search by Graft and by its peers, one after another in one run, results stored by each.

    python -m benchmarks.peers [--task set_complement] [--trials 256] [--steps 1000] [--dropout table1|on|off]
                               [--peers ray,loop,graft] [--peer-trials N]
    python -m benchmarks.peers --all [--cases "quick/add_mod;..."] [--lanes 8] [--seconds 1.5] [--compile-limit 20]
                               [--out results.json] [--budget 200]
    python -m benchmarks.peers --end-to-end quick/set_complement [--trials 64] [--steps 1000]

`--out`: results are added to this file, and what it has of `--all` is not measured again, so that all of it can be
made in parts: with `--budget 200` a run begins no case after 200 seconds and ends within ten minutes. The searches of
peers go into the same file.

`--all`: the steps of every family of tasks, see `benchmarks.peers.steps`; unless `--cases` picks some, then also what
two quick spaces take from the command to their end (`--end-to-end`, see `benchmarks.peers.whole_launch`), and the
search above with 64 trials of 500 steps. Some twenty minutes on two quiet cores. torch.compile takes minutes for
most models and is given up after `--compile-limit` seconds each.

All train the same model on the same task with draws from the same space, validate at the same steps on as many
sequences, raw and BEMA, and keep all results. End to end is the wall time of the whole command: start-up of Python, of
workers, of Ray, and storage. Steady state goes from the start of the first trial to the end of the last, by the times
that each peer stored; the recording of Graft's packs counts. Prints a table, and one line of JSON.

The draws differ between peers, so that the median objectives agree only as those of random searches do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from benchmarks.machine import processor
from benchmarks.options import words_of
from benchmarks.peers.cases import CASES
from benchmarks.peers.catalogue import PROBLEMS
from benchmarks.peers.commands import seconds_of
from benchmarks.peers.graft_peer import Graft
from benchmarks.peers.loop_peer import Loop
from benchmarks.peers.plan import Peer, Plan
from benchmarks.peers.ray_peer import RayTune
from benchmarks.peers.results import Results
from benchmarks.peers.steps import compare
from benchmarks.peers.whole_launch import measure_launch

PEERS: Mapping[str, Peer] = {"ray": RayTune(), "loop": Loop(), "graft": Graft()}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a peer took for its trials."""

    trials: int
    model_steps: int
    seconds: float
    """Wall time of the whole command."""
    steady_seconds: float
    """From the start of the first trial to the end of the last."""
    median_objective: float

    @property
    def end_to_end(self) -> float:
        """Model-steps per second of the whole command."""
        return self.model_steps / self.seconds

    @property
    def steady(self) -> float:
        """Model-steps per second while trials ran."""
        return self.model_steps / self.steady_seconds


def measured(peer: Peer, plan: Plan) -> Result:
    """Run a peer in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        seconds = seconds_of(peer.command(plan, folder), folder)
        trials = peer.results(folder)
    if len(trials) != plan.trials:
        raise SystemExit(f"{type(peer).__name__}: {len(trials)} of {plan.trials} trials were found stored")
    return Result(
        trials=len(trials),
        model_steps=sum(trial.steps for trial in trials),
        seconds=seconds,
        steady_seconds=max(trial.finished for trial in trials) - min(trial.started for trial in trials),
        median_objective=statistics.median(trial.objective for trial in trials if trial.objective is not None),
    )


def table(results: Mapping[str, Result]) -> str:
    """One line per peer."""
    lines = [f"{'':<8}{'trials':>8}{'seconds':>10}{'end to end':>14}{'steady':>12}{'median objective':>20}"]
    lines += [
        f"{name:<8}{result.trials:>8}{result.seconds:>10.1f}{result.end_to_end:>12,.0f}/s{result.steady:>10,.0f}/s"
        f"{result.median_objective:>20.4f}"
        for name, result in results.items()
    ]
    return "\n".join(lines)


def ratios(results: Mapping[str, Result]) -> dict[str, dict[str, float | None]]:
    """Graft's rates over each peer's; end to end only for as many trials, over which a start-up is spread."""
    if "graft" not in results:
        return {}
    graft = results["graft"]
    return {
        name: {
            "end_to_end": round(graft.end_to_end / peer.end_to_end, 2) if peer.trials == graft.trials else None,
            "steady": round(graft.steady / peer.steady, 2),
        }
        for name, peer in results.items()
        if name != "graft"
    }


def summary(plan: Plan, results: Mapping[str, Result]) -> str:
    """Return the line of JSON."""
    rates = {
        name: {"end_to_end": round(result.end_to_end, 1), "steady": round(result.steady, 1), **asdict(result)}
        for name, result in results.items()
    }
    machine = {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "processor": processor(),
    }
    date = time.strftime("%Y-%m-%d", time.gmtime())
    whole = {"date": date, "machine": machine, "plan": asdict(plan), "model_steps_per_second": rates}
    return json.dumps({**whole, "graft_over": ratios(results)})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task", choices=PROBLEMS, default=Plan.task)
    parser.add_argument("--trials", type=int, default=Plan.trials)
    parser.add_argument("--steps", type=int, default=Plan.steps, help="optimizer steps of each trial")
    parser.add_argument("--dropout", choices=("table1", "on", "off"), default=Plan.dropout)
    parser.add_argument("--processes", type=int, default=Plan.processes, help="processes of a peer, workers of Graft")
    parser.add_argument("--peers", type=words_of(PEERS), default=list(PEERS), help="which, in which order")
    parser.add_argument("--peer-trials", type=int, help="trials of the peers of Graft, where all take too long")
    parser.add_argument("--all", action="store_true", help="steps of every family of tasks, launches, peers")
    parser.add_argument("--cases", help="with --all: which, separated by semicolons")
    parser.add_argument("--lanes", type=int, default=8, help="with --all")
    parser.add_argument("--seconds", type=float, default=1.5, help="with --all: of each measurement")
    parser.add_argument(
        "--compile-limit", type=float, default=20, help="with --all: seconds for torch.compile; 0: without"
    )
    parser.add_argument("--budget", type=float, default=math.inf, help="with --all: begin no case after these seconds")
    parser.add_argument("--out", type=Path, help="a file that results are added to")
    parser.add_argument("--end-to-end", metavar="SPACE", help="a whole launch of a packaged space")
    return parser.parse_args()


def main() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    given = arguments()
    if given.all:
        end = time.monotonic() + given.budget
        names = given.cases.split(";") if given.cases else list(CASES)
        if unknown := sorted(set(names) - CASES.keys()):
            raise SystemExit(f"--cases: {unknown[0]!r} must be one of {'; '.join(CASES)}")
        results = Results(given.out) if given.out else None
        limits = {"compile_limit": given.compile_limit, "budget": given.budget}
        compare(names, lanes=given.lanes, seconds=given.seconds, results=results, **limits)
        if not given.cases:
            measure_launches(results, given.processes, end)
            if time.monotonic() < end and not (results and results.read("searches")):
                plan = Plan(task=given.task, trials=64, steps=500, dropout=given.dropout, processes=given.processes)
                search(plan, given)
        return
    if given.end_to_end:
        measure_launch(given.end_to_end, trials=given.trials, steps=given.steps, workers=given.processes)
        return
    plan = Plan(
        task=given.task, trials=given.trials, steps=given.steps, dropout=given.dropout, processes=given.processes
    )
    search(plan, given)


LAUNCHES = ("quick/set_complement", "quick/add_mod")


def measure_launches(results: Results | None, workers: int, end: float) -> None:
    """Whole launches of 64 trials of 1,000 steps; those in the results are printed, and none is begun after `end`."""
    known = results.read("launches") if results else {}
    for name in LAUNCHES:
        if name in known:
            print(json.dumps(known[name]))
        elif time.monotonic() < end:
            figures = measure_launch(name, trials=64, steps=1000, workers=workers)
            if results:
                results.add("launches", name, figures)


def search(plan: Plan, given: argparse.Namespace) -> None:
    """One search by each of the peers."""
    fewer = replace(plan, trials=given.peer_trials or plan.trials)
    if fewer != plan:
        print(f"peers run {fewer.trials} of the {plan.trials} trials; compare rates, not seconds")
    results: dict[str, Result] = {}
    for name in given.peers:
        results[name] = measured(PEERS[name], plan if name == "graft" else fewer)
    print(table(results))
    for name, ratio in ratios(results).items():
        whole = f"{ratio['end_to_end']}x end to end, " if ratio["end_to_end"] else ""
        print(f"graft over {name}: {whole}{ratio['steady']}x steady")
    print(summary(plan, results))
    if given.out:
        figures = json.loads(summary(plan, results))
        Results(given.out).add("searches", f"{plan.task}, dropout {plan.dropout}", figures)


if __name__ == "__main__":
    main()
