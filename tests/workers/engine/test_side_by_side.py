"""Packs side by side on a GPU: a stream for each worker's slot, the same bits, and a GPU alone for what is timed.

The pretended GPU notes for each kernel the stream that was current; only a GPU tells how much is done at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from spaces.records import Directives, Offer, Trial
from tests.support.pretended_gpu import DEVICE, PretendedGpu, _Constructors, pretended_gpu, step_cases
from tests.support.trials import trial
from workers.engine.machine import devices, side_by_side
from workers.engine.machine.process import use_device
from workers.engine.machine.side_by_side import PACKS, SideBySide
from workers.engine.pack import Pack
from workers.pool import inline
from workers.pool.shared_packs import StudyDevice
from workers.pool.worker import Worker
from workers.pool.worker_settings import WorkerSettings

GPU = torch.device("cuda", 0)
CASES = dict(step_cases())
NAMES = ("schedule cosine 0", "minimal, padded, dropout of tokens")
"""Two cases of different structures."""


class Streams:
    """The streams of a GPU as threads use them: each thread has a current one, at first CUDA's own."""

    default = SimpleNamespace(name="default")

    def __init__(self) -> None:
        self.made = 0
        self._threads = threading.local()

    def make(self, device: torch.device) -> SimpleNamespace:
        assert device == GPU
        self.made += 1
        return SimpleNamespace(name=f"stream {self.made}")

    def current(self, device: torch.device | None = None) -> SimpleNamespace:
        return getattr(self._threads, "current", self.default)

    def use(self, stream: SimpleNamespace) -> None:
        self._threads.current = stream


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    fake = Streams()
    monkeypatch.setattr(torch.cuda, "Stream", fake.make)
    monkeypatch.setattr(torch.cuda, "set_stream", fake.use)
    monkeypatch.setattr(torch.cuda, "current_stream", fake.current)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: fake.default)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(side_by_side, "_STREAMS", {})
    return fake


def in_threads(*acts: Callable[[], Any]) -> list[Any]:
    """Return what each returns in a thread of its own; all run at once."""
    results: list[Any] = [None] * len(acts)

    def run(index: int) -> None:
        results[index] = acts[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# -- streams -----------------------------------------------------------------------------------------------------------


@pytest.mark.fast
def test_each_slot_has_a_stream_in_whichever_thread_and_none_computes_on_cudas_own(streams: Streams):
    def in_slot(slot: int | None) -> str:
        use_device(GPU, slot)
        use_device(GPU)  # as each pack does that the worker makes
        return streams.current().name

    names = in_threads(*(lambda slot=slot: in_slot(slot) for slot in (0, 1, 2, 0, 1, None)))
    assert names[3:] == [names[0], names[1], names[0]]
    assert len({*names}) == streams.made == 3
    assert "default" not in names


@pytest.mark.fast
def test_a_cpu_has_no_streams(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: pytest.fail("a stream was set"))
    use_device(torch.device("cpu"), 3)
    with side_by_side.alone(torch.device("cpu")), side_by_side.together(torch.device("cpu")):
        pass


class NotingGpu(PretendedGpu):
    """Notes the stream of each kernel, and of each operation that waits for the device."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self.used: set[tuple[str, str]] = set()
        self._streams = streams

    def _note(self, func: Any, args: Any, pretended: list[Any], real: list[Any], *, leaves: bool) -> None:
        super()._note(func, args, pretended, real, leaves=leaves)
        self.used.add(("wait" if leaves else "kernel", self._streams.current().name))


Saved = dict[str, torch.Tensor]


def trained(trials: Sequence[Trial]) -> Saved:
    pack = Pack(trials[0], width=2, device=DEVICE)
    pack.fill(trials)
    for _ in range(3):
        pack.train(2)
    snapshot = pack.snapshot()
    assert snapshot
    return {**snapshot.tensors}


@pytest.mark.long
def test_packs_on_streams_of_their_own_give_the_bits_of_packs_one_after_another(streams: Streams):
    several = [[trial(number, CASES[name]) for number in range(2)] for name in NAMES]
    assert several[0][0].structure != several[1][0].structure
    with pretended_gpu():
        expected = [trained(trials) for trials in several]

    def beside(slot: int) -> tuple[Saved, set[tuple[str, str]]]:
        use_device(GPU, slot)
        gpu = NotingGpu(streams)
        with _Constructors(gpu), gpu:
            return trained(several[slot]), gpu.used

    with pretended_gpu():
        outcomes = in_threads(*(lambda slot=slot: beside(slot) for slot in range(2)))
    used = [of_one for _, of_one in outcomes]
    for of_one in used:
        assert {kind for kind, _ in of_one} == {"kernel", "wait"}
        assert len({stream for _, stream in of_one}) == 1, "a pack's kernels and reads are of its stream alone"
    assert used[0].isdisjoint(used[1])
    for (saved, _), other in zip(outcomes, expected, strict=True):
        assert saved.keys() == other.keys()
        assert all(torch.equal(saved[name], other[name]) for name in saved)


# -- alone or together -------------------------------------------------------------------------------------------------


@pytest.mark.fast
def test_several_train_together_and_one_that_measures_is_alone_and_next():
    gpu, events = SideBySide(), list[str]()
    both, entered, ends = threading.Barrier(2), threading.Event(), threading.Event()

    def train() -> None:
        with gpu.together():
            both.wait(10)  # only if both are inside
            entered.set()
            ends.wait(10)
            events.append("trained")

    def measure() -> None:
        entered.wait(10)
        with gpu.alone(), gpu.alone():  # as where a width is tried with packs whose steps are timed
            events.append("measured")

    def train_later() -> None:
        ends_at = time.monotonic() + 10
        while not gpu._waiting and time.monotonic() < ends_at:
            time.sleep(0.001)
        ends.set()  # who comes after one that waits to be alone lets it go first
        with gpu.together():
            events.append("trained later")

    in_threads(train, train, measure, train_later)
    assert events == ["trained", "trained", "measured", "trained later"]
    with pytest.raises(ZeroDivisionError), gpu.alone():
        raise ZeroDivisionError
    with gpu.together():
        pass


# -- the pool ----------------------------------------------------------------------------------------------------------


class Ended:
    """A controller whose study is done."""

    def exchange(self, reports: Any, offer: Offer) -> Directives:
        return Directives(done=True)

    def renew(self, worker: str) -> bool:
        return True


@pytest.fixture
def employed(monkeypatch: pytest.MonkeyPatch, streams: Streams) -> list[tuple[str, WorkerSettings]]:
    """Return the stream and the settings of each worker of the pool."""
    workers: list[tuple[str, WorkerSettings]] = []

    def make(name: str, settings: WorkerSettings, *_: Any) -> Any:
        workers.append((streams.current().name, settings))
        return SimpleNamespace(run=lambda: True)

    monkeypatch.setattr(inline, "make_worker", make)
    return workers


def test_a_gpu_has_workers_on_streams_of_their_own_which_take_other_structures_than_one_another(
    employed: list[tuple[str, WorkerSettings]],
):
    inline.run(Ended(), device="cuda:0")  # pyright: ignore[reportArgumentType]
    assert len({stream for stream, _ in employed}) == len(employed) == PACKS == devices.inline_workers("cuda")
    assert all(settings.study_device and settings.study_device.is_beside for _, settings in employed)
    assert {settings.sharing for _, settings in employed} == {PACKS}, "the memory is shared evenly"
    employed.clear()
    inline.run(Ended(), device="cuda:0", workers=1)  # pyright: ignore[reportArgumentType]
    [(_, settings)] = employed
    assert settings.study_device
    assert not settings.study_device.is_beside
    assert settings.sharing == 1


@pytest.mark.fast
def test_a_worker_says_that_others_train_beside_it():
    for is_beside in (True, False):
        device = StudyDevice(is_beside=is_beside)
        worker = Worker(name="w", exchange=Ended().exchange, width=4, study_device=device)
        assert worker._offer([], saves=False).is_beside is is_beside


def test_workers_of_a_cpu_and_of_a_service_take_what_they_took(employed: list[tuple[str, WorkerSettings]]):
    inline.run(Ended(), device="cpu", workers=2)  # pyright: ignore[reportArgumentType]
    assert [(stream, settings.sharing) for stream, settings in employed] == [("default", 2)] * 2
    assert not any(settings.study_device and settings.study_device.is_beside for _, settings in employed)
    employed.clear()
    study_devices = [StudyDevice(study=slot) for slot in range(2)]
    inline.run(Ended(), device="cuda:0", workers=2, study_devices=study_devices.__getitem__)  # pyright: ignore[reportArgumentType]
    assert {id(settings.study_device) for _, settings in employed} == {*map(id, study_devices)}
