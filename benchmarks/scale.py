"""What a study of a million trials costs its controller and those who look at it: all is real but the training.

    python -m benchmarks.scale [--trials 1000000] [--storage URL|postgresql] [--workers 64] [--lanes 32]

The space is paper 003's (`set_complement`, groups of 1,000, random search) with three validations a trial.
Workers are simulated in the controller's own process, one exchange after the other: each holds the lanes of one pack,
and its trials learn along a curve that is a function of their seed. The controller's process goes away after a
hundredth, a tenth and all of the trials, with trials running, and another one resumes. Times are of exchanges alone.
In brackets: processor seconds of this side, without a server's. What was just written is still in the system's memory;
`--cold` has SQLite's file forgotten before each command.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import spaces
from graft.launching.enrolling import enrol, open_controller
from graft.plugins.families import families
from search.steering.controller import Controller
from spaces.records import TERMINAL, Directives, Fingerprint, Metric, Offer, Report, Trial
from spaces.seeds import GAMMA, mix64
from spaces.space import Space
from storage import open_reader
from workers.numerics.version import NUMERICS

STUDY = "scale"
VALIDATIONS, EVERY = 3, 10_000
DIVERGING = 0.02
"""Share of the trials that diverge, at one of their validations."""
METRICS = [*((name, variant) for name in ("tvd", "itp", "itr") for variant in ("raw", "bema")), ("loss", "raw")]
FINGERPRINT = Fingerprint(
    numerics=NUMERICS,
    code="0" * 16,
    torch="made up",
    processor="made up",
    compiler="made up",
    step_kind="native made up",
    sources=tuple((f"{family} some", "0" * 16) for family in ("averaging", "model", "optimizer", "scorer", "task")),
)
COMMANDS = {
    "status": ["status", STUDY],
    "trials": ["trials", STUDY, "--sort", "objective", "--top", "5"],
    "studies": ["studies"],
}
_MILLISECONDS, _MEGABYTE = 1000, 1_000_000


def study_of(trials: int, history: str) -> Space:
    """Paper 003's space with so many trials, each as long as its validations."""
    sizes = {"training.steps": f"{VALIDATIONS * EVERY}", "search.trials": f"{trials}"}
    return spaces.load("set_complement", families(), {**sizes, "search.history": history})


def unit(seed: int, index: int) -> float:
    """Return a number in [0, 1) that the seed determines."""
    return (mix64((seed + index * GAMMA) % 2**64) >> 11) * 2.0**-53


def curve(seed: int, step: int) -> float:
    """Return the loss of a made-up trial, which falls from one towards a floor of its own."""
    floor = unit(seed, 0)
    return floor + (1 - floor) * math.exp(-step / EVERY * (0.5 + unit(seed, 1)))


def report(trial: Trial, step: int) -> Report:
    """Return what a made-up trial says at a validation."""
    if unit(trial.seed, 2) < DIVERGING and step >= EVERY * (1 + int(VALIDATIONS * unit(trial.seed, 3))):
        error = "loss is not finite"
        return Report(number=trial.number, fence=trial.fence, step=step, metrics=(), state="diverged", error=error)
    loss = curve(trial.seed, step)
    metrics = tuple(Metric(name, variant, "", loss * (1 + index / 10)) for index, (name, variant) in enumerate(METRICS))
    state = "finished" if step == VALIDATIONS * EVERY else "running"
    return Report(
        number=trial.number, fence=trial.fence, step=step, metrics=metrics, state=state, fingerprint=FINGERPRINT
    )


@dataclass(kw_only=True)
class SimulatedWorker:
    """Lanes that are at their next validation at once."""

    name: str
    lanes: int
    running: dict[int, tuple[Trial, int]] = field(default_factory=dict[int, tuple[Trial, int]])
    """Number -> the trial and its step."""
    steps: int = 0

    def offer(self) -> Offer:
        """Return what is free, and what was trained since the last offer."""
        structure = next((trial.structure for trial, _ in self.running.values()), None)
        return Offer(
            worker=self.name,
            lanes=self.lanes - len(self.running),
            structure=structure,
            holds=tuple(trial.start for trial, _ in self.running.values()),
            steps=self.steps,
            room=self.lanes * EVERY if self.steps else 0,
        )

    def apply(self, directives: Directives) -> None:
        """Drop and place trials as told."""
        for number in directives.stop:
            self.running.pop(number, None)
        self.running.update((trial.number, (trial, 0)) for trial in directives.start)

    def train(self) -> list[Report]:
        """All lanes until their next validation."""
        reports = [report(trial, step + EVERY) for trial, step in self.running.values()]
        self.steps = len(reports) * EVERY
        for message in reports:
            trial, _ = self.running.pop(message.number)
            if message.state == "running":
                self.running[message.number] = trial, message.step
        return reports


@dataclass(kw_only=True)
class Clock:
    """Wall and processor seconds of what runs inside `running`."""

    wall: float = 0.0
    cpu: float = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """One life of the controller."""

    before: int
    """Trials that had ended when it was opened."""
    ended: int
    """Trials that have ended at its end."""
    resume_seconds: float
    """From the opening of the study to the first directives."""
    resume_cpu: float
    exchanges: int
    trial_ms: float
    """Milliseconds of an exchange per trial that ended."""
    trial_cpu_ms: float
    opened_mib: float
    """Resident memory after the first directives."""
    closing_mib: float
    peak_mib: float


def live(url: str, workers: int, lanes: int, until: int) -> Stretch:
    """Open the study, run it until so many trials have ended, and drop it; to be called in a process of its own."""
    families()
    resume, work = Clock(), Clock()
    crew = [SimulatedWorker(name=f"worker-{index}-after-{os.getpid()}", lanes=lanes) for index in range(workers)]
    with resume.running():
        study = open_controller(url, STUDY)
        before = ended_of(study)
        crew[0].apply(study.exchange([], crew[0].offer()))
    opened, exchanges, done = resident(), 0, False
    while ended_of(study) < until and not done:
        for worker in crew:
            reports = worker.train()
            with work.running():
                directives = study.exchange(reports, worker.offer())
                study.progress()
            worker.apply(directives)
            exchanges, done = exchanges + 1, directives.done
    ended = ended_of(study)
    return Stretch(
        before=before,
        ended=ended,
        resume_seconds=resume.wall,
        resume_cpu=resume.cpu,
        exchanges=exchanges,
        trial_ms=_MILLISECONDS * work.wall / max(1, ended - before),
        trial_cpu_ms=_MILLISECONDS * work.cpu / max(1, ended - before),
        opened_mib=opened,
        closing_mib=resident(),
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


def ended_of(study: Controller) -> int:
    """Trials that will not train again."""
    counts = study.progress().counts
    return sum(counts.get(state, 0) for state in TERMINAL)


def resident() -> float:
    """MiB of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def alone(url: str, workers: int, lanes: int, until: int) -> Stretch:
    """`live` in a process of its own, which ends with trials running."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(live, url, workers, lanes, until).result()


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a command cost, start of the program included."""

    seconds: float
    cpu: float


def look(url: str, cold: bool) -> dict[str, Look]:
    """Return the commands that look at the study; `cold`: they find the database on the disk."""
    looks: dict[str, Look] = {}
    for name, command in COMMANDS.items():
        if cold:
            forget(url)
        looks[name] = timed([*command, "--storage", url])
    return looks


def timed(arguments: Sequence[str]) -> Look:
    """Run one command of `search`."""
    program = "from cli.main import main; main()"
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Look(seconds=time.perf_counter() - wall, cpu=cpu)


def megabytes(url: str) -> float:
    """Size of the database."""
    if url.startswith("sqlite"):
        return Path(url.removeprefix("sqlite:///")).stat().st_size / _MEGABYTE
    with open_reader(url) as reader:
        return reader.query("SELECT pg_database_size(current_database()) AS size").item() / _MEGABYTE


def forget(url: str) -> None:
    """Have the system drop what it keeps of SQLite's file in memory."""
    with Path(url.removeprefix("sqlite:///")).open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def benchmark(url: str, trials: int, workers: int, lanes: int, history: str, cold: bool) -> None:
    """Print what each life of the controller cost, then all of it as JSON."""
    enrol(url, STUDY, study_of(trials + 4 * workers * lanes, history))  # what is over is left to resume at the end
    lives: list[dict[str, object]] = []
    for until in (0, trials // 100, trials // 10, trials, 0):
        stretch, size = alone(url, workers, lanes, until), megabytes(url)
        looks = look(url, cold)
        lives.append({**asdict(stretch), "megabytes": size, **{name: asdict(cost) for name, cost in looks.items()}})
        print(told(stretch), f"{size:,.0f} MB", *(f"{name} {timing(cost)}" for name, cost in looks.items()), sep="; ")
    print(json.dumps(lives), flush=True)


def told(life: Stretch) -> str:
    """One life of the controller in a line."""
    return (
        f"{life.before:,} to {life.ended:,} trials: opened in {life.resume_seconds:.2f} s ({life.resume_cpu:.2f}), "
        f"{life.trial_ms:.2f} ms ({life.trial_cpu_ms:.2f}) a trial, {life.exchanges:,} exchanges, "
        f"{life.opened_mib:,.0f} to {life.closing_mib:,.0f} MiB, at most {life.peak_mib:,.0f}"
    )


def timing(cost: Look) -> str:
    """Wall seconds, and the processor's in brackets."""
    return f"{cost.seconds:.2f} s ({cost.cpu:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--storage", help="URL, or `postgresql`: a server for this run; default: a SQLite file")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--lanes", type=int, default=32)
    parser.add_argument("--history", choices=("full", "thin", "last"), default="thin")
    parser.add_argument("--cold", action="store_true", help="commands find SQLite's file on the disk, not in memory")
    options = parser.parse_args()
    with storage(options.storage) as url:
        benchmark(url, options.trials, options.workers, options.lanes, options.history, options.cold)


@contextmanager
def storage(name: str | None) -> Iterator[str]:
    """Yield the URL of the database to use; a new one goes away at the end."""
    if name == "postgresql":
        from tests.support.databases import running_server

        with running_server(tempfile.gettempdir()) as server, server.database() as url:
            yield url
    elif name:
        yield name
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/graft.db"


if __name__ == "__main__":
    main()
