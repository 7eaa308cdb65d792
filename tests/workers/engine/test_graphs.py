"""Steps as a CUDA graph: on a pretended GPU, by a graph that lists operations, undoes them, and does them again.

The calls of CUDA's own graphs are checked by their order alone; `pytest -m gpu` captures real ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from spaces.records import Trial
from tests.support.pretended_gpu import DEVICE, PretendedGpu, pretended_gpu, step_cases
from tests.support.trials import config, trial
from workers.data.tasks.set_complement import SetComplement
from workers.engine.machine.memory import Shortage, attempt
from workers.engine.machine.side_by_side import CAPTURING
from workers.engine.pack import Pack, stepping
from workers.engine.pack.stepping import WARM_UP_STEPS, CudaGraph, StartedSteps
from workers.numerics.tape import CannotRecord, Tape
from workers.numerics.tracing import tree_leaves, tree_map
from workers.training.recipe import State

Act = Callable[[], None]
STEP_CASES = dict(step_cases())


class TapedGraph:
    """As a CUDA graph: a capture computes nothing, and a replay knows addresses and operations, and no Python."""

    def __init__(self, gpu: PretendedGpu, state: Callable[[], State], **faults: Any) -> None:
        self.gpu, self.state, self.faults = gpu, state, faults
        self.events: list[str] = []
        self.is_capturing = False

    def note_start(self) -> None:
        """Note a step that is not of a capture."""
        if self.faults.pop("memory in the step", None):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if not self.is_capturing:
            self.events.append("started")

    def capture(self, act: Act) -> None:
        if error := self.faults.get("capture"):
            raise error
        before, faults = tree_map(torch.clone, self.state()), len(self.gpu.faults)
        tape = Tape([])
        self.is_capturing = True
        try:
            with tape:
                act()
        except CannotRecord:  # a number was taken out of a tensor, for which the processor has to wait
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nCUDA kernel") from None
        finally:
            self.is_capturing = False
        tree_map(lambda to, kept: to.copy_(kept), self.state(), before)
        assert self.gpu.faults[faults:] == [], "nothing is sent to the device, which would not be captured"
        self._replay = tape.replayer([])
        self.events.append("captured")

    def replay(self) -> None:
        self.events.append("replayed")
        if isinstance(error := self.faults.get("replay"), Exception):
            raise error
        if self.faults.get("replay") != "nothing":
            self._replay()

    def forget(self) -> None:
        if self.events and self.events[-1] != "forgotten":
            self.events.append("forgotten")


class Graphs(list[TapedGraph]):
    """The graphs that packs have made."""

    def count(self, event: str) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        return sum(graph.events.count(event) for graph in self)


@contextmanager
def graphed(monkeypatch: pytest.MonkeyPatch, **faults: Any) -> Iterator[Graphs]:
    """Packs on the pretended GPU make steps by graphs, with faults."""
    made = Graphs()
    with pretended_gpu() as gpu, monkeypatch.context() as patch:
        packs: list[Pack] = []
        init = Pack.__init__

        def note(self: Pack, *arguments: Any, **keywords: Any) -> None:
            packs.append(self)
            init(self, *arguments, **keywords)

        def graph_of(device: torch.device) -> TapedGraph:
            pack = packs[-1]
            made.append(TapedGraph(gpu, lambda: pack._tensors.state, **faults))
            return made[-1]

        next_state = StartedSteps.next_state

        def note_start(self: StartedSteps, *arguments: Any) -> State:
            made[-1].note_start()
            return next_state(self, *arguments)

        patch.setattr(Pack, "__init__", note)
        patch.setattr(StartedSteps, "next_state", note_start)
        patch.setattr(stepping, "graph_of", graph_of)
        patch.setattr(stepping, "_TOLD", set())
        if error := faults.get("comparison"):
            patch.setattr(torch, "allclose", Mock(side_effect=error))
        yield made


Saved = dict[str, torch.Tensor]


def train(trials: list[Trial]) -> Saved:
    """Return what trials come to in two lanes, then four, then three, refilled; all that a checkpoint has of it."""
    pack = Pack(trials[0], width=2, device=DEVICE)
    pack.fill(trials[:2])
    pack.train(3)
    pack.train(1)
    pack.resize(4)
    pack.fill(trials[2:4])
    pack.train(3)
    pack.release([trials[2].number])
    pack.fill(trials[4:5])
    pack.train(2)
    pack.release([trials[3].number])
    pack.resize(3)
    pack.train(3)
    snapshot = pack.snapshot()
    assert snapshot
    assert [saved.step for saved in snapshot.trials] == [12, 12, 5]
    return {**snapshot.tensors}


def trials_of(name: str) -> list[Trial]:
    return [trial(number, STEP_CASES[name]) for number in range(5)]


@pytest.fixture(scope="module")
def expected() -> Callable[[str], Saved]:
    """Return what the trials of a case come to without graphs."""
    known: dict[str, Saved] = {}

    def of(name: str) -> Saved:
        if name not in known:
            with pretended_gpu():
                known[name] = train(trials_of(name))
        return known[name]

    return of


def assert_equal(actual: Saved, expected: Saved) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert torch.equal(tensor, expected[name]), name


CASES = ("schedule cosine 0", "minimal, padded, dropout of tokens", "gpt with every dropout in float32")


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sampled(1)
def test_replayed_steps_give_the_numbers_of_started_ones_through_refills_and_widths(
    name: str, expected: Callable[[str], Saved], monkeypatch: pytest.MonkeyPatch
):
    plain = expected(name)
    with graphed(monkeypatch) as graphs:
        assert_equal(train(trials_of(name)), plain)
    [graph] = graphs
    assert graph.events.count("captured") == 3, "one at each width, none at a refill"
    assert graph.events.count("started") == 3 * WARM_UP_STEPS
    assert graph.events[WARM_UP_STEPS : WARM_UP_STEPS + 2] == ["captured", "replayed"]
    steps = sum(graph.events.count(event) for event in ("started", "replayed"))
    assert steps == 12 + 3, "a step is one replay, and each capture is tried by one more"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"comparison": torch.OutOfMemoryError("CUDA out of memory. Tried to get 2 GiB\nMore")}, "CUDA out of memory"),
        ({"replay": RuntimeError("CUDA error: out of memory")}, "CUDA error: out of memory"),
        ({"capture": torch.OutOfMemoryError("CUDA out of memory. Tried to get 2 GiB\nMore")}, "CUDA out of memory"),
        ({"capture": RuntimeError("CUDA error: operation not permitted when stream is capturing")}, "not permitted"),
        ({"replay": "nothing"}, "it gave other numbers than the step did that was captured"),
    ],
)  # fmt: skip
@pytest.mark.sampled(1)
def test_a_graph_that_cannot_be_used_is_one_line_and_steps_go_on(
    fault: dict[str, Any],
    words: str,
    expected: Callable[[str], Saved],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    plain = expected(CASES[0])
    with graphed(monkeypatch, **fault) as graphs, caplog.at_level(logging.WARNING):
        assert_equal(train(trials_of(CASES[0])), plain)
    assert graphs.count("replayed") == ("capture" not in fault)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("steps are started kernel by kernel, not as a CUDA graph: ")
    assert words in line
    assert "\n" not in line


def test_a_step_that_waits_for_the_device_is_not_captured(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    drawn = SetComplement.training

    def waiting(self: SetComplement, *arguments: Any) -> Any:
        batch = drawn(self, *arguments)
        assert (batch["inputs"] >= 0).all()
        return batch

    monkeypatch.setattr(SetComplement, "training", waiting)
    with graphed(monkeypatch) as graphs:
        pack = Pack(trials_of(CASES[0])[0], width=2, device=DEVICE)
        pack.fill(trials_of(CASES[0])[:1])
        pack.train(6)
    assert graphs.count("captured") == 0
    assert [lane.step for lane in pack.lanes if lane] == [6]
    assert len(caplog.records) == 1


def test_memory_that_runs_out_in_a_step_halves_the_pack_which_is_captured_anew(monkeypatch: pytest.MonkeyPatch):
    trials = trials_of(CASES[0])[:4]
    with graphed(monkeypatch, **{"memory in the step": 1}) as graphs:
        pack = Pack(trials[0], width=4, device=DEVICE)
        pack.fill(trials)
        short = attempt(lambda: pack.train(3), "cpu")
        assert isinstance(short, Shortage)
        assert {lane.step for lane in pack.lanes if lane} == {0}
        pack.release([2, 3])
        pack.resize(2)
        pack.train(5)
        assert {lane.step for lane in pack.lanes if lane} == {5}
        assert pack._tensors.state.step.cpu().tolist() == [5, 5]
    assert graphs.count("captured") == 1


@pytest.mark.long
def test_lanes_of_several_tasks_are_started_and_captured_once_they_have_one(monkeypatch: pytest.MonkeyPatch):
    configuration = config(steps=1000, every=1000)
    model = {"name": "transformer", "width": 8, "heads": 2, "depth": 1}
    tasks = [{"name": name, "digits": 2} for name in ("add", "add_reversed", "add")]
    trials = [trial(number, {**configuration, "task": task, "model": model}) for number, task in enumerate(tasks)]
    assert trials[0].structure == trials[1].structure
    with graphed(monkeypatch) as graphs:
        pack = Pack(trials[0], width=2, device=DEVICE)
        pack.fill(trials[:2])
        pack.train(4)
        assert graphs.count("captured") == 0
        pack.release([1])
        pack.fill(trials[2:])
        pack.train(4)
        assert (graphs.count("captured"), graphs.count("replayed")) == (1, 3)
        state = [leaf.cpu() for leaf in tree_leaves(pack._tensors.state)]
    with pretended_gpu():
        plain = Pack(trials[0], width=2, device=DEVICE)
        plain.fill(trials[:2])
        plain.train(4)
        plain.release([1])
        plain.fill(trials[2:])
        plain.train(4)
        for leaf, expected in zip(state, tree_leaves(plain._tensors.state), strict=True):
            assert torch.equal(leaf, expected.cpu())


# -- the calls of CUDA -----------------------------------------------------------------------------------------------


class Calls(list[str]):
    """What is called of torch.cuda, which has no GPU here."""

    failing = ""

    def note(self, name: str) -> None:
        self.append(name)
        if name == self.failing:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()

    class Recorded:
        def capture_begin(self, *, capture_error_mode: str) -> None:
            calls.note(f"begin {capture_error_mode}")

        def __getattr__(self, name: str) -> Act:
            return lambda: calls.note(name)

    def wait() -> None:
        calls.append("wait for cuda:1")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=wait))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(f"empty_cache, {CAPTURING.locked()}"))
    return calls


def test_a_step_is_captured_on_the_threads_stream_while_no_other_thread_captures(calls: Calls):
    graph = CudaGraph(torch.device("cuda:1"))
    graph.capture(lambda: calls.append(f"act, {CAPTURING.locked()}"))
    assert calls == ["wait for cuda:1", "empty_cache, True", "begin thread_local", "act, True", "capture_end"]
    assert not CAPTURING.locked()
    calls.clear()
    graph.replay()
    graph.forget()
    graph.forget()
    assert calls == ["replay", "wait for cuda:1", "reset"], "for its own stream, not for those of other packs"


def test_what_fails_in_a_capture_ends_it_and_is_told_as_it_was(calls: Calls):
    graph = CudaGraph(torch.device("cuda:1"))
    calls.failing = "capture_end"

    def act() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        graph.capture(act)
    assert calls[-1] == "capture_end"
    assert not CAPTURING.locked()
    with pytest.raises(RuntimeError, match="previous error"):
        graph.capture(lambda: None)
    with pytest.raises(AssertionError):
        graph.replay()
