"""Tracing: a function of tensors becomes a flat list of tensor operations, recorded once per shape.

A replay leaves out autograd, vmap and Python's work between operations. It needs no compiler, and
threads may record and replay side by side. Only this module touches torch's tracer and trees.

A recording never ends a run. If torch's interpreter refuses the list, Python starts its operations;
if there can be no list, as of a function that takes a number out of a tensor, each step calls the
function; one line tells. A function that fails when called raises PluginError, in one line, if an
outside plug-in is part of it.
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

# vmap's fallback, lane by lane, is right, and only a recording pays for it.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]

ONE_TRACE = threading.Lock()
"""torch's tracer keeps global state; replaying needs no lock."""

_THREAD = threading.local()

tree_map = pytree.tree_map
"""Apply a function to every tensor of nested dicts and tuples of equal form."""
tree_leaves = pytree.tree_leaves


class Traced:
    """A pure function of nested tensors, replayed from its recording for each set of shapes.

    Functions of equal `key` share recordings, so that a pack of a known structure starts at once.
    """

    def __init__(self, key: Hashable, function: Callable[..., Any]) -> None:
        self._key = key
        self._function = function
        self._mine: dict[Hashable, _Recording] = {}
        self.seconds = 0.0
        """The seconds that its last recording took; 0 while it uses the recordings of others."""

    def __call__(self, *arguments: Any) -> Any:
        leaves, form = pytree.tree_flatten(arguments)
        key = (self._key, tuple(leaf.shape for leaf in leaves))
        # Looked up without the lock: a step must not wait seconds for another's recording.
        recording = self._mine.get(key) or self._recording(key, leaves, form)
        if not getattr(_THREAD, "plain", False):  # each thread must switch off fusing and reordering
            torch._C._get_graph_executor_optimize(False)  # pyright: ignore[reportPrivateUsage] # a setter
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
            _RECORDINGS[key] = self._mine[key] = recording  # put last: the order is that of use
            while len(_RECORDINGS) > _KEPT:
                del _RECORDINGS[next(iter(_RECORDINGS))]
        return recording

    def unscripted(self, *arguments: Any) -> Callable[..., Any]:
        """Return a replay's operations for these shapes, started one by one from Python."""
        leaves, form = pytree.tree_flatten(arguments)
        replay, form_out = self._list(leaves, form)
        return lambda *others: pytree.tree_unflatten(replay(*pytree.tree_leaves(others)), form_out)

    def _record(self, leaves: list[Tensor], form: pytree.TreeSpec) -> _Recording:
        with warnings.catch_warnings():
            # of shapes that become constants on purpose, and of vmap's fallback, lane by lane
            warnings.simplefilter("ignore")
            try:
                replay, form_out = self._list(leaves, form)
            except CannotRecord as error:
                _tell(f"{error}; its steps run without a recording, several times slower")
                form_out = self._run(leaves, form)[1]

                def call(*given: Tensor) -> list[Tensor]:
                    return self._run(given, form)[0]

                return _Recording(call, form_out, call)
            try:
                return _Recording(_off_python(replay, leaves), form_out, replay)
            except RuntimeError as error:
                reason = _first_line(error)
                _tell(f"operations of a step are started by Python, some 10 % slower: {reason}")
                return _Recording(replay, form_out, replay)

    def _run(self, given: Sequence[Tensor], form: pytree.TreeSpec) -> tuple[list[Tensor], pytree.TreeSpec]:
        return pytree.tree_flatten(self._function(*pytree.tree_unflatten(given, form)))

    def _list(self, leaves: list[Tensor], form: pytree.TreeSpec) -> tuple[Callable[..., list[Tensor]], pytree.TreeSpec]:
        # New objects: two leaves may be the same tensor now, and different ones in a replay.
        given = [leaf.detach() for leaf in leaves]
        tape = Tape(given)
        try:
            with tape:
                results, form_out = self._run(given, form)
        except Exception as error:
            if isinstance(error, CannotRecord) or explain(error) or not tape.origins:
                raise
            # A gradient is computed where no frame of the plug-in is left.
            reason = f"{tape.describe_last()}: {_first_line(error)}"
            raise PluginError(f"a plug-in failed: {reason}") from error
        return tape.replayer(tape.slots(results)), form_out


def _tell(line: str) -> None:
    if line not in _TOLD:
        _TOLD.add(line)
        _LOG.warning("%s", line)


def _first_line(error: Exception) -> str:
    return shorten(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", 300)


def _off_python(replay: Callable[..., list[Tensor]], leaves: list[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Return the same operations in torch's interpreter, which neither fuses nor reorders them.

    It runs a list without Python's lock, for which threads would wait at every operation: two
    workers on two cores make 1.65 times the steps of one, and made 1.25 times (BENCHMARKS.md).
    `torch.jit.trace` would keep the function and its constants as long as the process lives.
    """
    torch_c: Any = torch._C  # pyright: ignore[reportPrivateUsage]
    graph, _ = torch_c._create_graph_by_tracing(
        lambda *given: tuple(replay(*given)), tuple(leaves), lambda _: "", strict=True, force_outplace=False
    )
    return torch_c._create_function_from_graph("recorded", graph)


@functools.cache
def load_tracer() -> None:
    """Trace something small, so that loading torch's tracer is no cost of the next recording.

    Threads must not load it while others first call C++ operations: its modules are circular.
    """
    vmap(torch.neg)(torch.zeros(1))
    torch._C._jit_set_profiling_executor(False)  # pyright: ignore[reportPrivateUsage]


def load_gradients() -> None:
    """Take a first gradient, which loads torch's compiler: two seconds that native steps avoid."""
    with ONE_TRACE:
        importlib.import_module("torch._dynamo")


class _Recording(NamedTuple):
    replay: Callable[..., Sequence[Tensor]]
    form: pytree.TreeSpec
    list: Callable[..., list[Tensor]]
    """The same, started by Python; it keeps alive the operations that the interpreter numbers."""


_RECORDINGS: dict[Hashable, _Recording] = {}
_KEPT = 128
"""The most recordings, the last used, that are kept; one is a few hundred kilobytes."""
