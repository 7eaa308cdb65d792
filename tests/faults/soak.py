"""Proves that nothing finished is ever lost: a study of toy trials in a storm of faults, and an audit of what is left.

    python -m tests.faults.soak [--database sqlite|postgresql|both] [--faults 150] [--trials 1500] [--seconds 400]
                                [--seed N]
    python -m tests.faults.soak --service [--database sqlite|postgresql|both] [--faults 100] [--seed N]

Launcher, workers, database and network are killed, frozen and cut at random moments, files removed and clocks moved,
while others read, until enough faults have fired; then the study must be over within two minutes. After it a study that
is really trained is hit again and again as it trains (`--program`, faults), also on a Ray cluster (`--ray 0`: not), and
replayed in part. With `--service` it is four studies in the queue of a service that are really trained while the
service and its database are hit. Exit status 0: every promise was kept; 1: the findings, one a line; 2: too few faults
fired to tell.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from spaces.records import TERMINAL
from tests.support.databases import DATABASES
from tests.support.faults.auditor import Finding, Verdict, audit, gather
from tests.support.faults.farm import Farm
from tests.support.faults.history import Event, events
from tests.support.faults.launchers import Launchers
from tests.support.faults.on_ray import torment_on_ray
from tests.support.faults.program import Program
from tests.support.faults.proxy import Proxy
from tests.support.faults.readers import Readers
from tests.support.faults.server import MortalServer, mortal_server
from tests.support.faults.service_storm import storm_over_service
from tests.support.faults.storm import Storm
from tests.support.faults.toy import LEASE_SECONDS
from tests.support.faults.worker import CALM
from tests.support.launch_faults import after, open_nursery
from tests.support.launches import SPACE, TRIALS, running, search

WORKERS, LANES, MEAN_STEPS = 3, 2, 65
"""Half of the trials are pruned."""
STORM_SHARE = 0.8
"""Of the time that the trials would take if nothing happened: in that all faults are to fire."""
SETTLE_SECONDS = 120.0
PROGRESS_SECONDS = 15.0
TICK_SECONDS = 0.02
KILLS = 3
"""Of the study that is really trained."""
PASSED, BROKEN, VOID = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and how rough."""

    trials: int
    faults: int
    """At least so many have to fire."""
    seconds: float
    """So long the trials would take if nothing happened; the faults are to fire in less."""
    seed: int
    replays: int
    """Trials of the study that is really trained, to be replayed."""
    program: int = 0
    """Faults of these that happen to the study that is really trained."""
    ray: int = 0
    """Whether it is also trained on Ray, with its faults: 0 or 1."""
    steering: str = "honest"
    """Or a promise-breaker of tests.support.faults.steering, who must be found out."""

    @property
    def pace(self) -> float:
        """Seconds of a step of all lanes."""
        return self.seconds * WORKERS * LANES / (self.trials * MEAN_STEPS)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A database, and what it takes to disturb those who use it."""

    name: str
    url: str
    """As the launcher reaches it."""
    direct: str
    """As the auditor does, whatever befalls the network."""
    spare: str
    """Another, empty one, that nothing befalls."""
    server: MortalServer | None = None
    proxy: Proxy | None = None


def soak(database: str, plan: Plan) -> Verdict:
    """Run the toy study through the storm, audit it, and replay trials of the real one."""
    with scene_of(database) as scene, tempfile.TemporaryDirectory() as path:
        folder, chance = Path(path), random.Random(plan.seed)
        farm = Farm(
            url=scene.url,
            trials=plan.trials,
            folder=folder,
            workers=WORKERS,
            lanes=LANES,
            pace=plan.pace,
            steering=plan.steering,
        )
        with Launchers(farm) as launchers:
            storm = Storm(
                target=launchers,
                chance=chance,
                folder=folder,
                freeze_seconds=2 * LEASE_SECONDS,
                url=scene.url,
                server=scene.server,
                proxy=scene.proxy,
            )
            with Readers(scene.direct, random.Random(plan.seed)) as readers:
                settled = weathered(launchers, storm, plan, folder)
        evidence = gather(scene.direct, folder)
        late = [] if settled else [Finding("stuck", f"not over {SETTLE_SECONDS:g} s after the last fault")]
        crashes = [Finding("crash", crash) for crash in launchers.crashes]
        faults = [Finding("fault", wrong) for wrong in (*storm.wrong, *readers.wrong)]
        verdict = Verdict(
            database=scene.name,
            trials=len(evidence.trials),
            faults=storm.total,
            acknowledged=len(evidence.of("acknowledged")),
            findings=[*crashes, *faults, *late, *audit(evidence)],
            notes=[*launchers.notes(), f"read beside it: {told_counts(readers.read)}"],
        )
        if plan.program:
            verdict = torment(scene.spare, chance, plan, verdict)
        elif plan.replays:
            verdict = replace(verdict, replays=replayed(scene.spare, chance, plan.replays))
        return verdict


def torment(url: str, chance: random.Random, plan: Plan, verdict: Verdict) -> Verdict:
    """Return the verdict with what becomes of a study that is really trained."""
    with tempfile.TemporaryDirectory() as folder:
        program = Program(url=url, folder=Path(folder), chance=chance, faults=plan.program)
        program.hit()
        program.finish()
        numbers = chance.sample(range(TRIALS), plan.replays)
        replays = plan.replays, sum(reproduces(Path(folder), url, number) for number in numbers)
    fired, wrong = program.fired, program.wrong
    if plan.ray:
        on_ray = torment_on_ray(verdict.database)
        fired, wrong = fired + on_ray.fired, wrong + on_ray.wrong
    findings = [*verdict.findings, *(Finding("fault", line) for line in wrong)]
    return replace(verdict, faults=Counter(verdict.faults) + fired, findings=findings, replays=replays)


def soak_service(database: str, faults: int, seed: int) -> Verdict:
    """Run four studies through a storm over the service that runs them, and audit them."""
    with scene_of(database) as scene:
        return storm_over_service(scene.name, scene.url, scene.direct, scene.server, scene.proxy, faults, seed)


def told_counts(counts: Mapping[str, int]) -> str:
    """`query 3, export 1`."""
    return ", ".join(f"{name} {count}" for name, count in counts.items())


@contextmanager
def scene_of(database: str) -> Generator[Scene]:
    """Two new databases of this kind; for PostgreSQL a server that may die, and a proxy before it."""
    if database == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            url = f"sqlite:///{folder}/toy.db"
            yield Scene(name=database, url=url, direct=url, spare=f"sqlite:///{folder}/real.db")
        return
    with mortal_server() as mortal, Proxy(mortal.socket) as proxy:
        for name in ("toy", "real"):
            mortal.server.execute(f"CREATE DATABASE {name}")
        url = f"postgresql://graft:unused-password@127.0.0.1:{proxy.port}/toy"
        direct, spare = mortal.server.url("toy"), mortal.server.url("real")
        yield Scene(name=database, url=url, direct=direct, spare=spare, server=mortal, proxy=proxy)


def weathered(launchers: Launchers, storm: Storm, plan: Plan, folder: Path) -> bool:
    """Strike until enough faults have fired, then leave the study in peace; whether it is over in time."""
    wanted = max(1, plan.faults - plan.program)
    begin, interval = time.monotonic(), STORM_SHARE * plan.seconds / wanted
    strike, tell = begin + interval, begin + PROGRESS_SECONDS
    while not launchers.tend() and sum(storm.total.values()) < wanted:
        storm.tick()
        if time.monotonic() >= strike and storm.strike():
            strike = time.monotonic() + storm.chance.uniform(0.5, 1.5) * interval
        if time.monotonic() >= tell:
            print(told(time.monotonic() - begin, storm, events(folder), plan), file=sys.stderr, flush=True)
            tell += PROGRESS_SECONDS
        time.sleep(TICK_SECONDS)
    storm.calm()
    (folder / CALM).touch()
    deadline = time.monotonic() + SETTLE_SECONDS
    while not launchers.tend() and time.monotonic() < deadline:
        time.sleep(TICK_SECONDS)
    return launchers.done


def told(seconds: float, storm: Storm, seen: Iterator[Event], plan: Plan) -> str:
    """How far it is, in a line."""
    over = {event.number for event in seen if event.kind == "dropped" or event.state in TERMINAL}
    return (
        f"{seconds:.0f} s: {sum(storm.total.values())} of {plan.faults} faults fired, "
        f"{len(over)} of {plan.trials} trials came to an end"
    )


def replayed(url: str, chance: random.Random, count: int) -> tuple[int, int]:
    """Trials of a study that was killed as it trained, trained again alone: how many, and how many gave the same."""
    launch = ("launch", SPACE, "--workers", "2", "--pack", "8", "--storage", url)
    with tempfile.TemporaryDirectory() as folder:
        with open_nursery() as nursery:
            for trials in sorted(chance.choices(range(TRIALS - 8), k=KILLS)):
                nursery.killed(after(url, trials, chance.uniform(0, 0.5)), *launch)
        search(Path(folder), *launch)
        numbers = chance.sample(range(TRIALS), count)
        return count, sum(reproduces(Path(folder), url, number) for number in numbers)


def reproduces(folder: Path, url: str, number: int) -> bool:
    """Whether the program finds that the trial gives the same numbers again."""
    with running(folder, "replay", "tiny", str(number), "--storage", url) as process:
        process.communicate()
        return process.returncode == 0


def main() -> None:
    """Say of each database what became of the study in it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*DATABASES, "both"), default="both")
    parser.add_argument("--trials", type=int, default=1500)
    parser.add_argument("--service", action="store_true", help="the storm hits a service with four studies queued")
    parser.add_argument("--faults", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--program", type=int, default=30, help="how many of the faults hit the real program")
    parser.add_argument("--ray", type=int, choices=(0, 1), default=1, help="whether it is also hit on Ray")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--replays", type=int, default=3)
    parser.add_argument(
        "--steering", default="honest", help="honest, or who breaks a promise: tests.support.faults.steering"
    )
    options = vars(parser.parse_args())
    databases = DATABASES if options["database"] == "both" else (options["database"],)
    del options["database"]
    of_service = options.pop("service")
    plan = Plan(**options)
    print(f"seed {plan.seed}", file=sys.stderr, flush=True)
    if of_service:
        sys.exit(max(status(soak_service(name, plan.faults, plan.seed), plan.faults) for name in databases))
    sys.exit(max(status(soak(database, plan), plan.faults) for database in databases))


def status(verdict: Verdict, faults: int) -> int:
    """Print the verdict; the exit status that it stands for."""
    for line in (*verdict.notes, *(f"{finding.rule}: {finding.what}" for finding in verdict.findings)):
        print(line)
    print(verdict, flush=True)
    if sum(verdict.faults.values()) < faults:
        print(f"void: fewer than {faults} faults fired before the study was over; give it more --trials or --seconds")
        return VOID
    return PASSED if verdict.passed else BROKEN


if __name__ == "__main__":
    main()
