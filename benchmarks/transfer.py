"""How long stage-two results take to become a compatibility matrix, and what it says.

    python -m benchmarks.transfer

Eight source architectures and the baseline on eight targets, as in paper 002's Figure 5, with as many seeds as a
million results need, in random order. Times are those of the fastest of several runs; processor time is what other work
on the machine does not stretch.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import polars as pl

from search.analysis.transfer.affinity import best_sources, by_similarity, generality, similarity
from search.analysis.transfer.compatibility_matrix import BASELINE, compute_matrix

TASKS = ("memorize", "add_mod", "add", "add_reversed", "mano", "haystack", "copy", "parentheses")


def made_up(count: int) -> pl.DataFrame:
    """About `count` results."""
    random = np.random.default_rng(0)
    sources = pl.DataFrame({"source": [BASELINE, *TASKS]})
    seeds = max(1, round(count / (sources.height * len(TASKS))))
    every = sources.join(pl.DataFrame({"target": TASKS}), how="cross").join(
        pl.DataFrame({"seed": np.arange(seeds)}), how="cross"
    )
    every = every.with_columns(value=pl.Series(random.uniform(0, 1, every.height)), direction=pl.lit("maximize"))
    return every.sample(fraction=1, shuffle=True, seed=0)


def best_of(runs: int, work: Callable[[], object]) -> str:
    """Seconds of the fastest run, and of the processor's work in it."""
    times = list[tuple[float, float]]()
    for _ in range(runs):
        start, worked = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - start, time.process_time() - worked))
    seconds, work_seconds = min(times)
    return f"{seconds:.3f} s, {work_seconds:.3f} s of processor time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    results = made_up(options.results)
    matrix = compute_matrix(results)
    conclusions = (best_sources, generality, similarity, by_similarity)
    print(f"{results.height:,} results, {matrix.cells.height} cells, Polars on {pl.thread_pool_size()} threads")
    print(f"matrix       {best_of(options.runs, lambda: compute_matrix(results))}")
    print(f"conclusions  {best_of(options.runs, lambda: [work(matrix) for work in conclusions])}")


if __name__ == "__main__":
    main()
