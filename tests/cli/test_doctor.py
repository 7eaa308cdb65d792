"""`search doctor` says what a machine has and how fast it trains, and writes nothing but its file."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graft.machine import doctor
from graft.machine.doctor import Finding, Rate, examine, measure
from storage import open_store
from tests.support.databases import raw
from tests.support.inside import Run, printing
from workers.engine.machine import devices


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the program in an empty folder."""
    return printing(tmp_path, monkeypatch, capfd)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Rates without training; the devices that were timed."""
    timed: list[tuple[str, bool]] = []

    def rates(device: str, *, bench: bool, show: Any) -> Iterator[Rate]:
        timed.append((device, bench))
        yield Rate(case="set complement", step="native", lanes=1, model_steps_per_second=1234.5)

    monkeypatch.setattr(doctor, "measure", rates)
    return timed


def named(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


@pytest.mark.long
def test_the_doctor_answers_here_within_half_a_minute_and_writes_nothing(here: Run, tmp_path: Path):
    started = time.process_time()
    lines = here("doctor")
    assert time.process_time() - started < 30
    names = [line.split()[0] for line in lines]
    wanted = [
        "graft",
        "torch",
        "processor",
        "compiler",
        "gpu",
        "fused",
        "precision",
        "memory",
        "ray",
        "cache",
        "disk",
        "rate",
    ]
    assert list(dict.fromkeys(names))[: len(wanted)] == wanted
    rates = [line for line in lines if line.startswith("rate")]
    assert {line.rpartition(", ")[2] for line in rates} == {"1 lane", "32 lanes"}
    assert {"traced"} <= {line.split(", ")[-2] for line in rates}
    assert all(float(line.split()[1].replace(",", "")) > 0 for line in rates)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_pack_and_a_native_step_pay():
    """By factors that a busy machine does not hide: processor time of this thread is what counts."""
    rates = {(rate.step, rate.lanes): rate.model_steps_per_second for rate in measure("cpu", bench=False)}
    assert rates["traced", 32] > 1.5 * rates["traced", 1]
    if ("native", 32) in rates:
        assert rates["native", 32] > 1.5 * rates["traced", 32]


@pytest.mark.usefixtures("quick")
def test_a_database_is_looked_at_and_left_as_it_is(here: Run, tmp_path: Path):
    [line] = [text for text in here("doctor", "--storage", "new.db") if text.startswith("database")]
    assert line.endswith("new.db: not there yet, a launch makes it")
    assert list(tmp_path.iterdir()) == []
    open_store(f"sqlite:///{tmp_path}/graft.db").close()
    before = (tmp_path / "graft.db").read_bytes()
    [line] = [text for text in here("doctor", "--storage", "graft.db") if text.startswith("database")]
    assert line.endswith(", 0 studies")
    assert (tmp_path / "graft.db").read_bytes() == before


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file", "file is not a Graft database"),
        ("none/graft.db", "its folder cannot be written to"),
        ("newer.db", "newer than the "),
        ("postgresql://me@127.0.0.1:1/graft", "127.0.0.1:1/graft: connection"),
        ("mysql://host/database", "is not supported"),
    ],
)
def test_a_database_that_cannot_be_used_is_a_problem_and_the_rest_is_told_all_the_same(
    url: str, words: str, here: Run, tmp_path: Path
):
    (tmp_path / "file").write_text("not a database\n")
    open_store(f"sqlite:///{tmp_path}/newer.db").close()
    raw(f"sqlite:///{tmp_path}/newer.db", "UPDATE graft_version SET version_num = '9999'")
    lines = here("doctor", "--storage", url, status=1)
    [line] = [text for text in lines if text.startswith("database")]
    assert line.startswith("database    problem: ")
    assert words in line
    assert any(text.startswith("rate") for text in lines)


def test_bench_writes_json_once(here: Run, tmp_path: Path, quick: list[tuple[str, bool]]):
    *_, last = here("doctor", "--bench", "-o", "machine.json", "--device", "cpu")
    assert last == "machine.json: 1 rates"
    assert quick == [("cpu", True)]
    report = json.loads((tmp_path / "machine.json").read_text())
    assert (report["format"], report["device"]) == (1, "cpu")
    assert report["rates"] == [
        {"case": "set complement", "step": "native", "lanes": 1, "model_steps_per_second": 1234.5, "failure": None}
    ]
    assert {"graft", "torch", "processor", "gpu", "disk"} <= {finding["name"] for finding in report["findings"]}
    [line] = here("doctor", "--bench", "-o", "machine.json", status=2)
    assert line == "error: machine.json exists; overwrite it with --force, or name another file"
    here("doctor", "--bench", "-o", "machine.json", "--force")


@pytest.mark.usefixtures("quick")
def test_a_file_that_cannot_be_written_is_one_line(here: Run):
    assert here("doctor", "--bench", "-o", "/proc/graft.json", "--device", "cpu", status=2)[-1].startswith(
        "error: /proc/graft.json cannot be written: "
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "machine.json"], "--output machine.json goes with --bench"),
        (["--device", "cuda:99"], "--device: 'cuda:99' is not on this machine"),
        (["--bench", "-o", "none/machine.json"], "the folder none does not exist"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    arguments: list[str], words: str, here: Run, quick: list[tuple[str, bool]]
):
    [line] = here("doctor", *arguments, status=2)
    assert line.startswith("error: ")
    assert words in line
    assert quick == []


def test_an_unused_card_and_a_missing_compiler_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "describe_unused_gpu", lambda: "a card, driver 470 is here, but torch cannot use it")
    monkeypatch.setattr("workers.numerics.native.describe_compiler", lambda: "")
    findings = named(examine())
    assert findings["gpu"].text == "a card, driver 470 is here, but torch cannot use it"
    assert findings["compiler"].text == "none, so that steps are traced; install g++, or set CXX"
    assert not any(finding.is_problem for finding in findings.values())


@pytest.mark.slow
def test_a_case_that_fails_is_a_row_and_hides_no_other(monkeypatch: pytest.MonkeyPatch):
    from workers.engine.speed import timing

    def rate(trial: Any, *, width: int, device: str, make: Any) -> float:
        if width == 32:
            raise RuntimeError("CUDA error:\n an illegal memory access")
        return 100.0

    monkeypatch.setattr(timing, "step_rate", rate)
    rows = [(row.lanes, row.model_steps_per_second, row.failure) for row in measure("cpu", bench=False)]
    assert rows == [(1, 100.0, None), (32, 0.0, "CUDA error: an illegal memory access")] * 2


@pytest.mark.long
def test_all_cases_of_the_bench_train(monkeypatch: pytest.MonkeyPatch):
    from workers.engine.speed import timing

    monkeypatch.setattr(timing, "step_rate", partial(timing.step_rate, seconds=0.0))  # one burst shows that it trains
    rates = [*measure("cpu", bench=True)]
    assert {rate.case for rate in rates} == set(doctor.CASES)
    assert all(rate.model_steps_per_second > 0 for rate in rates)
