"""Systems other than Linux: macOS lacks some calls, and Windows is refused in a line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from graft import shadowing
from graft.launching.process import memory_limits
from workers.engine.machine import devices
from workers.numerics.native import building

pytestmark = pytest.mark.fast

ON_WINDOWS = """
import sys
sys.platform = "win32"
sys.modules["fcntl"] = sys.modules["resource"] = None  # which Windows lacks
{program}
"""
REFUSED = "Graft runs on Linux and macOS; on Windows install it inside WSL, which is a Linux\n"


@pytest.mark.parametrize(
    ("program", "status", "said"),
    [
        ("import graft_search; graft_search.main()", 2, f"error: {REFUSED}"),
        ("import graft", 1, f"ImportError: {REFUSED}"),
    ],
)
def test_windows_is_refused_in_a_line_that_names_wsl(program: str, status: int, said: str) -> None:
    command = [sys.executable, "-c", ON_WINDOWS.format(program=program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr.splitlines(keepends=True)[-1]) == (status, said)


def test_a_system_that_does_not_say_which_cores_a_process_may_use_has_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert memory_limits.usable_cores() == devices.default_workers("cpu") == 7
    memory_limits.check_address_space(None)


@pytest.mark.parametrize(("system", "refused"), [("linux", False), ("darwin", False), ("win32", True)])
def test_macos_is_let_through(system: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", system)
    if refused:
        with pytest.raises(ImportError, match="WSL"):
            shadowing.check_system()
    else:
        shadowing.check_system()


@pytest.mark.parametrize(("machine", "flag"), [("x86_64", "-march=native"), ("arm64", "-mcpu=native")])
def test_apples_clang_is_told_the_processor_in_its_own_words(
    machine: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert building.flags()[-1] == flag
    assert building.flags("armv8-a")[-1] == "-march=armv8-a"
