"""What 10,000 requests cost the training beside them: `search serve --http` with and without browsers that ask.

    python -m benchmarks.beside [--requests 10000] [--rounds 40] [--seconds 11] [--processor 0.2] [--code FOLDER]

A service trains one study with one worker on the processor. In turn nobody asks, and clients ask for pages and tables
in loops; each round has a window of both, in an order that changes. A window begins and ends when a report is written,
so that none is counted in part. Counted are the optimizer steps of all lanes. Printed is the ratio of the rates of each
round, by the clock and by the processor time that the service's process got, and their mean with a 95 % interval of
Student's; windows with requests are made longer until there were as many as asked for. The clients have the lowest
priority: they would be on other machines. `--code`: another checkout of Graft, whose service is measured.
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
from collections.abc import Generator, Sequence
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
    "/queue",
    "/api/studies",
    f"/api/studies/{STUDY}",
    f"/api/studies/{STUDY}/trials?limit=100",
    f"/api/studies/{STUDY}/metrics?trials=10",
)
CLIENTS = 2
WARM_SECONDS = 15.0
LOOK_SECONDS = 0.004
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

    connection: sqlite3.Connection
    pid: int

    def steps(self) -> int:
        """Of all trials, up to their last reports."""
        [(steps,)] = self.connection.execute("SELECT coalesce(sum(steps), 0) FROM trials").fetchall()
        return steps

    def read(self) -> Look:
        """As of the next report."""
        before = steps = self.steps()
        while steps == before:
            time.sleep(LOOK_SECONDS)
            steps = self.steps()
        started = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return steps, time.perf_counter(), processor_of(self.pid), sum(map(processor_of, started))


def processor_of(pid: int | str) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


@contextmanager
def service(folder: Path, code: Path, options: Sequence[str]) -> Generator[tuple[int, str]]:
    """Yield the process of a service that trains the study, and its address."""
    environment = {**os.environ, "PYTHONPATH": str(code), "SEARCH_STORAGE": f"sqlite:///{folder}/graft.db"}
    program = [sys.executable, "-m", "graft"]
    sizes = {**SIZES, **ONE_STRUCTURE, "training.validate_every": f"{VALIDATE_EVERY}", "search.history": "last"}
    settings = itertools.chain.from_iterable(("--set", f"{path}={value}") for path, value in sizes.items())
    subprocess.run(
        [*program, "submit", "quick/set_complement", "--name", STUDY, *settings],
        check=True, cwd=code, env=environment, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    command = [*program, "serve", *SERVICE, *options, "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=code, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            for line in process.stderr:
                if match := re.search(r"http://([\d.:]+)", line):
                    threading.Thread(target=process.stderr.read, daemon=True).start()
                    yield process.pid, match[1]
                    return
            raise SystemExit("the service did not start")
        finally:
            process.send_signal(signal.SIGTERM)


def ask(address: str, seconds: float, requests: int) -> int:
    """Ask for so long, and until so many were answered, some clients at a time; how many were."""
    until, each = time.perf_counter() + seconds, -(-requests // CLIENTS)

    def loop(client: int) -> int:
        with closing(http.client.HTTPConnection(address, timeout=240)) as connection:
            for number in itertools.count():
                if number >= each and time.perf_counter() >= until:
                    return number
                connection.request("GET", ADDRESSES[(number + client * 5) % len(ADDRESSES)])
                answer = connection.getresponse()
                body = answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{address} answers {answer.status}: {body[:200]!r}")
        raise AssertionError

    with ThreadPoolExecutor(CLIENTS) as pool:
        return sum(pool.map(loop, range(CLIENTS)))


def between(before: Look, after: Look) -> Window:
    """Return what was done between two looks."""
    steps, *seconds = (late - early for early, late in zip(before, after, strict=True))
    return Window(int(steps), *seconds)


class Round(NamedTuple):
    """A window of each kind, one right after the other."""

    quiet: Window
    asked: Window
    requests: int

    @property
    def ratios(self) -> tuple[float, float]:
        """Of the rates, by the clock and by the processor time that the service's process got."""
        work = [window.steps / window.processor for window in (self.quiet, self.asked)]
        return self.asked.rate / self.quiet.rate, work[1] / work[0]

    def __str__(self) -> str:
        quiet, asked = (
            f"{window.rate:>15,.0f} {window.processor / window.seconds:6.2f}" for window in (self.quiet, self.asked)
        )
        answering = f"{self.asked.answering / self.asked.seconds:>12.2f} {self.requests / self.asked.seconds:>8.1f}"
        return f"{quiet} {asked} {answering} {self.ratios[0]:>12.3f} {self.ratios[1]:>12.3f}"


def measure_round(counter: Counter, address: str, seconds: float, requests: int, *, asks_first: bool) -> Round:
    """Return a window in which nobody asks, and one with so many requests or more."""
    windows: dict[bool, Window] = {}
    answered = 0
    for asks in (asks_first, not asks_first):
        before = counter.read()
        if asks:
            answered = ask(address, seconds, requests)
        else:
            time.sleep(seconds)
        windows[asks] = between(before, counter.read())
    return Round(windows[False], windows[True], answered)


def told(name: str, ratios: list[float]) -> str:
    """Return the mean of ratios, with its interval."""
    margin = float(student.ppf(0.975, len(ratios) - 1)) * statistics.stdev(ratios) / len(ratios) ** 0.5
    return f"{name}: {statistics.mean(ratios):.3f} ± {margin:.3f}, median {statistics.median(ratios):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=11.0, help="of a window")
    parser.add_argument("--processor", help="as of `search serve`")
    parser.add_argument("--code", type=Path, default=Path(__file__).parents[1])
    options = parser.parse_args()
    each = -(-options.requests // options.rounds)
    limits = ("--processor", options.processor) if options.processor else ()
    with (
        tempfile.TemporaryDirectory() as folder,
        service(Path(folder), options.code, limits) as (pid, address),
        closing(sqlite3.connect(f"file:{folder}/graft.db?mode=ro", uri=True, isolation_level=None)) as connection,
    ):
        os.nice(19)
        counter = Counter(connection, pid)
        counter.read()
        time.sleep(WARM_SECONDS)
        ask(address, WARM_SECONDS, 1)
        print("round  quiet: steps/s, cores   asked: steps/s, cores  HTTP: cores, requests/s  ratio: clock, processor")
        rounds = list[Round]()
        for number in range(options.rounds):
            rounds.append(measure_round(counter, address, options.seconds, each, asks_first=number % 2 == 1))
            print(f"{number + 1:>5} {rounds[-1]}", flush=True)
    requests = sum(pair.requests for pair in rounds)
    clock, processor = ([pair.ratios[index] for pair in rounds] for index in (0, 1))
    print(f"{len(rounds)} rounds, {requests:,} requests, 95 % intervals;", told("by the clock", clock), end="; ")
    print(told("by the processor", processor))


if __name__ == "__main__":
    main()
