"""What is checked on a GPU needs no memory that a pack will not have, and what is timed there is told at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.machine import doctor
from graft.machine.doctor import Rate
from tests.support.emulated_fusion import emulated_fusion, launch
from tests.support.inside import called
from workers.numerics.fusion.fusions import Fusion
from workers.numerics.tracing import Traced


def a_fusion() -> tuple[Fusion, list[Tensor]]:
    """Return a fusion, and what it is called with."""
    ran: list[tuple[Fusion, list[Tensor]]] = []

    def note(fusion: Fusion, given: Sequence[Tensor]) -> list[Tensor]:
        ran.append((fusion, [*given]))
        return fusion.operate(given)

    with emulated_fusion(note):
        Traced(("test", object()), lambda x: (x * 2).exp().sum(-1))(torch.linspace(0, 1, 12).view(2, 6))
    return ran[-1]


class Full:
    """The operations of a fusion, where memory ends so many times."""

    def __init__(self, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self._operate = times, Fusion.operate
        monkeypatch.setattr(Fusion, "operate", lambda fusion, given: self(fusion, given))

    def __call__(self, fusion: Fusion, given: Sequence[Tensor]) -> list[Tensor]:
        if self.left:
            self.left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return self._operate(fusion, given)


def test_a_kernel_whose_operations_do_not_fit_beside_it_is_compared_on_the_processor(monkeypatch: pytest.MonkeyPatch):
    fusion, given = a_fusion()
    expected = fusion.operate(given)
    moved: list[int] = []
    cpu = Tensor.cpu
    monkeypatch.setattr(Tensor, "cpu", lambda tensor: (moved.append(tensor.numel()), cpu(tensor))[1])
    launches: list[Fusion] = []
    monkeypatch.setattr(Fusion, "launch", lambda *arguments: launches.append(arguments[0]) or launch(*arguments))
    full = Full(1, monkeypatch)
    for _ in range(3):
        torch.testing.assert_close(fusion.run(given), expected)
    assert (full.left, len(launches)) == (0, 3)
    assert moved == [tensor.numel() for tensor in given]


def test_a_wrong_kernel_is_found_there_too(monkeypatch: pytest.MonkeyPatch):
    fusion, given = a_fusion()
    expected = fusion.operate(given)
    monkeypatch.setattr(Fusion, "launch", lambda *arguments: [1.01 * tensor for tensor in launch(*arguments)])
    Full(1, monkeypatch)
    for _ in range(2):
        assert torch.equal(fusion.run(given)[0], expected[0])


def test_a_pack_narrows_where_not_even_the_kernel_fits(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> list[Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    fusion, given = a_fusion()
    monkeypatch.setattr(Fusion, "launch", fail)
    with pytest.raises(torch.OutOfMemoryError):
        fusion.run(given)


def test_a_crash_of_the_bench_leaves_what_was_timed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def rates(*_: Any, **__: Any) -> Iterator[Rate]:
        yield Rate(case="set complement", step="fused", lanes=32, model_steps_per_second=1234.0)
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "measure", rates)
    status, out, _ = called(monkeypatch, capfd, "doctor", "--bench", "-o", "machine.json", "--device", "cpu")
    assert status != 0
    assert "1,234 model-steps/s: set complement, fused, 32 lanes" in out
    assert [rate["lanes"] for rate in json.loads((tmp_path / "machine.json").read_text())["rates"]] == [32]
