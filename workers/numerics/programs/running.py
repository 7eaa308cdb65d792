"""Programs that are compiled and called on lanes."""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workers.numerics import native
from workers.numerics.codegen.values import CannotGenerate
from workers.numerics.native.building import Unit
from workers.numerics.programs.lowering import Lowering
from workers.numerics.programs.recording import record
from workers.numerics.programs.rules import RULES, knows
from workers.numerics.programs.scheduling import PREAMBLE, Kernel, schedule
from workers.numerics.programs.values import Buffer, Call

_LINE = 64
"""Bytes that a lane's memory is aligned to."""
_TEXT = 16_000
"""About the most characters of kernels that are compiled together: a second's work."""
_LONGEST = 400_000
"""The most characters of all kernels of a program: more would compile for half a minute."""
_ARGUMENTS = 512
"""The most tensors of a kernel (programs.cpp)."""
_FLAGS = ("-fopenmp-simd", "-fno-trapping-math")
"""They vectorise sums of a row, and choices by a comparison."""


class LaneProgram:
    """A function of one lane's tensors, compiled for lanes that come one after another."""

    def __init__(self, function: Callable[..., Any], leaves: Sequence[Tensor]) -> None:
        """Record the function for tensors of these shapes; raises CannotGenerate, CannotRecord."""
        lowering = Lowering(record(function, leaves, knows), RULES)
        self._results = lowering.results
        results = [result.buffer for result in self._results]
        self._schedule = schedule(lowering.steps, results)
        every = [buffer for step in self._schedule for buffer in step.buffers if buffer]
        self._buffers: dict[int, Buffer] = {id(buffer): buffer for buffer in every}
        self._shapes = [result.shape for result in self._results]
        self._bytes, self._offsets = self._plan_memory()
        texts = dict.fromkeys(step.text for step in self._schedule if isinstance(step, Kernel))
        if (length := sum(map(len, texts))) > _LONGEST:
            raise CannotGenerate(f"a step whose code has {length} characters, more than {_LONGEST}")
        if (most := max([0, *(len(step.buffers) for step in self._schedule)])) > _ARGUMENTS:
            raise CannotGenerate(f"a kernel of {most} tensors, more than {_ARGUMENTS}")
        self._units, self._names = _units(list(texts))
        self._calls: Any = None
        self._memory = threading.local()

    @property
    def texts(self) -> list[str]:
        return [unit.text for unit in self._units]

    def begin(self) -> None:
        """Compile in the background, several at a time."""
        native.begin([native.packaged("programs"), *self._units])

    def load(self) -> bool:
        """Compile what is not yet compiled; return whether the program can be run."""
        self.begin()
        runtime, libraries = native.library("programs"), [native.load(unit) for unit in self._units]
        if runtime is None or None in libraries:
            return False
        self._run = runtime.run_program
        numbers = {key: number for number, key in enumerate(self._buffers)}
        calls: list[int] = []
        for step in self._schedule:
            arguments = [numbers[id(buffer)] if buffer else -1 for buffer in step.buffers]
            sizes = step.numbers if isinstance(step, Call) else []
            if isinstance(step, Call):
                function = getattr(runtime, step.function)
            else:
                unit, name = self._names[step.text]
                function = getattr(libraries[unit], name)
            pointer = ctypes.cast(function, ctypes.c_void_p).value or 0
            calls += [pointer, len(arguments), *arguments, len(sizes), *sizes]
        self._calls = (ctypes.c_int64 * len(calls))(*calls)
        return True

    def __call__(self, leaves: Sequence[Tensor], *, spoil: bool = False) -> list[Tensor]:
        """Return the results [L, ...] from all lanes' tensors; raises IndexError as torch does.

        With `spoil` all memory is NaN before, so that a check finds what is read too early.
        """
        lanes = len(leaves[0])
        kept: list[Tensor] = []  # memory that must outlive the call
        results = [
            leaves[0].new_empty((lanes, *shape), dtype=result.dtype)
            for shape, result in zip(self._shapes, self._results, strict=True)
        ]
        arena = getattr(self._memory, "arena", None)
        if arena is None:  # kept by each thread: new memory would not be cached
            arena = self._memory.arena = torch.empty(self._bytes + _LINE, dtype=torch.uint8)
        if spoil:
            for memory in (arena, *results):
                memory.view(torch.uint8).fill_(255)
        start = -(-arena.data_ptr() // _LINE) * _LINE
        places: list[int] = []
        steps: list[int] = []
        for key, buffer in self._buffers.items():
            if buffer.given is not None or buffer.result is not None:
                tensor = results[buffer.result or 0] if buffer.given is None else leaves[buffer.given]
                kept.append(tensor.to(buffer.kept_as).contiguous())
                places.append(kept[-1].data_ptr())
                steps.append(buffer.numel * buffer.kept_as.itemsize)
            else:
                constant = buffer.constant
                places.append(start + self._offsets[key] if constant is None else constant.data_ptr())
                steps.append(0)
        array, fault = ctypes.c_int64 * len(places), (ctypes.c_int64 * 2)()
        counts = ctypes.c_int64(lanes), ctypes.c_int64(len(places)), array(*places), array(*steps)
        self._run(*counts, ctypes.c_int64(len(self._schedule)), self._calls, fault)
        if fault[1]:
            text = f"index {fault[0]} is out of bounds for dimension with size {fault[1]}"
            raise IndexError(text)
        return results

    def _plan_memory(self) -> tuple[int, dict[int, int]]:
        """Return how many bytes a lane needs, and where in them each buffer starts.

        A buffer takes the first large enough gap between those in use at the same time, so that
        cached memory is used again.
        """
        used: dict[int, tuple[int, int]] = {}
        for number, step in enumerate(self._schedule):
            for buffer in step.buffers:
                if buffer and buffer.is_made:
                    used[id(buffer)] = used.get(id(buffer), (number, number))[0], number
        offsets: dict[int, int] = {}
        total = 0
        for key, (first, last) in used.items():
            size = self._size(key)
            taken = sorted(
                (offsets[other], offsets[other] + self._size(other))
                for other in offsets
                if used[other][0] <= last and first <= used[other][1]
            )
            offset = 0
            for start, end in taken:
                if start - offset >= size:
                    break
                offset = max(offset, end)
            offsets[key] = offset
            total = max(total, offset + size)
        return total, offsets

    def _size(self, key: int) -> int:
        buffer = self._buffers[key]
        return -(-buffer.numel * buffer.kept_as.itemsize // _LINE) * _LINE


def _units(texts: Sequence[str]) -> tuple[list[Unit], dict[str, tuple[int, str]]]:
    """Return units of kernels to compile, and each kernel's unit and its name there."""
    groups: list[list[str]] = []
    size = _TEXT
    for text in texts:
        if size + len(text) > _TEXT:
            groups.append([])
            size = 0
        groups[-1].append(text)
        size += len(text)
    names: dict[str, tuple[int, str]] = {}
    units: list[Unit] = []
    for number, group in enumerate(groups):
        kernels: list[str] = []
        for text in group:
            name = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
            names[text] = number, name
            kernels.append(text.replace("work(", f"{name}_work(").replace("NAME", name))
        units.append(Unit("program", "\n".join([PREAMBLE, *kernels, "}", ""]), _FLAGS))
    return units, names
