"""Workers of one process that compute on the same GPU, each on a CUDA stream of its own, or one of them alone.

A pack of few lanes leaves most of a GPU idle, which other packs use meanwhile: what a thread asks of its stream does
not wait for the streams of others, and who reads a number waits for its own stream alone. What is timed has the GPU for
itself.

Memory that a stream's work frees is given to the same stream again, so that packs share no tensor that a kernel writes.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import final

import torch

PACKS = 4
"""Workers that share a GPU where nobody names a number, each with a pack; a guess, not measured."""

CAPTURING = threading.Lock()
"""Held while a CUDA graph is captured: meanwhile no other is, and torch's allocator gives no memory back."""

_STREAMS: dict[tuple[torch.device, int], torch.cuda.Stream] = {}
_MAKING = threading.Lock()


def use_stream(device: torch.device, slot: int) -> None:
    """Let this thread compute on a slot's stream of a GPU, the same one in all threads: they share the slot's packs."""
    with _MAKING:
        if (device, slot) not in _STREAMS:
            _STREAMS[device, slot] = torch.cuda.Stream(device)
    torch.cuda.set_stream(_STREAMS[device, slot])


@final
class SideBySide:
    """A lock of a GPU, which several threads hold together, or one of them alone."""

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
        """Compute while nobody else does; not while together."""
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
    """Have a GPU for a measurement, as `SideBySide.alone`, once all that was asked of it is done."""
    with _GPU.alone() if device.type == "cuda" else nullcontext():
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        yield
