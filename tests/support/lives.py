"""A small study whose trials report a number that follows from their draws."""

from __future__ import annotations

import json
from typing import Any

from graft.launching.enrolling import open_controller
from graft.plugins.families import families
from spaces import load
from spaces.records import Metric, Offer, Report
from spaces.space import Space
from tests.support.databases import raw
from tests.support.launches import SPACE

SMALL = {"search.trials": "4", "search.group": "2"}


def tiny(**overrides: str) -> Space:
    return load(SPACE, families(), SMALL | {path.replace("__", "."): value for path, value in overrides.items()})


def train(url: str, study: str = "tiny") -> None:
    """Run a study without training: each trial reports one number that follows from its draws."""
    controller = open_controller(url, study)
    try:
        reports: list[Report] = []
        while True:
            said = controller.exchange(reports, Offer(worker="w", lanes=3, host="h", device="cpu"))
            if said.done:
                return
            reports = [
                report_of_draws(trial.number, trial.fence, dict(trial.draws), trial.config) for trial in said.start
            ]
    finally:
        controller.close()


def report_of_draws(number: int, fence: int, draws: dict[str, float], config: Any) -> Report:
    total = sum(draws.values())
    values = Metric("tvd", "bema", "", total), Metric("tvd", "raw", "", -total), Metric("loss", "raw", "", 1.0)
    return Report(number=number, fence=fence, step=config["training"]["steps"], metrics=values, state="finished")


def draws(url: str) -> list[tuple[int, Any]]:
    return [(number, json.loads(text)) for number, text in raw(url, "SELECT number, draws FROM trials ORDER BY number")]
