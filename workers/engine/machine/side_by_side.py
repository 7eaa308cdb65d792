"""Workers of one process on the same GPU, each on a CUDA stream of its own, or one alone.

A pack of few lanes leaves most of a GPU idle for others: streams do not wait for one another, and a
thread that reads a number waits for its own alone. A measurement has the GPU for itself.

A stream's freed memory is given to the same stream again, so that packs share no tensor in use.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import final

import torch

PACKS = 4
"""Default number of workers that share a GPU, each with a pack; a guess, not measured."""

CAPTURING = threading.Lock()
"""Held while a CUDA graph is captured: no other is, and torch's allocator frees no memory."""

_STREAMS: dict[tuple[torch.device, int], torch.cuda.Stream] = {}
_MAKING = threading.Lock()


def use_stream(device: torch.device, slot: int) -> None:
    """Let this thread compute on a slot's stream of a GPU, which is the same in all threads."""
    with _MAKING:
        if (device, slot) not in _STREAMS:
            _STREAMS[device, slot] = torch.cuda.Stream(device)
    torch.cuda.set_stream(_STREAMS[device, slot])


@final
class SideBySide:
    """A lock that several threads hold together, or one of them alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # whose lock who is alone holds, and may take again
        self._together = self._waiting = 0

    @contextmanager
    def together(self) -> Generator[None]:
        """Compute beside others, after those that wait to be alone; not while alone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Generator[None]:
        """Compute while no other thread does; not while together."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._together)
                yield
            finally:
                self._waiting -= 1
                self._changed.notify_all()


_GPU = SideBySide()
"""The lock of this process's GPU; inline workers never have more than one."""


def together(device: torch.device) -> AbstractContextManager[None]:
    """Train beside the other workers of a GPU, as `SideBySide.together`."""
    return _GPU.together() if device.type == "cuda" else nullcontext()


@contextmanager
def alone(device: torch.device) -> Generator[None]:
    """Hold a GPU alone for a measurement, once all its work is done."""
    with _GPU.alone() if device.type == "cuda" else nullcontext():
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        yield
