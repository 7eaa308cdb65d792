"""The service as a program, with submitted spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage import open_reader
from tests.support.launches import SPACE, search

SERVE = ("serve", "--workers", "2", "--pack", "8")
OTHER = ("--seed", "7", "--set", "model.width=12")
"""What makes another space of it: packs of other shapes."""


def queue(url: str) -> dict[str, Any]:
    """Study -> its entry."""
    with open_reader(url) as reader:
        return {entry.study: entry for entry in reader.queue()}


def submit_both(folder: Path, url: str) -> None:
    search(folder, "submit", SPACE, "--name", "a", "--owner", "ann", "--storage", url)
    search(folder, "submit", SPACE, "--name", "b", "--owner", "bo", *OTHER, "--storage", url)


UNHURRIED = """
import time
from search.steering.controller import Controller
exchange = Controller.exchange

def wait_and_exchange(*arguments):
    time.sleep(0.2)
    return exchange(*arguments)

Controller.exchange = wait_and_exchange
"""
"""Run before a service, which then does not end before it is looked at."""
