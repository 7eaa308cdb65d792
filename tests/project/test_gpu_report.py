"""The page that a GPU's first day makes: verdicts by the numbers of docs/log/gpu.md, and rates beside peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.__main__ import ROOT
from benchmarks.gpu.report import page

pytestmark = pytest.mark.fast
PAGE = """## H100, torch 2.13.0

Measured by `python -m benchmarks.gpu`: 8 rows, 1 of them failed.

| path | verdict | by |
| --- | --- | --- |
| traced step | go | 1 of 1 rows passed |
| fused step of minimal transformers | go | 1 of 1 rows passed |
| packs | no-go | 0 of 1 rows passed; not packed as alone: minimal |
| sums: fused step | go | 1.50 times the traced step's rate at 1,024 lanes |

| model-steps/s | one model | 32 lanes | 1,024 lanes |
| --- | --- | --- | --- |
| sums: plain PyTorch, one model | 500 |  |  |
| sums: JAX vmap + scan |  | 9,000 |  |
| sums: traced step |  | 20,000 | 200,000 |
| sums: fused step |  |  | 300,000 |

| row | result |
| --- | --- |
| as on a CPU: minimal | largest difference 1e-6 |
| fused step of minimal transformers | agrees yes |
| packed as alone: minimal | differs by .1 |

## EPYC, torch 2.13.0

Measured by `python -m benchmarks.gpu`: 1 rows, 0 of them failed.

| path | verdict | by |
| --- | --- | --- |
| traced step | go | 1 of 1 rows passed |

| row | result |
| --- | --- |
| as on a CPU: minimal | largest difference 0 |"""


def row(name: str, value: dict[str, Any], failure: str | None = None, device: str = "H100") -> str:
    about = {"device": device, "torch": "2.13.0"}
    command = "rates" if "model-steps/s" in value else "checks"
    return json.dumps({"command": command, "name": name, "value": value, "failure": failure, "about": about})


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "gpu.jsonl"
    lines = [
        row("as on a CPU: minimal", {}, "was mended since"),
        row("as on a CPU: minimal", {"largest difference": "1e-6"}),
        row("fused step of minimal transformers", {"agrees": "yes"}),
        row("packed as alone: minimal", {}, "differs by .1"),
        *(
            row(name, {"model-steps/s": rate})
            for name, rate in (
                ("sums: plain PyTorch, one model", 500.0),
                ("sums: JAX vmap + scan, 32 lanes", 9e3),
                ("sums: traced step, 32 lanes", 2e4),
                ("sums: traced step, 1024 lanes", 2e5),
                ("sums: fused step, 1024 lanes", 3e5),
            )
        ),
        row("as on a CPU: minimal", {"largest difference": "0"}, device="EPYC"),
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_page_has_verdicts_rates_and_failures_of_each_device(rows: Path) -> None:
    assert page(rows) == PAGE


def test_a_step_that_is_slower_is_no_go(rows: Path) -> None:
    rows.write_text(rows.read_text() + row("sums: fused step, 1024 lanes", {"model-steps/s": 1e5}) + "\n")
    assert "| sums: fused step | no-go | 0.50 times the traced step's rate at 1,024 lanes |" in page(rows)


def test_the_step_in_tf32_has_to_be_faster_than_that_in_float32(rows: Path) -> None:
    more = [
        row("sums: fused step in TF32, 1024 lanes", {"model-steps/s": 9e5}),
        row("fused step in TF32", {}, "differ"),
    ]
    rows.write_text("\n".join([rows.read_text().strip(), *more]) + "\n")
    assert "| sums: fused step in TF32 | go | 3.00 times the fused step's rate at 1,024 lanes |" in page(rows)
    assert "| fused step in TF32 | no-go | 0 of 1 rows passed; not fused step in TF32 |" in page(rows)


def test_the_command_prints_it(rows: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "report", str(rows)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "## H100, torch 2.13.0"), done.stderr
