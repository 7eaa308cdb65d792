"""Fusions: operations that run as one kernel after it has reproduced their numbers on the device.

A kernel is compared with its operations on its first arguments. If it cannot be compiled or
differs, one line is logged and the operations are run instead.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, final
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from spaces.messages import shorten
from workers.numerics.codegen.values import Kind
from workers.numerics.cuda.compiler import load_cubin
from workers.numerics.cuda.driver import Kernel, architecture_of
from workers.numerics.fusion.kernels import THREADS, write_kernel
from workers.numerics.fusion.partition import Part
from workers.numerics.fusion.rules import Product, View
from workers.numerics.simplifying import Operation, Slot, replace

_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
"""The error allowed relative to a kernel's largest result, and to the largest number it reads."""
_LOG = logging.getLogger(__name__)


@final
class Fusion:
    """Operations that are one kernel."""

    def __init__(self, part: Part, kinds: dict[Slot, Kind], lanes: int) -> None:
        """Make the fusion of a part; raises CannotGenerate."""
        self._part, self._kinds, self._lanes = part, kinds, lanes
        self.program = write_kernel(part.rules, kinds, part.results, lanes)
        self.given = _find_given(part.operations)
        """The slots and constants that the operations read; the kernel may need fewer."""
        names = [_name(operand) for operand in self.given]
        self._read = [names.index(_name(operand)) for operand in self.program.given]
        given = [Kind.of(operand) if isinstance(operand, Tensor) else kinds[operand] for operand in self.given]
        self._strides = [kind.strides for kind in given]
        self._verdicts: dict[torch.device, bool] = {}
        self._number = next(_NUMBERS)
        _FUSIONS[self._number] = self

    def as_operation(self) -> Operation:
        """Return the operation of a recording that runs it, and keeps it."""
        return Operation(self._call, [[*self.given], {}], [*self.program.results])

    def _call(self, *given: Tensor) -> list[Tensor]:
        return torch.ops.graft.fusion.default(self._number, [*given])

    @property
    def results(self) -> list[Kind]:
        return [self._kinds[slot] for slot in self.program.results]

    @property
    def flops(self) -> int:
        """Estimate the FLOPs: one per number of an operation, two per term of a product."""
        rules = [(self._kinds[slot].numel, rule) for slot, rule in self._part.rules.items()]
        return sum(
            numel * (2 * rule.terms if isinstance(rule, Product) else 1)
            for numel, rule in rules
            if not isinstance(rule, View)
        )

    @property
    def scratch_bytes(self) -> int:
        """The bytes that the kernel writes for itself, and reads again."""
        return sum(kind.numel * kind.dtype.itemsize for kind in self.program.scratch)

    def operate(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Run the operations one by one."""
        values: dict[Any, Any] = dict(zip(map(_name, self.given), given, strict=True))
        for operation in self._part.operations:
            named = replace(Tensor, lambda tensor: values.get(_name(tensor), tensor), operation.arguments)
            named = replace(torch.device, lambda _: given[0].device, named)
            positional, keywords = replace(Slot, values.__getitem__, named)
            returned = pytree.tree_leaves(operation.function(*positional, **keywords))
            values.update(zip(operation.results, returned, strict=True))
        return [values[slot] for slot in self.program.results]

    def fits(self, given: Sequence[Tensor]) -> bool:
        """Return whether the kernel is written for tensors that lie in memory as these do."""
        return [tuple(tensor.stride()) for tensor in given] == self._strides

    def chosen(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Choose the kernel's inputs, in the order of its parameters."""
        return [given[number] for number in self._read]

    def make_results(self, device: torch.device) -> list[Tensor]:
        return [torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=device) for kind in self.results]

    def launch(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Run the kernel; raises RuntimeError where it cannot be compiled or loaded."""
        device, program = given[0].device, self.program
        made = self.make_results(device)
        scratch = [torch.empty(kind.numel, dtype=kind.dtype, device=device) for kind in program.scratch]
        tensors = (*self.chosen(given), *made, *scratch)
        addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]
        _kernel_of(program.text, device)(program.blocks, THREADS, addresses)
        return made

    def run(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Run the kernel if it gave the operations' numbers on this device, else the operations."""
        device = given[0].device
        if not self.fits(given) or any(tensor.numel() >= 1 << 31 for tensor in given):
            return self.operate(given)
        if device not in self._verdicts:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return self.operate(given)
            fault, expected = self._compare(given)
            self._verdicts[device] = not fault
            if fault and fault not in _TOLD:
                _TOLD.add(fault)
                _LOG.warning("some operations are started one by one, not as one kernel: %s", fault)
            return [tensor.to(device) for tensor in expected]
        return self.launch(given) if self._verdicts[device] else self.operate(given)

    def _compare(self, given: Sequence[Tensor]) -> tuple[str, list[Tensor]]:
        """Return the kernel's fault, and the operations' results.

        Without memory for both, the operations run on the CPU: a narrowed pack stays narrow.
        """
        try:
            expected = self.operate(given)
            return self.find_fault(given, expected), expected
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
        expected = self.operate([tensor.cpu() for tensor in given])
        return self.find_fault(given, expected), expected

    def find_fault(self, given: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
        """Return why the kernel cannot be used on the device; empty if it can."""
        try:
            results = self.launch(given)
        except (RuntimeError, OSError) as error:
            if "out of memory" in str(error):  # the pack halves, and the kernel is compared then
                raise
            return shorten(" ".join(str(error).split()) or type(error).__name__, 200)
        largest = max([0.0, *(_largest(tensor) for tensor in given if tensor.dtype.is_floating_point)])
        for result, other in zip(results, expected, strict=True):
            most = _RELATIVE * _largest(other) + _ABSOLUTE * largest
            parts = zip(_parts(result), _parts(other), strict=True)
            if not all(torch.allclose(a.to(b.device), b, 0.0, most, equal_nan=True) for a, b in parts):
                return "the kernel gives other numbers than the operations"
        return ""


def _name(operand: Slot | Tensor) -> Any:
    return operand if isinstance(operand, Slot) else id(operand)


def _find_given(operations: Sequence[Operation]) -> list[Slot | Tensor]:
    """Return each input of the operations once, without the results of their own."""
    made = {slot for operation in operations for slot in operation.results}
    inputs: dict[Any, Slot | Tensor] = {}
    for operation in operations:
        for leaf in pytree.tree_leaves(operation.arguments):
            # A number that torch keeps as a tensor on the CPU is no argument of a kernel.
            if isinstance(leaf, Tensor):
                if leaf.dim() or leaf.device.type != "cpu":
                    inputs[_name(leaf)] = leaf
            elif isinstance(leaf, Slot) and leaf not in made:
                inputs[leaf] = leaf
    return [*inputs.values()]


_TOLD: set[str] = set()
"""The faults that this process has logged of kernels that are not used."""


_COMPARED = 1 << 20
"""The most numbers that are compared at a time: copies of whole arguments need too much memory."""


def _parts(tensor: Tensor) -> Sequence[Tensor]:
    """Split a tensor along its first dimension into views of about `_COMPARED` numbers."""
    if tensor.numel() <= _COMPARED or not tensor.dim():
        return [tensor]
    return tensor.split(max(1, _COMPARED * len(tensor) // tensor.numel()))


def _largest(tensor: Tensor) -> float:
    """Return the largest finite magnitude of a tensor, 0 if it has none."""
    parts = (part.double() for part in _parts(tensor) if part.numel())
    maxima = [part.nan_to_num(posinf=0.0, neginf=0.0).abs().max() for part in parts]
    return float(torch.stack(maxima).max()) if maxima else 0.0


def compile_all(several: Sequence[Fusion], device: torch.device) -> None:
    """Compile kernels in parallel, so that no launch has to wait for each in turn."""
    architecture = architecture_of(device)

    def compile_one(text: str) -> None:
        with suppress(RuntimeError, OSError):  # its launch says why
            _cubin_of(text, architecture)

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        deque(pool.map(compile_one, {fusion.program.text for fusion in several}), maxlen=0)


@functools.cache
def _kernel_of(text: str, device: torch.device) -> Kernel:
    """Load a kernel; recordings share kernels of equal text."""
    return Kernel(_cubin_of(text, architecture_of(device)), "fused", device)


@functools.cache
def _cubin_of(text: str, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "fusion.cu"
        source.write_text(text)
        return load_cubin(source, architecture)


_FUSIONS: WeakValueDictionary[int, Fusion] = WeakValueDictionary()
"""The fusions of recordings that are kept, by the number that torch's interpreter passes on."""
_NUMBERS = itertools.count()


@torch.library.custom_op("graft::fusion", mutates_args=(), device_types="cuda")
def run_fusion(number: int, given: Sequence[Tensor]) -> list[Tensor]:
    """Run the fusion of this number; returns its results."""
    return _FUSIONS[number].run(given)


run_fusion.register_fake(lambda number, given: _FUSIONS[number].make_results(given[0].device))


def fusion_of(number: int) -> Fusion:
    """Return the fusion of a number, as long as its recording is kept."""
    return _FUSIONS[number]
