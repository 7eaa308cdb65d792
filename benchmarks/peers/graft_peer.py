"""Graft: `search launch` on a space file that says the same as the plan."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.peers.catalogue import PROBLEMS
from benchmarks.peers.plan import Peer, Plan, Trained


class Graft(Peer):
    """`search launch`, inline: a worker per core, SQLite."""

    def command(self, plan: Plan, folder: Path) -> list[str]:
        (folder / "space.yaml").write_text(json.dumps(space(plan), indent=2))  # JSON is YAML
        return launch_command("space.yaml", plan.processes)

    def results(self, folder: Path) -> list[Trained]:
        seconds = "(julianday({}) - 2440587.5) * 86400"
        query = (
            f"SELECT steps, {seconds.format('started_at')}, {seconds.format('finished_at')}, objective "
            "FROM trials WHERE state IN ('finished', 'diverged')"
        )
        with closing(sqlite3.connect(folder / "graft.db")) as connection:
            return [Trained(*row) for row in connection.execute(query)]


def launch_command(space: str, workers: int, *options: str) -> list[str]:
    """`search launch` into the file graft.db of the working directory."""
    where = ["--executor", "inline", "--device", "cpu", "--workers", str(workers), "--storage", "sqlite:///graft.db"]
    return [sys.executable, "-m", "graft_search", "launch", space, *where, *options]


def space(plan: Plan) -> dict[str, Any]:
    """Return the plan as a space."""
    problem = PROBLEMS[plan.task]
    sections: dict[str, Any] = {**problem.fixed(), "optimizer": {"name": "adamw"}, "averaging": {"name": "bema"}}
    for path, draw in problem.draws(plan.dropout).items():
        *sites, name = path.split(".")
        section = sections
        for site in sites:
            section = section.setdefault(site, {})
        section[name] = draw.expression
    sections["optimizer"]["schedule"]["name"] = "linear"
    return {
        "study": "peers",
        **sections,
        "training": {
            "steps": plan.steps,
            "batch": problem.batch,
            "validate_every": plan.validate_every,
            "validation_batch": plan.validation_batch,
        },
        "search": {
            "sampler": "random",
            "seed": plan.seed,
            "trials": plan.trials,
            "group": plan.trials,
            "objective": {problem.direction: problem.objective, "at": "last"},
        },
    }
