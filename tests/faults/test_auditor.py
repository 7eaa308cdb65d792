"""The auditor has nothing to say of a study that went well, and finds each kind of damage done to it by its name."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from graft.launching.enrolling import enrol
from graft.plugins.families import families
from spaces import load
from tests.support.databases import DATABASES, raw
from tests.support.faults.auditor import CHECKS, Finding, Rule, Verdict, audit, gather
from tests.support.faults.history import Event, History, events
from tests.support.faults.steering import Steering
from tests.support.faults.toy import SPACE, STUDY
from tests.support.faults.worker import ToyWorker

TRIALS = 12
Damage = Callable[[str, Path], object]
"""Done to the database at a URL, or to the histories in a folder."""


@pytest.fixture(scope="module", params=DATABASES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Yield the URL of a study that one worker trained and nobody disturbed, and the folder of its histories."""
    folder = tmp_path_factory.mktemp("histories")
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('study')}/graft.db"
        train(url, folder)
        yield url, folder
        return
    with request.getfixturevalue("postgres").database() as url:
        train(url, folder)
        yield url, folder


def train(url: str, folder: Path) -> None:
    enrol(url, STUDY, load(str(SPACE), families(), {"search.trials": f"{TRIALS}"}))
    steering = Steering(url, STUDY)
    worker = ToyWorker(
        name="worker", width=4, pace=0, exchange=steering.exchange, history=History(folder, "worker"), folder=folder
    )
    worker.run()
    standing = steering.progress()
    steering.close()
    assert standing.best_number is not None
    History(folder, "launcher").add(Event(kind="closed", number=standing.best_number, best=standing.best))


@pytest.fixture
def folder(trained: tuple[str, Path], tmp_path: Path) -> Path:
    """Return a copy of the histories, to be damaged."""
    return Path(shutil.copytree(trained[1], tmp_path / "histories"))


@pytest.fixture
def url(trained: tuple[str, Path], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield a copy of the database, to be damaged."""
    original = make_url(trained[0]).database
    assert original
    if trained[0].startswith("sqlite"):
        yield f"sqlite:///{shutil.copy(original, tmp_path)}"
        return
    with request.getfixturevalue("postgres").database(template=original) as copy:
        yield copy


def told(**seen: object) -> Damage:
    """One more line in a worker's history."""
    return lambda url, folder: History(folder, "liar").add(Event(**seen))  # type: ignore[arg-type]


def done(statement: str) -> Damage:
    """Return a statement; ONE stands for the id of a trial that finished."""
    trial = "(SELECT min(id) FROM trials WHERE state = 'finished')"
    return lambda url, folder: raw(url, statement.replace("ONE", trial))


def changed(change: str) -> Damage:
    """Something of a trial that finished is another."""
    return done(f"UPDATE trials SET {change} WHERE id = ONE")


def gone(which: str) -> Damage:
    """Metrics of a trial that finished are not there."""
    return done(f"DELETE FROM metrics WHERE trial_id = ONE AND {which}")


def one_digit_changed(url: str, folder: Path) -> None:
    [(trial, value)] = raw(url, "SELECT trial_id, value FROM metrics WHERE step = 20 AND name = 'loss' LIMIT 1")
    after = math.nextafter(value, math.inf)
    raw(url, f"UPDATE metrics SET value = {after!r} WHERE trial_id = {trial} AND step = 20 AND name = 'loss'")


def ended_again(url: str, folder: Path) -> None:
    end = next(event for event in events(folder) if event.kind == "acknowledged" and event.state == "finished")
    History(folder, "liar").add(end)


def started_after_its_end(url: str, folder: Path) -> None:
    end = next(event for event in events(folder) if event.kind == "acknowledged" and event.state == "finished")
    told(kind="started", number=end.number, fence=end.fence + 1)(url, folder)
    raw(url, f"UPDATE trials SET fence = fence + 1 WHERE number = {end.number}")


def trial_removed(url: str, folder: Path) -> None:
    raw(url, "DELETE FROM metrics WHERE trial_id = (SELECT max(id) FROM trials)")
    raw(url, "DELETE FROM trials WHERE id = (SELECT max(id) FROM trials)")


INSERTED = "INSERT INTO metrics SELECT trial_id, step + 1, name, variant, condition, value FROM metrics"
DAMAGES: list[tuple[str, Rule, Damage]] = [
    ("a metric of an acknowledged step is gone", "lost", gone("step = 20")),
    ("a finished trial is pruned", "lost", changed("state = 'pruned'")),
    ("an acknowledged trial is not there", "lost", told(kind="acknowledged", number=TRIALS, step=20)),
    ("a trial ends twice", "doubled", ended_again),
    ("a trial starts after its end", "doubled", started_after_its_end),
    ("a trial runs", "stuck", changed("state = 'running', objective = NULL")),
    ("a trial waits", "stuck", changed("state = 'queued', objective = NULL")),
    ("the study runs", "stuck", done("UPDATE studies SET state = 'running'")),
    ("one of two metrics is gone", "dropped", gone("step = 20 AND name = 'loss'")),
    ("a step is there twice", "undue", done(f"{INSERTED} WHERE trial_id = ONE AND step = 20")),
    ("a last digit is another", "value", one_digit_changed),
    ("a value is not a number", "value", done("UPDATE metrics SET value = NULL WHERE trial_id = ONE AND step = 20")),
    ("an objective is another", "best", changed("objective = objective / 2")),
    ("an objective is missing", "best", changed("objective = NULL")),
    ("a worse trial is called the best", "best", told(kind="closed", number=TRIALS - 1, best=0.9)),
    ("a trial ends otherwise", "ending", changed("state = 'failed', objective = NULL")),
    ("a trial stops early", "ending", changed("steps = steps - 20")),
    ("a trial ends at no time", "ending", changed("finished_at = NULL")),
    ("a trial is removed", "count", trial_removed),
    ("a trial is one too many", "count", done(f"UPDATE studies SET trials = {TRIALS - 1}")),
    ("a trial started that is not there", "count", told(kind="started", number=TRIALS, fence=1)),
    ("the study has a step too many", "steps", done("UPDATE studies SET steps = steps + 1")),
    ("two starts have one fence", "fence", told(kind="started", number=0, fence=1)),
    ("a start has a fence that nobody gave", "fence", told(kind="started", number=0, fence=9)),
    ("a start has no fence", "fence", told(kind="started", number=0, fence=0)),
]


def test_a_study_that_went_well_passes(url: str, folder: Path) -> None:
    evidence = gather(url, folder)
    assert audit(evidence) == []
    assert len(evidence.trials) == TRIALS
    assert {trial.state for trial in evidence.trials} >= {"finished", "pruned"}
    assert len(evidence.of("acknowledged")) > 2 * TRIALS


@pytest.mark.parametrize(("rule", "damage"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES])
def test_damage_is_found_by_its_name(url: str, folder: Path, rule: Rule, damage: Damage) -> None:
    damage(url, folder)
    assert rule in {finding.rule for finding in audit(gather(url, folder))}


def test_dropped_metrics_are_named_with_their_steps(url: str, folder: Path) -> None:
    """Those that nobody was told of, too: a simulation or a storm in which the last metric is dropped says so."""
    gone("name = 'loss' AND step IN (20, 40)")(url, folder)
    [line] = [finding.what for finding in audit(gather(url, folder)) if finding.rule == "dropped"]
    assert re.fullmatch(r"trial \d+ \(\w+, \d+ steps\) lacks 2 metrics: loss/raw at steps 20, 40", line), line
    verdict = Verdict(
        database="sqlite", trials=9, faults={}, acknowledged=1, findings=audit(gather(url, folder)), replays=(0, 0)
    )
    assert ", metrics dropped of 1 trials, " in str(verdict)
    assert str(verdict).endswith(": FAIL")


def test_a_metric_of_no_trial_is_found(url: str, folder: Path) -> None:
    if url.startswith("postgresql"):
        pytest.skip("the server refuses it")
    raw(url, "DELETE FROM trials WHERE number = 0")
    assert {finding.rule for finding in audit(gather(url, folder))} >= {"file", "count"}


def test_every_rule_is_broken_by_some_damage() -> None:
    assert {rule for _, rule, _ in DAMAGES} | {"file"} == CHECKS.keys()


def test_a_verdict_is_told_in_a_line() -> None:
    verdict = Verdict(database="sqlite", trials=9, faults={"launcher": 2, "worker": 1}, acknowledged=40, findings=[])
    assert str(verdict) == (
        "soak sqlite: 9 trials, 3 faults fired (launcher 2, worker 1), acknowledged 40, lost 0, doubled 0, stuck 0, "
        "metrics dropped of 0 trials, otherwise wrong 0, replayed 0 of 0: PASS"
    )
    broken = Verdict(database="sqlite", trials=9, faults={}, acknowledged=40, findings=[Finding("lost", "trial 3")])
    assert "lost 1, doubled 0, stuck 0, metrics dropped of 0 trials, otherwise wrong 0" in str(broken)
    assert not broken.passed
    assert not Verdict(database="sqlite", trials=9, faults={}, acknowledged=1, findings=[], replays=(3, 2)).passed
