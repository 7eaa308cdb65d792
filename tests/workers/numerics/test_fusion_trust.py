"""Before a generated kernel is used, it has given on the device what its operations give; emulated on a CPU."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from tests.support import emulated_kernels
from tests.support.emulated_fusion import emulated_fusion, launch
from tests.support.fusion import numbers, of_function
from workers.numerics.codegen import formulas
from workers.numerics.cuda.compiler import CompilerError
from workers.numerics.fusion import fusions
from workers.numerics.fusion.fusions import Fusion
from workers.numerics.tracing import Traced


def a_fusion() -> tuple[Fusion, list[Tensor]]:
    """One, and what it is called with."""
    called: list[tuple[Fusion, list[Tensor]]] = []

    def note(fusion: Fusion, given: Sequence[Tensor]) -> list[Tensor]:
        called.append((fusion, [*given]))
        return fusion.operate(given)

    with emulated_fusion(note):
        of_function(
            lambda x, y: (x * y).exp().sum(-1) * 2, numbers((2, 3, 8), "plain", torch.float32), torch.ones(2, 3, 1)
        )
    return called[-1]


@pytest.mark.parametrize("formula", ["{0} + {1}", "{0} * {1} * 1.01f", "{0}"])
def test_a_kernel_that_gives_other_numbers_is_told_once_and_not_used(formula: str, monkeypatch: Any, caplog: Any):
    monkeypatch.setattr(Fusion, "launch", launch)
    monkeypatch.setattr(fusions, "_TOLD", set())
    right, given = a_fusion()
    assert right.find_fault(given, right.operate(given)) == ""
    monkeypatch.setitem(formulas.ARITHMETIC, "mul", formula)
    with caplog.at_level(logging.WARNING):
        wrong, given = a_fusion()
        given = [tensor if tensor.numel() > 10 else tensor * 1.5 for tensor in given]
        for _ in range(3):
            assert torch.equal(wrong.run(given)[0], wrong.operate(given)[0])
    [line] = [record.getMessage() for record in caplog.records]
    words = "some operations are started one by one, not as one kernel"
    assert line == f"{words}: the kernel gives other numbers than the operations"


def test_a_kernel_is_compared_once_and_used_from_then_on(monkeypatch: Any):
    launches: list[Fusion] = []
    monkeypatch.setattr(Fusion, "launch", lambda *arguments: launches.append(arguments[0]) or launch(*arguments))
    fusion, given = a_fusion()
    for _ in range(3):
        torch.testing.assert_close(fusion.run(given), fusion.operate(given))
    assert len(launches) == 3
    moved = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in given]
    torch.testing.assert_close(fusion.run(moved), fusion.operate(given))
    assert len(launches) == 3, "its text is for tensors that lie otherwise"


def test_one_that_cannot_be_compiled_is_its_operations(monkeypatch: Any, caplog: Any):
    def fail(*arguments: Any) -> list[Tensor]:
        raise CompilerError("there is no NVRTC")

    monkeypatch.setattr(Fusion, "launch", fail)
    monkeypatch.setattr(fusions, "_TOLD", set())
    fusion, given = a_fusion()
    with caplog.at_level(logging.WARNING):
        assert torch.equal(fusion.run(given)[0], fusion.operate(given)[0])
    assert [record.getMessage() for record in caplog.records] == [
        "some operations are started one by one, not as one kernel: there is no NVRTC"
    ]


def test_memory_that_runs_out_is_told_as_it_is(monkeypatch: Any):
    def fail(*arguments: Any) -> list[Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(Fusion, "launch", fail)
    fusion, given = a_fusion()
    with pytest.raises(torch.OutOfMemoryError):
        fusion.run(given)


@pytest.mark.long
def test_fusions_are_kept_as_long_as_their_recording():
    with emulated_fusion(Fusion.operate) as ran:
        traced = Traced(("test", object()), lambda x: (x * 2).exp().sum(-1))
        traced(torch.ones(2, 3))
        number = ran[0]._number
        ran.clear()
        assert fusions.fusion_of(number)
        traced(torch.ones(2, 3))
    ran.clear()
    del traced
    gc.collect()
    with pytest.raises(KeyError):
        fusions.fusion_of(number)


def test_on_a_cpu_nothing_is_fused():
    with patch("workers.numerics.tracing._RECORDINGS", {}), patch.object(emulated_kernels, "RUN_FUSION", []):
        actual = of_function(lambda x: (x * 2).exp().sum(-1), torch.ones(2, 3))
    assert actual.shape == (2,)


def test_a_comparison_copies_a_megabyte_of_numbers_at_a_time(monkeypatch: Any):
    """Whatever a pack's width: a check that ran out of memory would halve the pack for good."""
    sizes: list[int] = []
    allclose = torch.allclose

    def note(tensor: Tensor, *others: Any, **options: Any) -> bool:
        sizes.append(tensor.numel())
        return allclose(tensor, *others, **options)

    monkeypatch.setattr(torch, "allclose", note)
    monkeypatch.setattr(fusions, "_COMPARED", 8)
    fusion, given = a_fusion()
    monkeypatch.setattr(Fusion, "launch", launch)
    expected = fusion.operate(given)
    assert fusion.find_fault(given, expected) == ""
    assert max(sizes) <= 8
    assert sum(sizes) == sum(tensor.numel() for tensor in expected)
    last = expected[-1].clone()
    last.view(-1)[-1] += 1
    assert fusion.find_fault(given, [*expected[:-1], last]) == "the kernel gives other numbers than the operations"


def test_the_largest_magnitude_is_that_of_finite_numbers(monkeypatch: Any):
    monkeypatch.setattr(fusions, "_COMPARED", 2)
    numbers_of = torch.tensor([[1.0, -7.0], [torch.inf, torch.nan], [2.0, 3.0]])
    assert fusions._largest(numbers_of) == 7.0
    assert fusions._largest(numbers_of[:, :0]) == 0.0
