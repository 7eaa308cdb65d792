"""A worker on a node of a cluster is asked for its questions, and a new one follows where its lease ran out."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from spaces.plugins.bundles import Outside
from spaces.records import Directives, Offer, Report
from tests.support.launches import ROOT
from tests.support.ray_pool import FakeController, offer
from tests.support.trials import config, trial
from workers.engine.machine.devices import default_workers
from workers.pool.controller_proxy import ControllerProxy
from workers.pool.logs import log_exchange
from workers.pool.ray import placed_worker
from workers.pool.ray.placed_worker import PlacedWorker
from workers.pool.ray.questions import Question, StudyInstructions
from workers.pool.ray.tune import PackTrial
from workers.pool.worker_settings import WorkerSettings


class Context:
    current_actor = "this actor"

    def get_node_id(self) -> str:
        return "node-7"


class FakeWorker:
    """Exchanges once, from a thread of its own as a worker does; the lease of the first of all has run out."""

    made: list[FakeWorker]

    def __init__(self, name: str, settings: WorkerSettings, exchange: Any, renew: Any) -> None:
        assert settings.width == 4
        assert settings.sharing == 3 * default_workers("cpu"), "three a core"
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


@pytest.fixture
def on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker of a cluster run in this process."""
    FakeWorker.made = []
    monkeypatch.setattr(placed_worker.ray, "get_runtime_context", Context)
    monkeypatch.setattr(placed_worker, "make_worker", FakeWorker)
    monkeypatch.setattr(placed_worker, "begin_log", lambda: None)
    monkeypatch.setattr(placed_worker, "prepare", lambda: None)


async def serve(worker: PlacedWorker | PackTrial, proxy: ControllerProxy) -> str | None:
    """Answer a worker of slot 5 until it ends; why it did."""
    answers = {"attach": lambda name: proxy.attach(5, name), "exchange": proxy.exchange, "renew": proxy.renew}

    async def carry(line: str) -> str | None:
        question = await worker.fetch(line)
        while isinstance(question, Question):
            question = await worker.fetch(line, answers[question.kind](*question.arguments))
        return question.reason

    await worker.begin(5, StudyInstructions(width=4, saving=None, outside=Outside(), sharing=3))
    renewing = asyncio.create_task(carry("renew"))
    reason = await carry("exchange")
    renewing.cancel()
    return reason


@pytest.mark.usefixtures("on_a_node")
def test_a_worker_whose_lease_ran_out_goes_on_under_a_new_name_in_its_slot():
    controller = FakeController()
    assert asyncio.run(serve(PlacedWorker(), ControllerProxy(controller))) is None
    first, second = (worker.name for worker in FakeWorker.made)
    assert first != second
    assert first.startswith("ray-5-")
    assert second.startswith("ray-5-")
    assert controller.told == [
        f"exchange {first}", f"renew {first}", f"lost {first}", f"exchange {second}", f"renew {second}",
    ]  # fmt: skip
    assert [worker.renewed for worker in FakeWorker.made] == [True, True]


@pytest.mark.usefixtures("on_a_node")
def test_a_worker_that_crashes_says_why(monkeypatch: pytest.MonkeyPatch):
    def crash(*arguments: object) -> None:
        raise ValueError("first\nno such device")

    monkeypatch.setattr(placed_worker, "make_worker", crash)
    assert asyncio.run(serve(PlacedWorker(), ControllerProxy(FakeController()))) == "no such device"


@pytest.mark.usefixtures("on_a_node")
def test_tune_has_the_totals_of_a_worker_after_each_exchange_with_reports():
    async def run(reason: str | None) -> list[dict[str, Any]]:
        trial = PackTrial({})
        results = [await trial.train()]
        assert await serve(trial, ControllerProxy(FakeController())) is None
        await trial.finish(reason)
        while not results[-1]["done"]:
            results.append(await trial.train())
        return results

    results = asyncio.run(run(None))
    assert results[0]["actor"] == "this actor"
    assert [result["reports"] for result in results] == [0, 2]
    assert [result["free_lanes"] for result in results] == [0, 1]
    assert {result["node"] for result in results} == {"node-7"}
    FakeWorker.made = []
    with pytest.raises(RuntimeError, match="out of memory"):
        asyncio.run(run("out of memory"))


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
        completed = subprocess.run(command, cwd=ROOT, stderr=err, stdout=subprocess.PIPE, text=True, env=environment)
    assert completed.stdout.strip() == str(tmp_path / "err")
    [line] = (tmp_path / "err").read_text().splitlines()
    assert line.endswith(" INFO placed")
    piped = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert piped.stdout.strip() == ""
