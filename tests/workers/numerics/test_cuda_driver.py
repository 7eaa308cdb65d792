"""What CUDA's driver is asked when a kernel is loaded and launched; no GPU is needed."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workers.numerics.cuda import driver
from workers.numerics.cuda.driver import Kernel

pytestmark = pytest.mark.fast
GPU = torch.device("cuda", 1)


class Pair(ctypes.Structure):
    _fields_ = [("one", ctypes.c_int64), ("other", ctypes.c_int64)]


class Driver:
    """Takes the kernel's arguments as a GPU would: an int, two pointers, a structure."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.status = 0

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            self.calls.append((name, *(argument for argument in arguments if isinstance(argument, int | bytes))))
            return self.status

        return call

    def cuCtxGetCurrent(self, context: Any) -> int:  # noqa: N802
        context._obj.value = 4711
        self.calls.append(("cuCtxGetCurrent",))
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:  # noqa: N802
        self.calls.append(("context", context.value))
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:  # noqa: N802
        *sizes, stream, places, _ = rest
        pointers = [ctypes.c_void_p.from_address(places[at]).value for at in (1, 2)]
        pair = Pair.from_address(places[3])
        given = [ctypes.c_int.from_address(places[0]).value, *pointers, pair.one, pair.other]
        self.calls.append(("launch", sizes, stream.value, given))
        return self.status

    def cuGetErrorString(self, status: int, text: Any) -> None:  # noqa: N802
        text._obj.value = b"out of memory"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    stream = SimpleNamespace(cuda_stream=77, synchronize=lambda: None)
    monkeypatch.setattr(driver, "_driver", lambda: made)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(made.calls.append(device)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return made


def test_a_launch_passes_values_on_the_current_stream(asked: Driver) -> None:
    kernel = Kernel(b"cubin", "name", GPU, 100_000)
    loaded = [("cuModuleLoadData", b"cubin"), ("cuModuleGetFunction", b"name"), ("cuFuncSetAttribute", 8, 100_000)]
    assert asked.calls == [GPU, ("cuCtxGetCurrent",), *loaded]
    asked.calls.clear()
    numbers = torch.arange(3)
    kernel(5, 256, [-7, numbers, numbers[:0].clone(), Pair(2**40, -1)], 60_000)
    given = [-7, numbers.data_ptr(), None, 2**40, -1]
    bound = [GPU, ("context", 4711)]
    assert asked.calls == [*bound, ("launch", [5, 1, 1, 256, 1, 1, 60_000], 77, given)]


def test_more_shared_memory_is_asked_for_where_it_is_needed_alone(asked: Driver) -> None:
    Kernel(b"cubin", "name", GPU)
    assert [call[0] for call in asked.calls[1:]] == ["cuCtxGetCurrent", "cuModuleLoadData", "cuModuleGetFunction"]


def test_an_error_has_the_drivers_words(asked: Driver) -> None:
    asked.status = 2
    with pytest.raises(RuntimeError, match=r"^CUDA error: out of memory \(cuModuleLoadData\)$"):
        Kernel(b"cubin", "name", GPU)
