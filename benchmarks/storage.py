"""How fast trials and metrics are written and read, through the public functions, on disk, every commit synchronised.

    python -m benchmarks.storage

Writes batches of 1,000 trials and of 500 reports of 8 metrics, then reads a million metric rows back.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spaces.records import Metric, Report, Trial
from spaces.settings import History, Objective
from storage import NewStudy, Store, open_reader, open_store
from tests.support.databases import running_server

OBJECTIVE = Objective(direction="minimize", metric="tvd", variant="bema")
TRIALS, TRIAL_BATCH = 20_000, 1_000
LANES, REPORT_BATCH, REPORTS = 2_500, 500, 50
METRICS = [(name, variant) for name in ("loss", "accuracy", "tvd", "entropy") for variant in ("raw", "bema")]


def trial(number: int) -> Trial:
    """About 1.4 kB, as the paper's spaces give: ten draws, four plug-ins."""
    draws = {f"optimizer.draw_{i}": (number * 0.618 + i * 0.1) % 1 for i in range(10)}
    optimizer = {"name": "adamw", **{f"field_{i}": number / (i + 3) for i in range(12)}}
    model = {"name": "minimal", "width": 32, "scorer": {"name": "ssa", "b": 1.0, "n": 1.5}, "embedding_dropout": 0.1}
    config = {"task": {"name": "set_complement", "length": 8}, "model": model, "optimizer": optimizer}
    return Trial(number=number, group=0, seed=number, draws=draws, params=draws, config=config, structure="")


def report(number: int, step: int) -> Report:
    metrics = (Metric(name, variant, "", 1 / (step + number + i)) for i, (name, variant) in enumerate(METRICS))
    return Report(number=number, fence=1, step=step, metrics=tuple(metrics))


def batches(count: int, size: int) -> Iterator[range]:
    return (range(first, min(first + size, count)) for first in range(0, count, size))


def rate(count: int, work: Callable[[], object]) -> str:
    start = time.perf_counter()
    work()
    return f"{count / (time.perf_counter() - start):>12,.0f} /s"


def write(store: Store, policy: History) -> None:
    study_id = store.create_study(
        NewStudy(policy, space="", space_hash="", objective=OBJECTIVE, seed=0, trials=TRIALS, version="", numerics=1)
    )
    study = store.take_control(study_id, policy=policy, objective=OBJECTIVE)
    started = [[trial(n) for n in batch] for batch in batches(TRIALS, TRIAL_BATCH)]
    print(f"  {policy}: trials started   ", rate(TRIALS, lambda: [study.start(some, "w") for some in started]))
    reports = [
        [report(n, 10_000 * step) for n in batch]
        for step in range(1, REPORTS + 1)
        for batch in batches(LANES, REPORT_BATCH)
    ]
    rows = LANES * REPORTS * len(METRICS)
    print(f"  {policy}: metric rows      ", rate(rows, lambda: [study.record(some) for some in reports]))


def benchmark(url: str) -> None:
    with open_store(url) as store:
        for policy in ("full", "thin"):
            write(store, policy)
    with open_reader(url) as reader:
        rows = LANES * REPORTS * len(METRICS)
        print("  read: metric rows      ", rate(rows, lambda: reader.study("full").metrics()))
        print("  read: trials           ", rate(TRIALS, lambda: reader.study("full").trials()))


def main() -> None:
    """Print the rates of SQLite and of PostgreSQL."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("SQLite")
        benchmark(f"sqlite:///{folder}/graft.db")
        print(f"  {Path(folder, 'graft.db').stat().st_size / 1e6:.0f} MB")
    with running_server(tempfile.gettempdir()) as server, server.database() as url:
        print("PostgreSQL")
        benchmark(url)


if __name__ == "__main__":
    main()
