"""Tracing: a function of tensors becomes a flat list of tensor operations, recorded once for its shapes.

Replaying the list leaves out autograd, vmap and Python's own work between operations. No compiler is needed, so it
runs on a machine that has torch alone. Threads may record and replay side by side. The one place that touches torch's
tracer and its trees.

A recording never ends a run by itself. Where torch's interpreter refuses the list, Python starts its operations; where
there can be no list, as of a function that takes a number out of a tensor, the function itself is called at each step.
Either is told in one line. A function that fails when it is called, too, raises PluginError, one line, if an outside
plug-in is part of it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree as pytree

from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins.importing import explain
from workers.numerics.tape import CannotRecord, Tape

_LOG = logging.getLogger(__name__)
_TOLD: set[str] = set()
"""The lines that this process has logged of recordings."""

# Operations that vmap makes lane by lane are right, and a recording pays for that alone.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

ONE_TRACE = threading.Lock()
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
        """The seconds that its last recording took; 0 while it uses recordings that others made."""

    def __call__(self, *arguments: Any) -> Any:
        leaves, form = pytree.tree_flatten(arguments)
        key = (self._key, tuple(leaf.shape for leaf in leaves))
        # Its own recordings are looked up without the lock: a step that is running must not wait for another thread's
        # recording, which takes seconds.
        recording = self._mine.get(key) or self._recording(key, leaves, form)
        if not getattr(_THREAD, "plain", False):  # the interpreter fuses and reorders nothing: a switch of each thread
            torch._C._get_graph_executor_optimize(False)  # pyright: ignore[reportPrivateUsage] # sets it, whatever its name
            _THREAD.plain = True
        with torch.no_grad():
            return pytree.tree_unflatten(recording.replay(*leaves), recording.form)

    def _recording(self, key: Hashable, leaves: list[Tensor], form: pytree.TreeSpec) -> _Recording:
        with ONE_TRACE:
            recording = _RECORDINGS.pop(key, None)
            if recording is None:
                load_tracer()
                start = time.perf_counter()
                recording = self._record(leaves, form)
                if any(leaf.is_cuda for leaf in leaves):  # another thread's stream may use it at once
                    torch.cuda.current_stream().synchronize()
                self.seconds = time.perf_counter() - start
            _RECORDINGS[key] = self._mine[key] = recording  # popped and put back: the order is that of the last use
            while len(_RECORDINGS) > _KEPT:
                del _RECORDINGS[next(iter(_RECORDINGS))]
        return recording

    def unscripted(self, *arguments: Any) -> Callable[..., Any]:
        """Return the operations that a replay makes for arguments of these shapes, started from Python one by one."""
        leaves, form = pytree.tree_flatten(arguments)
        replay, form_out = self._list(leaves, form)
        return lambda *others: pytree.tree_unflatten(replay(*pytree.tree_leaves(others)), form_out)

    def _record(self, leaves: list[Tensor], form: pytree.TreeSpec) -> _Recording:
        with warnings.catch_warnings():
            # on shapes that become constants, which is the purpose, and on operations that vmap makes lane by lane
            warnings.simplefilter("ignore")
            try:
                replay, form_out = self._list(leaves, form)
            except CannotRecord as error:
                _tell(f"{error}; its steps run without a recording, several times slower")
                replay, form_out = self._direct(leaves, form)
                return _Recording(replay, form_out, replay)
            try:
                return _Recording(_off_python(replay, leaves), form_out, replay)
            except RuntimeError as error:
                _tell(f"operations of a step are started by Python, some 10 % slower: {_first_line(error)}")
                return _Recording(replay, form_out, replay)

    def _list(self, leaves: list[Tensor], form: pytree.TreeSpec) -> tuple[Callable[..., list[Tensor]], pytree.TreeSpec]:
        # Objects of their own: two leaves may be the same tensor now, and different ones when this is replayed.
        given = [leaf.detach() for leaf in leaves]
        tape = Tape(given)
        try:
            with tape:
                results, form_out = pytree.tree_flatten(self._function(*pytree.tree_unflatten(given, form)))
        except Exception as error:
            if isinstance(error, CannotRecord) or explain(error) or not tape.places:
                raise
            # A gradient is computed where no frame of the plug-in is left.
            raise PluginError(f"a plug-in failed: {tape.describe_last()}: {_first_line(error)}") from error
        return tape.replayer(tape.slots(results)), form_out

    def _direct(
        self, leaves: list[Tensor], form: pytree.TreeSpec
    ) -> tuple[Callable[..., list[Tensor]], pytree.TreeSpec]:
        """Return the function itself, and the form of what it returns."""

        def call(*given: Tensor) -> tuple[list[Tensor], pytree.TreeSpec]:
            return pytree.tree_flatten(self._function(*pytree.tree_unflatten([*given], form)))

        return lambda *given: call(*given)[0], call(*leaves)[1]


def _tell(line: str) -> None:
    if line not in _TOLD:
        _TOLD.add(line)
        _LOG.warning("%s", line)


def _first_line(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", 300)


def _off_python(replay: Callable[..., list[Tensor]], leaves: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Return the same operations in torch's own interpreter, as they are: nothing is fused or reordered.

    It runs a whole list without Python's lock. Threads that take turns for it at every operation wait for one another:
    two workers on two cores made 1.25 times the steps of one, and make 1.65 times now (BENCHMARKS.md).

    `torch.jit.trace` would make the same function, but keep it and its constants as long as the process lives.
    """
    torch_c: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    graph, _ = torch_c._create_graph_by_tracing(
        lambda *given: tuple(replay(*given)), tuple(leaves), lambda _: "", strict=True, force_outplace=False
    )
    return torch_c._create_function_from_graph("recorded", graph)


@functools.cache
def load_tracer() -> None:
    """Trace something small, so that loading torch's tracer counts as no cost of what is recorded next.

    Nor may threads do so at the same time as others first call an operation in C++: torch's modules import one another.
    """
    vmap(torch.neg)(torch.zeros(1))
    torch._C._jit_set_profiling_executor(False)  # pyright: ignore[reportPrivateUsage]


def load_gradients() -> None:
    """Take a first gradient, which loads torch's compiler: two seconds that a native step need not pay."""
    with ONE_TRACE:
        importlib.import_module("torch._dynamo")


class _Recording(NamedTuple):
    replay: Callable[..., Sequence[Tensor]]
    form: pytree.TreeSpec
    list: Callable[..., list[Tensor]]
    """The same, started by Python; keeps alive the operations that the interpreter knows by a
    number."""


_RECORDINGS: dict[Hashable, _Recording] = {}
_KEPT = 128
"""Recordings remembered for functions to come, the last used; one is a few hundred kilobytes."""
