"""Holds what a database says against what the workers saw and against what the trials must have said.

It shares no code with storage or the controller: it asks the database by its driver alone, and works out every number
again. `audit` is for a study that is over, whoever was killed on the way.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psycopg

from tests.support.faults.history import Event, events
from tests.support.faults.toy import OBJECTIVE, Fate, curve, fate_of

Rule = Literal[
    "lost",
    "doubled",
    "stuck",
    "dropped",
    "undue",
    "value",
    "best",
    "ending",
    "count",
    "steps",
    "fence",
    "file",
    "crash",
    "fault",
]
NOBODY = -1
DEATHS = 5
"""Of workers with one trial; more are not risked."""
Key = tuple[int, str, str, str]
"""(step, name, variant, condition)."""
_OVER = ("finished", "pruned", "diverged", "failed")
_OPEN = ("queued", "running")
_TRIALS = "SELECT id, number, state, steps, objective, fence, seed, finished_at, error, config FROM trials"
_METRICS = "SELECT trial_id, step, name, variant, condition, value FROM metrics"


class Finding(NamedTuple):
    """One broken promise; a crash is found by who watches the launchers, a fault without its effect by who made it."""

    rule: Rule
    what: str


class StoredTrial(NamedTuple):
    """A row of the table trials."""

    id: int
    number: int
    state: str
    steps: int
    objective: float | None
    fence: int
    seed: int
    finished_at: Any
    error: str | None
    config: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """All that is left of a study."""

    study: Mapping[str, Any]
    """state, trials and steps of its row."""
    trials: Sequence[StoredTrial]
    metrics: Mapping[int, Mapping[Key, float | None]]
    """By the trial's number; NOBODY where there is no such trial."""
    events: Sequence[Event]
    damage: Sequence[str] = ()
    """What the database itself finds broken."""

    @cached_property
    def by_number(self) -> Mapping[int, StoredTrial]:
        """Number -> the trial."""
        return {trial.number: trial for trial in self.trials}

    def of(self, kind: str) -> list[Event]:
        """Return the events of one kind."""
        return [event for event in self.events if event.kind == kind]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a study in a storm."""

    database: str
    trials: int
    faults: Mapping[str, int]
    """Kind of fault -> how many fired."""
    acknowledged: int
    """Reports of which a worker was told that they are recorded."""
    findings: Sequence[Finding]
    replays: tuple[int, int] = (0, 0)
    """Trials that were trained again by the program, and those of them that gave the same numbers."""
    notes: Sequence[str] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether every promise was kept."""
        return not self.findings and self.replays[0] == self.replays[1]

    def __str__(self) -> str:
        broken = Counter(finding.rule for finding in self.findings)
        other = broken.total() - sum(broken[rule] for rule in ("lost", "doubled", "stuck", "dropped"))
        fired = ", ".join(f"{kind} {count}" for kind, count in self.faults.items())
        tried, same = self.replays
        return (
            f"soak {self.database}: {self.trials} trials, {sum(self.faults.values())} faults fired ({fired}), "
            f"acknowledged {self.acknowledged}, lost {broken['lost']}, doubled {broken['doubled']}, "
            f"stuck {broken['stuck']}, metrics dropped of {broken['dropped']} trials, otherwise wrong {other}, "
            f"replayed {same} of {tried}: "
            f"{'PASS' if self.passed else 'FAIL'}"
        )


def gather(url: str, folder: Path) -> Evidence:
    """Return what the database at `url`, which holds one study, and the histories in `folder` say."""
    [(state, planned, steps)] = rows(url, "SELECT state, trials, steps FROM studies")
    trials = [StoredTrial(*row[:-1], config=_parsed(row[-1])) for row in rows(url, f"{_TRIALS} ORDER BY number")]
    numbers = {trial.id: trial.number for trial in trials}
    metrics: dict[int, dict[Key, float | None]] = defaultdict(dict)
    for trial, step, name, variant, condition, value in rows(url, _METRICS):
        metrics[numbers.get(trial, NOBODY)][step, name, variant, condition] = value
    return Evidence(
        study={"state": state, "trials": planned, "steps": steps},
        trials=trials,
        metrics=metrics,
        events=[*events(folder)],
        damage=_damage(url),
    )


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    """Return the answer to a query, by the driver alone."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def audit(evidence: Evidence) -> list[Finding]:
    """Every broken promise; none for a study that is finished as if nothing had happened."""
    return [Finding(rule, what) for rule, check in CHECKS.items() for what in check(evidence)]


def _lost(evidence: Evidence) -> Iterator[str]:
    """Acknowledged and not stored. What an earlier start had said may be beyond the end of a trial pruned later."""
    for event in evidence.of("acknowledged"):
        trial = evidence.by_number.get(event.number)
        if trial is None:
            yield f"trial {event.number} is not there, though step {event.step} was acknowledged to {event.writer}"
        elif event.state != "running" and trial.state != event.state:
            yield f"trial {event.number} is {trial.state}, though {event.state} was acknowledged to {event.writer}"
        elif _must_be_stored(event, trial) and event.step not in _stored_steps(evidence, trial):
            yield f"trial {event.number} has no step {event.step}, which was acknowledged to {event.writer}"


def _must_be_stored(event: Event, trial: StoredTrial) -> bool:
    """Whether the report had metrics that nothing could make void since."""
    pruned_earlier = trial.state == "pruned" and event.fence < trial.fence and event.step > trial.steps
    return event.state in ("running", "finished") and not pruned_earlier


def _doubled(evidence: Evidence) -> Iterator[str]:
    """Yield the trials that ended, and were told so, and yet ended again or were started again."""
    endings: dict[int, list[Event]] = defaultdict(list)
    for event in evidence.of("acknowledged"):
        if event.state != "running":
            endings[event.number].append(event)
    for number, ends in endings.items():
        if len(ends) > 1:
            yield f"trial {number} has {len(ends)} acknowledged ends"
    for event in evidence.of("started"):
        if any(end.fence < event.fence for end in endings[event.number]):
            yield f"trial {event.number} was started again (fence {event.fence}) after its acknowledged end"


def _stuck(evidence: Evidence) -> Iterator[str]:
    """Nothing waits or runs in a study that is over, and the study says that it is."""
    if evidence.study["state"] != "finished":
        yield f"the study is {evidence.study['state']}"
    for trial in evidence.trials:
        if trial.state in _OPEN:
            yield f"trial {trial.number} is {trial.state}"


def _dropped(evidence: Evidence) -> Iterator[str]:
    """Each due step is stored with all its metrics, whether or not anybody was told so."""
    for trial in evidence.trials:
        if trial.state in _OVER and (missing := _due(trial).keys() - evidence.metrics.get(trial.number, {}).keys()):
            yield f"trial {trial.number} ({trial.state}, {trial.steps} steps) lacks {_name_metrics(missing)}"


def _undue(evidence: Evidence) -> Iterator[str]:
    """No other metric is stored."""
    for trial in evidence.trials:
        if trial.state in _OVER and (more := evidence.metrics.get(trial.number, {}).keys() - _due(trial).keys()):
            yield f"trial {trial.number} ({trial.state}, {trial.steps} steps) has the undue {_name_metrics(more)}"


def _name_metrics(keys: Collection[Key]) -> str:
    """`2 metrics: loss/raw at steps 10, 20`: which, so that a reader sees what was dropped, and where."""
    steps: dict[str, list[int]] = defaultdict(list)
    for step, *key in sorted(keys):
        steps["/".join(filter(None, key))].append(step)
    named = [f"{name} at step{'s' * (len(at) > 1)} {', '.join(map(str, at))}" for name, at in sorted(steps.items())]
    return f"{len(keys)} metric{'s' * (len(keys) > 1)}: {'; '.join(named)}"


def _value(evidence: Evidence) -> Iterator[str]:
    """Each number is what the configuration, the seed and the step make it."""
    for trial in evidence.trials:
        due = _due(trial)
        for key, value in evidence.metrics.get(trial.number, {}).items():
            if key in due and value != due[key]:
                yield f"trial {trial.number} has {key} = {value}, not {due[key]}"


def _best(evidence: Evidence) -> Iterator[str]:
    """Each objective is the best of its metrics; what the launcher called the best trial is it."""
    objectives: dict[int, float] = {}
    for trial in evidence.trials:
        metrics = evidence.metrics.get(trial.number, {})
        values = [value for (_, *key), value in metrics.items() if tuple(key) == OBJECTIVE and value is not None]
        best = min(values, default=None) if trial.state in ("finished", "pruned") else None
        if trial.objective != best:
            yield f"trial {trial.number} ({trial.state}) has the objective {trial.objective}, not {best}"
        if best is not None:
            objectives[trial.number] = best
    winner = min(objectives, key=lambda number: (objectives[number], number), default=-1)
    for event in evidence.of("closed"):
        if (event.number, event.best) != (winner, objectives.get(winner)):
            yield f"{event.writer} called trial {event.number} the best ({event.best}), not trial {winner}"


def _ending(evidence: Evidence) -> Iterator[str]:
    """Yield the trials that did not end as and where they must; a pruned one ends earlier, where it reported."""
    for trial in evidence.trials:
        if trial.state in _OPEN:
            continue
        if trial.state not in _OVER:
            yield f"trial {trial.number} is {trial.state!r}"
        elif trial.finished_at is None:
            yield f"trial {trial.number} is {trial.state} and has no time at which it ended"
        elif (
            trial.state != "pruned"
            and not _is_condemned(trial)
            and Fate(trial.state, trial.steps) != fate_of(trial.config, trial.seed)
        ):  # type: ignore[arg-type]
            yield f"trial {trial.number} is {trial.state} at {trial.steps}, not {fate_of(trial.config, trial.seed)}"


def _is_condemned(trial: StoredTrial) -> bool:
    """Whether so many workers died with it that it counts as their murderer; in a storm an innocent one may."""
    match = re.match(r"(\d+) workers died while they trained it, at last 2 alone", trial.error or "")
    return trial.state == "failed" and match is not None and DEATHS <= int(match[1]) < trial.fence


def _count(evidence: Evidence) -> Iterator[str]:
    """Every planned number is there once, and in one of the states; nobody was given a trial that is not there."""
    counts = Counter(trial.number for trial in evidence.trials)
    planned = set(range(evidence.study["trials"]))
    for number in sorted(planned ^ counts.keys()):
        yield f"trial {number} is {'missing' if number in planned else 'beyond the plan'}"
    for number, count in counts.items():
        if count > 1:
            yield f"trial {number} has {count} rows"
    states = Counter(trial.state for trial in evidence.trials)
    if sum(states[state] for state in (*_OVER, *_OPEN)) != len(evidence.trials):
        yield f"{len(evidence.trials)} trials are {dict(states)}"
    for number in sorted({event.number for event in evidence.of("started")} - counts.keys()):
        yield f"trial {number} was started and is not there"


def _steps(evidence: Evidence) -> Iterator[str]:
    """Yield pruned trials away from their last report, and studies whose steps are not those of their trials."""
    for trial in evidence.trials:
        last = max((step for step, *_ in evidence.metrics.get(trial.number, {})), default=0)
        if trial.state == "pruned" and trial.steps != last:
            yield f"trial {trial.number} was pruned at {trial.steps}, and its last report is of {last}"
    trained = sum(trial.steps for trial in evidence.trials if trial.state in _OVER)
    if evidence.study["steps"] != trained:
        yield f"the study has {evidence.study['steps']} steps, its trials {trained}"


def _fence(evidence: Evidence) -> Iterator[str]:
    """Each start of a trial has a number of its own, and none is above the last one given out."""
    starts = Counter((event.number, event.fence) for event in evidence.of("started"))
    for (number, fence), count in starts.items():
        if count > 1:
            yield f"{count} starts of trial {number} have the fence {fence}"
        if not 0 < fence <= (evidence.by_number[number].fence if number in evidence.by_number else fence):
            yield f"a start of trial {number} has the fence {fence}, the last one is {evidence.by_number[number].fence}"


def _file(evidence: Evidence) -> Iterator[str]:
    """Yield damage that the database finds in itself, and metrics without a trial."""
    yield from evidence.damage
    if NOBODY in evidence.metrics:
        yield f"{len(evidence.metrics[NOBODY])} metrics are of no trial"


CHECKS: Mapping[Rule, Callable[[Evidence], Iterator[str]]] = {
    "lost": _lost,
    "doubled": _doubled,
    "stuck": _stuck,
    "dropped": _dropped,
    "undue": _undue,
    "value": _value,
    "best": _best,
    "ending": _ending,
    "count": _count,
    "steps": _steps,
    "fence": _fence,
    "file": _file,
}
"""Rule -> what breaks it."""


def _due(trial: StoredTrial) -> dict[Key, float]:
    """Return what a trial that stands at its step must have said."""
    whole = curve(trial.config, trial.seed)
    return {
        (step, *key): value for step, metrics in whole.items() if step <= trial.steps for key, value in metrics.items()
    }


def _stored_steps(evidence: Evidence, trial: StoredTrial) -> set[int]:
    return {step for step, *_ in evidence.metrics.get(trial.number, {})}


def _parsed(config: Any) -> Any:
    return json.loads(config) if isinstance(config, str) else config


def _damage(url: str) -> list[str]:
    if not url.startswith("sqlite"):
        return []  # a server checks its pages and references by itself
    lines = [line for (line,) in rows(url, "PRAGMA integrity_check") if line != "ok"]
    return [*lines, *(f"a row refers to nothing: {row}" for row in rows(url, "PRAGMA foreign_key_check"))]
