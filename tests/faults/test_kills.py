"""Launches that are killed again and again go forward, and their studies end as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.faults.kills import Result
from tests.support.databases import DATABASES
from tests.support.launches import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_killed_every_few_seconds_from_the_claim_on_a_study_goes_forward(database: str):
    command = [sys.executable, "-m", "tests.faults.kills", "--kills", "20", "--seed", "14", "--database", database]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=3600)
    assert answer.returncode == 0, answer.stdout
    assert answer.stdout.splitlines()[-1].endswith(": PASS")


@pytest.mark.parametrize(
    ("tens", "states", "same", "passed"),
    [
        ((10, 20), {"finished": 8}, 1, True),
        ((10, 10), {"finished": 8}, 1, False),
        ((0, 20), {"finished": 8}, 1, False),
        ((10, 20), {"finished": 7, "failed": 1}, 1, False),
        ((10, 20), {"finished": 8}, 0, False),
    ],
)
def test_the_verdict_wants_progress_at_each_ten_no_failure_and_equal_metrics(
    tens: tuple[int, ...], states: dict[str, int], same: int, passed: bool
):
    result = Result(database="sqlite", kills=20, tens=tens, states=states, studies=1, same=same)
    assert result.passed is passed
    assert str(result).endswith("PASS" if passed else "FAIL")
