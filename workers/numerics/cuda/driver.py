"""Kernels loaded and launched through CUDA's driver: the one place that talks to it.

Modules and functions are those of torch's context of the device. Kernels run in torch's current stream, so that they
come after what torch computed before, and memory that is freed here is not given away too early.
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
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: more than 48 KB a block have to be asked for."""


def architecture_of(device: torch.device) -> str:
    """`sm_90`."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


@final
class Kernel:
    """A kernel on one GPU."""

    def __init__(self, cubin: bytes, name: str, device: torch.device, most_shared_bytes: int | None = None) -> None:
        """`most_shared_bytes`: that a launch may ask for, of a block; None: CUDA's 48 KB.

        Raises RuntimeError where there is no driver, or where it does not take the kernel.
        """
        self._device = device
        module, self._function, self._context = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # so that the device's context is this thread's
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
        """Launch it on the stream that is current; `shared_bytes`: of a block, beside what the kernel declares.

        An int is the kernel's `int`; a tensor is contiguous, a null pointer if it has no numbers; an address is passed
        on; a structure is copied before this returns. Raises RuntimeError.
        """
        passed = [address(one) if isinstance(one, Tensor) else one for one in arguments]
        values = [ctypes.c_int(one) if isinstance(one, int) else one for one in passed]
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        with torch.cuda.device(self._device):
            stream = ctypes.c_void_p(torch.cuda.current_stream(self._device).cuda_stream)
            sizes = blocks, 1, 1, threads, 1, 1, shared_bytes
            # torch binds a context to a thread at its own first call there, which a launch of ours may come before.
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
        raise RuntimeError(f"CUDA error: {said} ({name})")  # `out of memory` is recognised by these words
