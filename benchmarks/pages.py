"""How soon the pages of a large study are seen in a browser, from the click on.

    python -m benchmarks.pages [--trials 100000] [--storage URL|postgresql] [--looks 5] [--pages study,trial]

Makes a database of the space of paper 003 with two objectives, in which every trial has ended with three validations
and a learned non-linearity; serves it by `search dashboard` in a process of its own, and opens each page in Chromium.
Printed is the time of the first contentful paint and until everything is drawn: of the first look after the server was
started, and the median and the longest of the others. A database that `--storage` names is kept, and used if the study
is there; `--code` measures the server of another checkout on it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

import spaces
from benchmarks.options import words_of
from benchmarks.scale import EVERY, STUDY, VALIDATIONS, report, storage, unit
from benchmarks.storage import batches
from graft.launching.enrolling import new_study
from graft.plugins.families import families
from graft.web.charts.specs import Line, draw_history, write_frame
from spaces.records import LearnedSpline, Report, Trial, TrialResult
from spaces.seeds import trial_seed
from spaces.space import Space
from storage import open_reader, open_store
from tests.support.browser import Browser, browser

TENTH = f"{STUDY}-tenth"
"""A study of a tenth of the trials, to compare with."""
PAGES = {
    "studies": "/",
    "study": f"/studies/{STUDY}",
    "trials": f"/studies/{STUDY}?trials=3,17,50000&high.objective=0.5",
    "trial": f"/studies/{STUDY}/trials/777",
    "workers": f"/studies/{STUDY}/workers",
    "table": f"/studies/{STUDY}/trials",
    "groups": f"/studies/{STUDY}/trials?group=optimizer.learning_rate",
    "filter": f"/studies/{STUDY}/trials?where=objective+%3C+0.5+AND+model.width+%3E+16&sort=objective",
    "compare": f"/compare?study={STUDY}&study={TENTH}",
    "nonlinearities": f"/studies/{STUDY}/nonlinearities",
}
SIZES = {
    "training.steps": f"{VALIDATIONS * EVERY}",
    "search.history": "full",
    "search.stopping": "[]",
    "search.objective": "[{minimize: tvd/bema}, {minimize: model.width}]",
}
PATIENCE = 240.0
_BATCH = 1_000
_POINTS = 100_000
_DRAWN = "document.readyState === 'complete' && !document.querySelector('[aria-busy=true]')"
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_LAST_CHANGE = """
new MutationObserver(() => { window.lastChange = performance.now(); })
  .observe(document, { childList: true, subtree: true, attributes: true });
"""


class Look(NamedTuple):
    """Seconds since the browser was told to open a page."""

    painted: float
    """First contentful paint."""
    drawn: float
    """The last change of the page."""


def write_study(url: str, name: str, trials: int) -> None:
    """Write a study of which all trials have ended, through the functions by which a controller writes."""
    space = spaces.load("set_complement", families(), {**SIZES, "search.trials": f"{trials}"})
    with open_store(url) as store:
        study_id = store.create_study(new_study(name, space))
        study = store.take_control(study_id, policy="full", objective=space.search.objective)
        for numbers in batches(trials, _BATCH):
            begun = [draw(space, number) for number in numbers]
            study.start(begun, "worker")
            reports = [
                replace(report(trial, EVERY * step), fence=1) for step in range(1, VALIDATIONS + 1) for trial in begun
            ]
            last = {message.number: message for message in reports}
            study.record(
                [*(with_spline(message) if message is last[message.number] else message for message in reports)]
            )
            study.end([result(trial, last[trial.number]) for trial in begun])
        study.set_state("finished")


def draw(space: Space, number: int) -> Trial:
    """Return a trial with draws that its number determines."""
    seed = trial_seed(space.search.seed, number)
    places = iter(range(10, 1000))
    return space.sample(number, lambda _: unit(seed, next(places)))


def with_spline(last: Report) -> Report:
    """Return what a trial says last, with what it learned."""
    knots = tuple(max(0.0, index / 10 - 1 + unit(last.number, index)) for index in range(20))
    return replace(last, splines=(LearnedSpline("mlp", -2.0, 2.0, knots),))


def result(trial: Trial, last: Report) -> TrialResult:
    """How a trial ended."""
    if last.state == "diverged":
        return TrialResult(number=trial.number, fence=1, state="diverged", objective=None, error=last.error)
    objective = next(metric.value for metric in last.metrics if (metric.name, metric.variant) == ("tvd", "bema"))
    width = float(trial.params["model.width"])
    return TrialResult(number=trial.number, fence=1, state="finished", objective=objective, second_objective=width)


@contextmanager
def serving(url: str, code: Path) -> Generator[str]:
    """Yield the address of a server of the database, in a process of its own, of a checkout of Graft."""
    command = [sys.executable, "-m", "graft", "dashboard", "--port", "0", "--rate", "10000", "--storage", url]
    environment = {**os.environ, "PYTHONPATH": str(code)}
    with subprocess.Popen(command, cwd=code, env=environment, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr
            line = server.stderr.readline()
            if not line.startswith("http"):
                raise SystemExit(f"the server did not start: {line}")
            yield line.split()[0].rstrip("/")
        finally:
            server.terminate()


def look(page: Browser, address: str) -> Look:
    """Open a page, and wait until all of it is there."""
    page.open(address, script=_LAST_CHANGE)
    deadline = time.monotonic() + PATIENCE
    while not page.run(f"{_DRAWN} && {_PAINTED} > 0"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{address} is not drawn after {PATIENCE:g} s")
        time.sleep(0.05)
    if page.complaints:
        raise SystemExit(f"{address}: {page.complaints}")
    painted, drawn = page.run(f"[{_PAINTED}, window.lastChange ?? 0]")
    return Look(painted / 1000, max(painted, drawn) / 1000)


def measure(url: str, code: Path, names: Sequence[str], looks: int) -> None:
    """Print a line for each page."""
    print("page            first look: painted, drawn      others, median (longest): painted, drawn")
    for name in names:
        # Chromium's helpers may still write when it has ended.
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        with serving(url, code) as address, folder as path, browser(Path(path)) as page:
            first, *others = [look(page, address + PAGES[name]) for _ in range(1 + looks)]
            if name == "study":
                print(f"a chart of {_POINTS:,} trials: {measure_points(page, _POINTS):.2f} s", flush=True)
        cells = [
            f"{statistics.median(times):6.2f} ({max(times):.2f})" for times in zip(*others or [first], strict=True)
        ]
        print(f"{name:<15} {first.painted:8.2f} {first.drawn:8.2f} s   {'  '.join(cells)} s", flush=True)


def measure_points(page: Browser, points: int) -> float:
    """Return the seconds from the declaration of a scatter chart of so many trials until it is drawn."""
    trials = pl.DataFrame({"number": range(points), "objective": [unit(1, number) for number in range(points)]})
    best = Line("best so far", [0, points - 1], [0.5, 0.0])
    frames = json.dumps({"kept": write_frame(trials), "others": write_frame(trials.head(0))})
    chart = draw_history(trials, best, ("trial", "objective"), f"{points:,} trials", "/")
    page.run(f"window.markup = {json.dumps(chart.__html__())}; window.points = {json.dumps(frames)}; 0")
    page.run(_DRAW_POINTS)
    while not page.run("window.seconds > 0"):
        time.sleep(0.05)
    return page.run("window.seconds")


_DRAW_POINTS = """
(() => {
  const begun = performance.now();
  live.innerHTML = markup;
  const box = live.querySelector("[data-chart]");
  draw(box, JSON.parse(points));
  const { chart } = charts.get(box);
  chart.on("finished", () => requestAnimationFrame(() => { window.seconds ??= (performance.now() - begun) / 1000; }));
})(); 0
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--storage", help="URL, or `postgresql`: a server for this run; default: a SQLite file")
    parser.add_argument("--looks", type=int, default=5)
    parser.add_argument("--pages", type=words_of(PAGES), default=[*PAGES])
    parser.add_argument("--code", type=Path, help="another checkout, whose server shows what --storage has")
    options = parser.parse_args()
    with storage(options.storage) as url:
        if not (options.code or has_study(url)):
            started = time.perf_counter()
            write_study(url, STUDY, options.trials)
            write_study(url, TENTH, options.trials // 10)
            print(f"{options.trials:,} trials written in {time.perf_counter() - started:.0f} s", flush=True)
        measure(url, options.code or Path(__file__).parents[1], options.pages, options.looks)


def has_study(url: str) -> bool:
    """Whether the study was written before; the database is made if there is none."""
    open_store(url).close()
    with open_reader(url) as reader:
        return STUDY in reader.studies()["name"]


if __name__ == "__main__":
    main()
