"""Confirmations of an experiment under stopping policies, which neither stop them nor learn from them."""

from __future__ import annotations

import pytest

from graft.plugins.families import families
from search.steering.controller import Controller
from search.stopping.asha import HalvingMonitor
from spaces import parse
from spaces.experiment import ExperimentSpace
from spaces.records import Report
from tests.support.controller import POLICIES, FakeWorker, Rows, finish

pytestmark = pytest.mark.fast

SPACE = """
study: confirmed
arms:
  softmax:
  average: {model.scorer: average}
confirm: {top: 1, seeds: 12}
task: {name: set_complement, length: 4, vocabulary: 9}
model: {name: minimal, width: 12, key_width: 6, value_width: 9}
optimizer: {name: adamw, learning_rate: 10 ** uniform(-5, -1)}
training: {steps: 100}
search: {trials: 20, objective: {minimize: tvd/raw}}
"""


def experiment(policy: str) -> ExperimentSpace:
    space = parse(SPACE, "confirmed.yaml", families(), {"search.stopping": policy})
    assert isinstance(space, ExperimentSpace)
    return space


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_a_stopping_policy_stops_configurations_and_no_confirmation(policy: str) -> None:
    space, memory = experiment(policy), Rows()
    finish(Controller.begin(space, memory), FakeWorker("a", 5), FakeWorker("b", 5))
    states = [memory.rows[number].state for number in range(space.planned)]
    assert "pruned" in states[: space.tried]
    assert {*states[space.tried :]} <= {"finished", "diverged"}


def test_a_resumed_policy_learns_nothing_of_confirmations(monkeypatch: pytest.MonkeyPatch) -> None:
    space, memory = experiment("{asha: {min_steps: 10, eta: 2}}"), Rows()
    finish(Controller.begin(space, memory), FakeWorker("a", 5))
    recalled: list[Report] = []
    monkeypatch.setattr(HalvingMonitor, "recall_reports", lambda _, reports, states: recalled.extend(reports))
    Controller.begin(space, memory)
    assert {report.number for report in recalled} == {*range(space.tried)}
