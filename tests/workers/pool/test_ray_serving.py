"""What runs on a node of a cluster: a worker that speaks to the controller's actor, and begins anew when it must."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from spaces.records import Directives, Offer, Report
from tests.support.launches import ROOT
from tests.support.ray_pool import FakeController, offer
from tests.support.trials import config, trial
from workers.pool.logs import log_exchange
from workers.pool.ray import serving as ray_serving
from workers.pool.ray import working
from workers.pool.ray.connecting import SWIFT
from workers.pool.ray.controller_actor import ControllerActor
from workers.pool.worker_settings import WorkerSettings


class Method:
    """A method as an actor's handle has it, called at once."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call

    def options(self, *, concurrency_group: str) -> Method:
        assert concurrency_group == SWIFT
        return self


class Handle:
    """An actor that lives in this process."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Method:
        return Method(getattr(self._actor, name))


class Context:
    def get_node_id(self) -> str:
        return "node-7"


class FakeWorker:
    """Exchanges once, from a thread of its own as a worker does; the lease of the first of all has run out."""

    made: list[FakeWorker]

    def __init__(self, name: str, settings: WorkerSettings, exchange: Any, renew: Any) -> None:
        assert settings.width == 4
        self.name, self.exchange, self.renew = name, exchange, renew
        self.made.append(self)
        self.renewed: bool | None = None

    def run(self) -> bool:
        report = Report(number=3, step=20, metrics=())
        thread = threading.Thread(target=self.exchange, args=([report], offer(self.name)))
        thread.start()
        thread.join()
        self.renewed = self.renew()
        return len(self.made) > 1


def test_a_worker_whose_lease_ran_out_goes_on_under_a_new_name_in_its_slot(monkeypatch: pytest.MonkeyPatch):
    controller, reports = FakeController(), []
    FakeWorker.made = []
    monkeypatch.setattr(ray_serving.ray, "get", lambda value: value)
    monkeypatch.setattr(ray_serving.ray, "get_runtime_context", Context)
    monkeypatch.setattr(ray_serving.tune, "report", reports.append)
    monkeypatch.setattr(working, "make_worker", FakeWorker)
    monkeypatch.setattr(ray_serving, "begin_log", lambda: None)
    monkeypatch.setattr(ray_serving, "prepare", lambda: None)
    ray_serving.serve(Handle(ControllerActor(lambda: controller)), 5, 4, None)
    first, second = (worker.name for worker in FakeWorker.made)
    assert first != second
    assert first.startswith("ray-5-")
    assert second.startswith("ray-5-")
    assert controller.told == [
        f"exchange {first}", f"renew {first}", f"lost {first}", f"exchange {second}", f"renew {second}",
    ]  # fmt: skip
    assert [worker.renewed for worker in FakeWorker.made] == [True, True]
    assert [report["reports"] for report in reports] == [0, 1, 1]
    assert {report["node"] for report in reports} == {"node-7"}


def test_a_log_says_what_is_started_stopped_and_failed(caplog: pytest.LogCaptureFixture):
    started = tuple(trial(number, config()) for number in range(10))

    def exchange(reports: Sequence[Report], offer: Offer) -> Directives:
        return Directives(start=started, stop=(41,))

    failed = Report(number=12, step=60, metrics=(), state="diverged", error="loss was not finite")
    with caplog.at_level(logging.INFO, logger="graft"):
        assert log_exchange(exchange)([failed], offer("w")).stop == (41,)
    assert [record.getMessage() for record in caplog.records] == [
        "trial 12 diverged at step 60: loss was not finite",
        "w: 1 lanes free; starts 10 trials: 0, 1, 2, 3, 4, 5, 6, 7 ... 9; stops 1 trials: 41",
    ]


def test_an_exchange_that_changes_nothing_is_not_worth_a_line(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, logger="graft"):
        log_exchange(lambda reports, offer: Directives())([], offer("w"))
    assert not caplog.records


def test_a_log_names_the_file_that_it_is_written_to(tmp_path: Path):
    program = """
import logging
from workers.pool.logs import begin_log, log_file
begin_log()
begin_log()
logging.getLogger("graft.worker").info("placed")
print(log_file())
"""
    with open(tmp_path / "err", "w") as err:
        command = [sys.executable, "-c", program]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        found = subprocess.run(command, cwd=ROOT, stderr=err, stdout=subprocess.PIPE, text=True, env=environment)
    assert found.stdout.strip() == str(tmp_path / "err")
    [line] = (tmp_path / "err").read_text().splitlines()
    assert line.endswith(" INFO placed")
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert piped.stdout.strip() == ""
