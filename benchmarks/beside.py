"""What 10,000 requests cost the training beside them: `search serve --http` with and without browsers that ask.

    python -m benchmarks.beside [--requests 10000] [--rounds 10] [--code FOLDER]

A service trains one study with one worker on the processor. In turn nobody asks, and clients ask for pages and tables
one after the other; each round has a window of both, of the same length, in an order that changes. Counted are the
optimizer steps of all lanes. Printed is the ratio of the rates of each round, by the clock and by the processor time
that the service's process got, and their mean with a 95 % interval of Student's. The clients have the lowest priority:
they would be on other machines. `--code`: another checkout of Graft, whose service is measured.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import os
import re
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from scipy.stats import t as student

from benchmarks.shares import ONE_STRUCTURE, SIZES

STUDY = "beside"
SERVICE = ("--workers", "1", "--pack", "16", "--device", "cpu", "--checkpoints", "none", "--rate", "100000")
VALIDATE_EVERY = 50
"""Steps: so often they are written down."""
ADDRESSES = (
    "/",
    f"/studies/{STUDY}",
    f"/studies/{STUDY}/live",
    f"/studies/{STUDY}/trials/1",
    f"/studies/{STUDY}/workers",
    "/queue/live",
    "/api/studies",
    f"/api/studies/{STUDY}",
    f"/api/studies/{STUDY}/trials?limit=100",
    f"/api/studies/{STUDY}/metrics?trials=10",
)
CLIENTS = 2
WARM_SECONDS = 15.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Window(NamedTuple):
    """What the trainer did in some seconds."""

    steps: int
    seconds: float
    processor: float
    """Seconds that the service's own process got, whatever it did with them."""
    answering: float
    """Seconds of the process that answers for it, if there is one."""

    @property
    def rate(self) -> float:
        """Steps a second by the clock."""
        return self.steps / self.seconds


Look = tuple[int, float, float, float]
"""Steps of all trials, the clock, and the processor seconds of the service's process and of those that it started."""


class Counter(NamedTuple):
    """What is looked at before and after a window."""

    database: Path
    pid: int

    def read(self) -> Look:
        """As of now."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            [(steps,)] = connection.execute("SELECT coalesce(sum(steps), 0) FROM trials").fetchall()
        started = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return steps, time.perf_counter(), processor_of(self.pid), sum(map(processor_of, started))


def processor_of(pid: int | str) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


@contextmanager
def service(folder: Path, code: Path) -> Generator[tuple[int, str]]:
    """The process of a service that trains the study, and its address."""
    environment = {**os.environ, "PYTHONPATH": str(code), "SEARCH_STORAGE": f"sqlite:///{folder}/graft.db"}
    program = [sys.executable, "-m", "graft"]
    sizes = {**SIZES, **ONE_STRUCTURE, "training.validate_every": f"{VALIDATE_EVERY}", "search.history": "last"}
    settings = itertools.chain.from_iterable(("--set", f"{path}={value}") for path, value in sizes.items())
    subprocess.run(
        [*program, "submit", "quick/set_complement", "--name", STUDY, *settings],
        check=True, cwd=code, env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    command = [*program, "serve", *SERVICE, "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=code, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            for line in process.stderr:
                if found := re.search(r"http://([\d.:]+)", line):
                    threading.Thread(target=process.stderr.read, daemon=True).start()
                    yield process.pid, found[1]
                    return
            raise SystemExit("the service did not start")
        finally:
            process.send_signal(signal.SIGTERM)


def ask(address: str, requests: int) -> None:
    """Ask so often, some clients at a time, each one request after the other."""

    def loop(client: int) -> None:
        with closing(http.client.HTTPConnection(address, timeout=240)) as connection:
            for number in range(client, requests, CLIENTS):
                connection.request("GET", ADDRESSES[number // CLIENTS % len(ADDRESSES)])
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{address} answers {answer.status}: {body[:200]!r}")

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(loop, range(CLIENTS)))


def between(before: Look, after: Look) -> Window:
    """What was done between two looks."""
    steps, *seconds = (late - early for early, late in zip(before, after, strict=True))
    return Window(int(steps), *seconds)


def measure_round(counter: Counter, address: str, requests: int, seconds: float, *, asks_first: bool) -> list[Window]:
    """A window in which nobody asks, and one with so many requests; the first lasts `seconds`, about as the second."""
    windows: dict[bool, Window] = {}
    for asks in (asks_first, not asks_first):
        before = counter.read()
        if asks:
            ask(address, requests)
        else:
            time.sleep(seconds)
        windows[asks] = between(before, counter.read())
    return [windows[False], windows[True]]


def told(name: str, ratios: list[float]) -> str:
    """The mean of ratios, with its interval."""
    margin = float(student.ppf(0.975, len(ratios) - 1)) * statistics.stdev(ratios) / len(ratios) ** 0.5
    return f"{name}: {statistics.mean(ratios):.3f} ± {margin:.3f}, median {statistics.median(ratios):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--code", type=Path, default=Path(__file__).parents[1])
    options = parser.parse_args()
    each = options.requests // options.rounds
    with tempfile.TemporaryDirectory() as place, service(Path(place), options.code) as (pid, address):
        os.nice(19)
        counter = Counter(Path(place, "graft.db"), pid)
        while not counter.read()[0]:
            time.sleep(1)
        time.sleep(WARM_SECONDS)
        started = time.perf_counter()
        ask(address, each)
        seconds = time.perf_counter() - started
        print(
            "round  quiet: steps/s, cores   asked: steps/s, cores   requests/s   ratio by the clock, by the processor"
        )
        clock, processor = list[float](), list[float]()
        for number in range(options.rounds):
            quiet, asked = measure_round(counter, address, each, seconds, asks_first=number % 2 == 1)
            seconds = asked.seconds
            clock.append(asked.rate / quiet.rate)
            processor.append(asked.steps / asked.processor / (quiet.steps / quiet.processor))
            cores = [one.processor / one.seconds for one in (quiet, asked)]
            print(
                f"{number + 1:>5} {quiet.rate:>15,.0f} {cores[0]:6.2f} {asked.rate:>15,.0f} {cores[1]:6.2f} "
                f"{asked.answering / asked.seconds:>12.2f} {each / asked.seconds:>8.1f} "
                f"{clock[-1]:>12.3f} {processor[-1]:>12.3f}",
                flush=True,
            )
    print(f"{options.rounds} rounds of {each:,} requests, 95 % intervals;", told("by the clock", clock), end="; ")
    print(told("by the processor", processor))


if __name__ == "__main__":
    main()
