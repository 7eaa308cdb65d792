"""Kernels loaded and launched through CUDA's driver, in torch's context and current stream.

So they run after what torch computed before, and before memory that is freed here is reused.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from workers.numerics.native import address

_MOST_SHARED_BYTES = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, needed for more than 48 KB a block."""


def architecture_of(device: torch.device) -> str:
    """Return the architecture of a GPU, such as `sm_90`."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@final
class Kernel:
    """A kernel on one GPU."""

    def __init__(self, cubin: bytes, name: str, device: torch.device, most_shared_bytes: int | None = None) -> None:
        """Load a kernel; raises RuntimeError. `most_shared_bytes`: in a block; None for 48 KB."""
        self._device = device
        module = ctypes.c_void_p()
        self._function, self._context = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # makes its context this thread's
            _call("cuCtxGetCurrent", ctypes.byref(self._context))
            _call("cuModuleLoadData", ctypes.byref(module), cubin)
            _call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())
            if most_shared_bytes is not None:
                _call("cuFuncSetAttribute", self._function, _MOST_SHARED_BYTES, most_shared_bytes)

    def __call__(
        self,
        blocks: int,
        threads: int,
        arguments: Sequence[int | Tensor | ctypes.c_void_p | ctypes.Structure],
        shared_bytes: int = 0,
    ) -> None:
        """Launch the kernel on the current stream; raises RuntimeError.

        A tensor must be contiguous; one without numbers becomes a null pointer. A structure is
        copied before this returns. `shared_bytes`: besides those that the kernel declares.
        """
        passed = [address(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
        values = [ctypes.c_int(argument) if isinstance(argument, int) else argument for argument in passed]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        with torch.cuda.device(self._device):
            stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
            sizes = blocks, 1, 1, threads, 1, 1, shared_bytes
            # torch binds a context to a thread at its own first call, which may come later.
            _call("cuCtxSetCurrent", self._context)
            _call("cuLaunchKernel", self._function, *sizes, stream, places, None)


@functools.cache
def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"CUDA's driver cannot be loaded: {error}") from None


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    if status := getattr(driver, name)(*arguments):
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        said = text.value.decode() if text.value else f"status {status}"
        raise RuntimeError(f"CUDA error: {said} ({name})")  # callers look for `out of memory`
