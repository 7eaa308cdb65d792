"""A short soak of each database passes, and a controller that breaks a promise does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.faults.soak import BROKEN, PASSED, VOID, status
from tests.support.databases import DATABASES
from tests.support.faults.auditor import Verdict
from tests.support.faults.steering import STEERINGS
from tests.support.launches import ROOT

TOYS = {"--replays": "0", "--program": "0", "--ray": "0", "--seed": "14"}
"""Storms of the gate blow alike each time; `python -m tests.faults.soak` chooses a seed and says it."""
SHORT = {"--trials": "150", "--faults": "8", "--seconds": "10", **TOYS}
SHORTEST = {"--trials": "40", "--faults": "2", "--seconds": "3", "--database": "sqlite", **TOYS}
FOUND = {"hasty": "doubled", "forgetful": "lost", "confused": "value", "repeating": "undue", "unfenced": "fence"}
"""Who breaks a promise -> a rule that the auditor finds broken."""


def soaked(options: Mapping[str, str], *flags: str) -> tuple[int, list[str]]:
    """Exit status and lines of the program."""
    arguments = [*flags, *(word for option in options.items() for word in option)]
    answer = subprocess.run(
        [sys.executable, "-m", "tests.faults.soak", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=3600,
    )
    return answer.returncode, answer.stdout.splitlines()


@pytest.mark.long
@pytest.mark.parametrize("database", DATABASES)
def test_in_a_storm_nothing_finished_is_lost(database: str) -> None:
    code, lines = soaked({**SHORT, "--database": database})
    assert code == PASSED, "\n".join(lines)
    assert lines[-1].endswith(
        "lost 0, doubled 0, stuck 0, metrics dropped of 0 trials, otherwise wrong 0, replayed 0 of 0: PASS"
    )


@pytest.mark.slow
def test_a_long_storm_loses_nothing_and_its_trials_can_be_replayed() -> None:
    code, lines = soaked({"--trials": "600", "--faults": "60", "--seconds": "150", "--program": "12", "--seed": "14"})
    assert code == PASSED, "\n".join(lines)
    assert sum(line.endswith("replayed 3 of 3: PASS") for line in lines) == len(DATABASES)


@pytest.mark.long
@pytest.mark.parametrize(
    "steering",
    ["forgetful", *(pytest.param(name, marks=pytest.mark.slow) for name in ("confused", "repeating", "unfenced"))],
)
def test_a_broken_promise_is_found_in_a_storm(steering: str) -> None:
    code, lines = soaked({**SHORTEST, "--steering": steering})
    assert code == BROKEN
    assert any(line.startswith(f"{FOUND[steering]}: ") for line in lines), lines


@pytest.mark.slow
def test_an_acknowledgement_before_the_commit_is_found_in_a_storm() -> None:
    code, lines = soaked({**SHORT, "--database": "sqlite", "--steering": "hasty", "--faults": "15", "--seconds": "15"})
    assert code == BROKEN
    assert any(line.startswith(("doubled: ", "lost: ")) for line in lines), lines


def test_everyone_who_breaks_a_promise_is_to_be_found() -> None:
    assert FOUND.keys() | {"honest"} == STEERINGS.keys()


def test_too_few_faults_are_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    verdict = Verdict(database="sqlite", trials=9, faults={"launcher": 2}, acknowledged=40, findings=[])
    assert [status(verdict, faults) for faults in (2, 3)] == [PASSED, VOID]
    assert capsys.readouterr().out.splitlines()[-1].startswith("void: fewer than 3 faults fired")


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_a_service_in_a_storm_loses_nothing(database: str) -> None:
    code, lines = soaked({"--faults": "12", "--database": database, "--seed": "14"}, "--service")
    assert code == PASSED, "\n".join(lines)
