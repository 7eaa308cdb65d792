"""The four commands of a GPU's first day, on a CPU: rows that survive crashes, and no package but torch and numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import checks
from benchmarks.gpu.__main__ import ROOT
from benchmarks.gpu.report import page
from benchmarks.gpu.results import Results

BARE = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {"polars", "sqlalchemy", "alembic", "typer", "rich", "optuna", "scipy"}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
from benchmarks.gpu.checks import checks
from benchmarks.gpu.rates import CASES, steps_of, trial_of
import torch
cpu = torch.device("cpu")
print([name for name, _ in checks("cpu")][0], [[*steps_of(trial_of(one), cpu)] for one in CASES.values()][0])
"""


def results(folder: Path, seconds: float = 60, **about: str) -> Results:
    return Results(folder / "rows.jsonl", "checks", {"device": "one", "torch": "2.13.0", **about}, seconds)


def test_a_failure_is_a_row_and_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    first = results(tmp_path)
    first.add("good", lambda: {"model-steps/s": 1234.5})
    first.add("bad", lambda: checks.equal("parameters differ", None))
    assert first.failed == 1
    assert capsys.readouterr().out == "good: model-steps/s 1,234\nbad: AssertionError: parameters differ\n"
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["name"], row["value"], row["failure"]) for row in rows] == [
        ("good", {"model-steps/s": 1234.5}, None),
        ("bad", {}, "AssertionError: parameters differ"),
    ]


def test_a_command_goes_on_where_it_ended_and_tries_again_what_failed(tmp_path: Path):
    ran: list[str] = []

    def act(name: str, value: Any = None) -> dict[str, Any]:
        ran.append(name)
        return checks.equal(value, None)

    first = results(tmp_path)
    first.add("good", lambda: act("good"))
    first.add("bad", lambda: act("bad", "differs"))
    again = results(tmp_path)
    again.add("good", lambda: act("good"))
    again.add("bad", lambda: act("bad"))
    results(tmp_path, torch="another").add("good", lambda: act("good"))
    assert ran == ["good", "bad", "bad", "good"]
    assert "| bad | agrees yes |" in page(tmp_path / "rows.jsonl")


def test_a_process_that_goes_on_after_a_lost_context_keeps_its_failures_and_tries_older_ones_again(tmp_path: Path):
    def fail() -> dict[str, Any]:
        raise RuntimeError("an illegal memory access was encountered")

    yesterday = results(tmp_path)
    assert not yesterday.add("older", fail)
    today = results(tmp_path)
    assert not today.add("lost", fail)
    ran: list[str] = []
    goes_on = Results(tmp_path / "rows.jsonl", "checks", {"device": "one", "torch": "2.13.0"}, 60, since=today.since)
    for name in ("lost", "older"):
        assert goes_on.add(name, lambda name=name: ran.append(name) or {})
    assert (ran, goes_on.failed) == (["older"], 1)


def test_no_row_is_begun_after_its_time(tmp_path: Path):
    late = results(tmp_path, seconds=-1)
    late.add("any", dict)
    assert (late.left, (tmp_path / "rows.jsonl").exists()) == (1, False)


@pytest.mark.parametrize("name", ["minimal with dropout", "transformer on copying"])
def test_packs_are_checked_against_their_trials_alone(name: str, monkeypatch: pytest.MonkeyPatch):
    structure = checks.STRUCTURES[name]
    assert checks.packed_as_alone(structure, "cpu") == {"largest difference": "0.0e+00"}
    train = checks.train

    def shifted(*given: Any, **options: Any) -> Any:
        states = train(*given, **options)
        return [[tensor * (1 + 1e-3 * options["trials"]) for tensor in state] for state in states]

    monkeypatch.setattr(checks, "train", shifted)
    with pytest.raises(AssertionError, match=r"differs by 0\.00"):
        checks.packed_as_alone(structure, "cpu")


@pytest.mark.long
def test_checks_and_rates_need_torch_and_numpy_alone():
    done = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "versions ['native step', 'traced step']\n", done.stderr
