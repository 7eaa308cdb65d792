"""Tracing: a function of tensors becomes a flat list of tensor operations, recorded once for its shapes.

Replaying the list leaves out autograd, vmap and Python's own work between operations. No compiler is needed, so it
runs on a machine that has torch alone. Threads may record and replay side by side. The one place that touches torch's
tracer and its trees.
"""

from __future__ import annotations

import functools
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_ONE_TRACE = threading.Lock()
"""torch's tracer keeps global state; replaying needs no lock."""

_THREAD = threading.local()

tree_map = pytree.tree_map
"""Apply a function to every tensor of nested dicts and tuples of equal form."""
tree_leaves = pytree.tree_leaves
"""The tensors of nested dicts and tuples."""


class Traced:
    """A pure function of nested tensors, replayed from its recording; recorded anew for each set of shapes.

    `key` says what the function is: functions of equal keys share their recordings, so that a pack of a structure that
    was trained before starts at once.
    """

    def __init__(self, key: Hashable, function: Callable[..., Any]) -> None:
        self._key = key
        self._function = function
        self._mine: dict[Hashable, _Recording] = {}
        self.seconds = 0.0
        """How long its last recording took; 0 as long as others' served."""

    def __call__(self, *arguments: Any) -> Any:
        leaves, form = pytree.tree_flatten(arguments)
        key = (self._key, tuple(leaf.shape for leaf in leaves))
        # Its own recordings are looked up without the lock: a step that is running must not wait for another thread's
        # recording, which takes seconds.
        recording = self._mine.get(key) or self._recording(key, leaves, form)
        _leave_lists_as_they_are()
        with torch.no_grad():
            return pytree.tree_unflatten(recording.replay(*leaves), recording.form)

    def _recording(self, key: Hashable, leaves: list[Tensor], form: pytree.TreeSpec) -> _Recording:
        with _ONE_TRACE:
            recording = _RECORDINGS.pop(key, None) or self._timed_record(leaves, form)
            _RECORDINGS[key] = self._mine[key] = recording  # popped and put back: the order is that of the last use
            while len(_RECORDINGS) > _KEPT:
                del _RECORDINGS[next(iter(_RECORDINGS))]
        return recording

    def _timed_record(self, leaves: list[Tensor], form: pytree.TreeSpec) -> _Recording:
        load_tracer()
        start = time.perf_counter()
        recording = self._record(leaves, form)
        self.seconds = time.perf_counter() - start
        return recording

    def _record(self, leaves: list[Tensor], form: pytree.TreeSpec) -> _Recording:
        forms: list[pytree.TreeSpec] = []

        def flat(*leaves: Tensor) -> list[Tensor]:
            results, form_out = pytree.tree_flatten(self._function(*pytree.tree_unflatten(leaves, form)))
            forms.append(form_out)
            return results

        # One object may be given twice, and two another time: each leaf is told from the others.
        given = [leaf.detach() for leaf in leaves]
        with _Recorder(given) as recorder:
            results = flat(*given)
        return _Recording(_off_python(recorder.replay_of(results), leaves), forms[0])


class _Slot(int):
    """Stands in a recorded call for a tensor, numbered in the order in which tensors were first seen."""


class _Call(NamedTuple):
    """A recorded operation: `arguments` and keyword arguments with a slot for each tensor, and its results' slots."""

    operation: Any
    arguments: Any
    results: list[int]


class _Recorder(TorchDispatchMode):
    """Records every operation on tensors that reaches a device, below autograd and vmap.

    torch's own tracer, make_fx, does this too, but first imports the compiler (Dynamo, SymPy and 800 modules), which
    takes longer than everything else that happens before the first step.
    """

    def __init__(self, leaves: Sequence[Tensor]) -> None:
        super().__init__()
        self._calls: list[_Call] = []
        self._constants: dict[int, Tensor] = {}
        """Tensors that no recorded operation has made and that are not given: they are used as they are."""
        self._slots = WeakTensorKeyDictionary()  # weak, so that what autograd does not keep is freed on the way
        self._seen = 0
        for leaf in leaves:
            self._add(leaf)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to keep the compiler out of what is recorded, torch would import it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:  # a new constant; later operations may change it in place
            func = torch.ops.aten.clone.default
        arguments = pytree.tree_map_only(Tensor, self._find, (args, kwargs or {}))
        found = func(*args, **(kwargs or {}))
        self._calls.append(_Call(func, arguments, [self._add(tensor) for tensor in pytree.tree_leaves(found)]))
        return found

    def _add(self, tensor: Tensor) -> int:
        """The slot of a tensor that is given or made; an operation in place makes the one that it changed."""
        if tensor not in self._slots:
            self._slots[tensor], self._seen = self._seen, self._seen + 1
        return self._slots[tensor]

    def _find(self, tensor: Tensor) -> _Slot:
        if tensor not in self._slots:
            self._constants[self._add(tensor)] = tensor
        return _Slot(self._slots[tensor])

    def replay_of(self, results: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
        """A function of the leaves that makes these results again by the calls that lead to them."""
        wanted, needed = [self._find(result) for result in results], list[tuple[_Call, list[int]]]()
        alive = set(wanted)
        for call in reversed(self._calls):
            if not (call.operation._schema.is_mutable or alive.intersection(call.results)):
                continue
            used = {slot for slot in pytree.tree_leaves(call.arguments) if isinstance(slot, _Slot)}
            needed.append((call, [*{*used, *call.results}.difference(alive)]))
            alive |= used
        constants = dict(self._constants)

        def replay(*leaves: Tensor) -> list[Tensor]:
            values = {**dict(enumerate(leaves)), **constants}
            for call, last_used in reversed(needed):
                args, kwargs = pytree.tree_map_only(_Slot, values.__getitem__, call.arguments)
                found = pytree.tree_leaves(call.operation(*args, **kwargs))
                values.update(zip(call.results, found, strict=True))
                for slot in last_used:
                    del values[slot]
            return [values[slot] for slot in wanted]

        return replay


def _off_python(replay: Callable[..., list[Tensor]], leaves: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """The same operations in torch's own interpreter, as they are: nothing is fused or reordered.

    It runs a whole list without Python's lock. Threads that take turns for it at every operation wait for one another:
    two workers on two cores made 1.25 times the steps of one, and make 1.65 times now (BENCHMARKS.md).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on tensors whose shapes become constants, which is the purpose
        traced: Any = torch.jit.trace(lambda *given: tuple(replay(*given)), tuple(leaves), check_trace=False)
        return traced


@functools.cache
def load_tracer() -> None:
    """The first trace of a process loads parts of torch, which is no cost of what is recorded then.

    Nor may threads do so at the same time as others first call an operation in C++: torch's modules import one another.
    """
    vmap(torch.neg)(torch.zeros(1))
    torch._C._jit_set_profiling_executor(False)  # pyright: ignore[reportPrivateUsage]


def load_gradients() -> None:
    """The first gradient of a process loads torch's compiler, two seconds that a native step need not pay."""
    with _ONE_TRACE:
        grad(torch.square)(torch.zeros(()))


def _leave_lists_as_they_are() -> None:
    """Switch the interpreter's fusing and reordering off in this thread; the switch is each thread's own."""
    if not getattr(_THREAD, "plain", False):
        torch._C._get_graph_executor_optimize(False)  # pyright: ignore[reportPrivateUsage] # sets it, whatever its name
        _THREAD.plain = True


class _Recording(NamedTuple):
    replay: Callable[..., Sequence[Tensor]]
    form: pytree.TreeSpec


_RECORDINGS: dict[Hashable, _Recording] = {}
_KEPT = 128
"""Recordings remembered for functions to come, the last used; one is a few hundred kilobytes."""
