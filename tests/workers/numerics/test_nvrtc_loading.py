"""NVRTC loaded from NVIDIA's wheel: the libraries in the order in which they need one another; no GPU is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.numerics.cuda import compiler

pytestmark = pytest.mark.fast


def test_builtins_are_loaded_before_the_compiler_that_opens_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, builtins = tmp_path / "libnvrtc.so.13", tmp_path / "libnvrtc-builtins.so.13.0"
    for file in (wanted, builtins):
        file.touch()
    loaded: list[str] = []
    monkeypatch.setattr(compiler, "_libraries", lambda: iter([str(wanted)]))
    monkeypatch.setattr(compiler.ctypes, "CDLL", lambda path: loaded.append(path))
    compiler._nvrtc.__wrapped__()
    assert loaded == [str(builtins), str(wanted)]


def test_a_library_that_cannot_be_loaded_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str) -> str:
        if path.startswith("broken"):
            raise OSError(path)
        return path

    monkeypatch.setattr(compiler, "_libraries", lambda: iter(["broken.so", "libnvrtc.so.13"]))
    monkeypatch.setattr(compiler.ctypes, "CDLL", load)
    assert compiler._nvrtc.__wrapped__() == "libnvrtc.so.13"
