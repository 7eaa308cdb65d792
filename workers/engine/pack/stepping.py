"""Ways in which a pack makes steps: operation by operation, as one CUDA graph, or many at a launch.

A GPU computes faster than a processor starts kernels: those of a step of few lanes are captured
once, and started all together at later steps (NVIDIA, "CUDA C++ Programming Guide", CUDA Graphs). A
graph has the addresses of a pack's tensors in it, so states and the knobs of new trials are written
in place; new tensors, after each change of the width, are captured anew.

If a capture fails, or the graph gives other numbers than the step before it, the pack goes on
without one, and one line says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, final

import torch
from torch import Tensor

from spaces import plugins
from spaces.messages import shorten
from workers.data.tasks import Batch
from workers.engine.fused.step import FusedStep
from workers.engine.machine.side_by_side import CAPTURING
from workers.engine.pack.lane_data import draw_training_batches
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.lanes import LaneTrial
from workers.engine.step import Step, TracedStep
from workers.numerics.tracing import tree_leaves, tree_map
from workers.training.recipe import Recipe, State

WARM_UP_STEPS = 2
"""Steps before a capture: the first records operations and loads libraries, which none can."""
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6
"""Tolerances of the two ways: they start the same kernels, a few of which add in any order."""
_AHEAD_BYTES = 1 << 20
"""Bytes of batches that a CPU draws together, if they are of more than one step: what a core's cache may hold."""
_LOG = logging.getLogger(__name__)
_TOLD: set[str] = set()
"""Reasons for which packs of this process have gone on without a graph."""

Lanes = Sequence[LaneTrial | None]
Act = Callable[[], None]
Advance = Callable[[int], int]
"""Makes at least one step and at most so many, updates the tensors, and returns their number."""


class Graph(Protocol):
    """A record of the work of a device, which can be repeated at once."""

    def capture(self, act: Act) -> None:
        """Record the work of `act` anew, without computing; RuntimeError if that fails."""

    def replay(self) -> None:
        """Repeat the work at the same addresses, whatever they hold now."""

    def forget(self) -> None:
        """Free what is held for replays."""


class Stepper(Protocol):
    """Makes the steps of a pack."""

    def of(self, lanes: Lanes, tensors: LaneTensors) -> Advance:
        """Return the steps of these lanes, valid until lanes or tensors are others."""
        ...


def stepper_of(recipe: Recipe, step: Step | FusedStep, device: torch.device) -> Stepper:
    """Return the fastest way to make steps on this device: a graph of traced ones on a GPU."""
    if isinstance(step, FusedStep):
        return FusedSteps(step)
    starting = StartedSteps(recipe, step)
    graph = graph_of(device) if isinstance(step, TracedStep) else None
    return GraphedSteps(starting, graph) if graph else starting


def graph_of(device: torch.device) -> Graph | None:
    """Return an object that captures steps on this device; None if it cannot capture any."""
    return CudaGraph(device) if device.type == "cuda" else None


@final
class StartedSteps:
    """Each operation of a step is started by the processor; on a CPU batches of narrow packs are drawn together."""

    def __init__(self, recipe: Recipe, step: Step) -> None:
        self.recipe = recipe
        self._step = step

    def of(self, lanes: Lanes, tensors: LaneTensors) -> Advance:
        batches = list[Batch]()
        """The batches of the next steps, in reverse."""
        together = 1

        def advance(most: int) -> int:
            nonlocal together
            if not batches:
                batches.extend(reversed(draw_training_batches(self.recipe, lanes, tensors, min(together, most))))
                if tensors.seeds.device.type == "cpu":
                    together = max(1, _AHEAD_BYTES // sum(tensor.nbytes for tensor in batches[0].values()))
            tensors.state = self.next_state(lanes, tensors, batches.pop())
            return 1

        return advance

    def next_state(self, lanes: Lanes, tensors: LaneTensors, batch: Batch) -> State:
        """Return the state after a step (`Step.__call__`), before it is in the tensors."""
        used = max((index + 1 for index, running in enumerate(lanes) if running), default=0)
        return self._step(tensors.knobs, tensors.seeds, tensors.state, batch, used if 0 < used < len(lanes) else None)


@final
class FusedSteps:
    """Many steps at a launch, their data with them."""

    def __init__(self, step: FusedStep) -> None:
        self._step = step

    def of(self, lanes: Lanes, tensors: LaneTensors) -> Advance:
        def advance(most: int) -> int:
            tensors.state, made = self._step.advance(tensors.knobs, tensors.seeds, tensors.state, most)
            return made

        return advance


@final
class GraphedSteps:
    """Steps that are captured once for a pack's tensors, after a few, and replayed from then on."""

    def __init__(self, starting: StartedSteps, graph: Graph) -> None:
        self._starting = starting
        self._graph = graph
        self._key: tuple[object, ...] = ()
        """The graph's dependencies beside numbers: tensors, and the lanes' tasks."""
        self._made = 0
        """Steps made with these tensors."""
        self._captured = self._given_up = False

    def of(self, lanes: Lanes, tensors: LaneTensors) -> Advance:
        shared = self._starting.recipe.task
        # Where tasks may differ, what is drawn follows from the lanes, not from tensors alone.
        lane_tasks = (running.recipe.task if running else shared for running in lanes) if shared.kin() else ()
        tasks = set(map(plugins.name_of, lane_tasks))
        if self._given_up or len(tasks) > 1:  # which lanes have which task is sent at each step
            self._graph.forget()
            self._key = ()  # the state is in other tensors after each step
            return self._starting.of(lanes, tensors)
        if self._key != (id(tensors), *tasks):
            self._graph.forget()  # before there is a new one: there may not be room for two
            self._key, self._made, self._captured = (id(tensors), *tasks), 0, False
            self._tensors = tensors  # kept: another object could get its id

        def advance(most: int) -> int:
            if self._captured:
                self._graph.replay()
            elif self._given_up:
                act()
            else:
                self._warm_up(act, tensors)
            return 1

        def act() -> None:
            [batch] = draw_training_batches(self._starting.recipe, lanes, tensors)
            _write(tensors.state, self._starting.next_state(lanes, tensors, batch))

        return advance

    def _warm_up(self, act: Act, tensors: LaneTensors) -> None:
        """Start one more step; the last of them is compared with the graph's."""
        if self._made + 1 < WARM_UP_STEPS:
            act()
            self._made += 1
            return
        before = _copy(tensors.state)
        act()
        self._made += 1
        # From here on the step is made, whatever happens to the graph: nothing may be raised.
        if reason := self._capture(act, tensors.state, before):
            self._graph.forget()
            self._given_up = True
            if reason not in _TOLD:
                _TOLD.add(reason)
                _LOG.warning("steps are started kernel by kernel, not as a CUDA graph: %s", reason)
        else:
            self._captured = True

    def _capture(self, act: Act, state: State, before: State) -> str | None:
        """Capture the step; return what prevents its use, if anything. The state is unchanged."""
        try:
            after = _copy(state)
            self._graph.capture(act)
        except (RuntimeError, MemoryError) as error:
            return _describe(error)
        try:
            _write(state, before)
            self._graph.replay()
            pairs = zip(tree_leaves(state), tree_leaves(after), strict=True)
            if all(torch.allclose(leaf, expected, _RELATIVE, _ABSOLUTE, equal_nan=True) for leaf, expected in pairs):
                return None
            reason = "it gave other numbers than the step did that was captured"
        except (RuntimeError, MemoryError) as error:
            reason = _describe(error)
        _write(state, after)
        return reason


def _describe(error: Exception) -> str:
    return shorten(str(error).partition("\n")[0] or type(error).__name__, 200)


def _copy(state: State) -> State:
    return tree_map(torch.clone, state)


def _write(state: State, new: State) -> None:
    """Write a state into the tensors of another, in few kernels."""
    pairs: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}

    def note(to: Tensor, made: Tensor) -> None:
        if to is not made:  # what a step leaves as it is, it returns
            pairs.setdefault(to.dtype, []).append((to, made))

    tree_map(note, state, new)
    for group in pairs.values():
        targets, sources = zip(*group, strict=True)
        torch._foreach_copy_([*targets], [*sources])  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


@final
class CudaGraph:
    """A CUDA graph of this thread's stream (`use_device`), captured into memory of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graph: torch.cuda.CUDAGraph | None = None

    def capture(self, act: Act) -> None:
        self.forget()
        graph = torch.cuda.CUDAGraph()
        with CAPTURING:
            torch.cuda.current_stream(self._device).synchronize()
            torch.cuda.empty_cache()  # the graph has a pool of its own
            # Other threads train on, and allocate, meanwhile: only this one's work is captured.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                act()
            except BaseException:
                with suppress(RuntimeError):  # the error that made it void tells more
                    graph.capture_end()
                raise
            graph.capture_end()
        self._graph = graph

    def replay(self) -> None:
        assert self._graph, "captured before it is replayed"
        self._graph.replay()

    def forget(self) -> None:
        if self._graph:
            torch.cuda.current_stream(self._device).synchronize()  # a replay may be under way
            self._graph.reset()
            self._graph = None
