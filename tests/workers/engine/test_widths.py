"""Pack widths are found by trying, remembered, paid for by training; and memory that runs out costs no number."""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from search.steering.controller import Controller
from spaces.records import Directives, Offer, QueuedTrial, Report, Trial, TrialStart
from tests.support.controller import FakeWorker, Rows, audit, finish
from tests.support.databases import controlled, held, make_report, make_trial
from tests.support.emulated_gpu import emulated_step
from tests.support.launches import SPACE, check_complete, search
from tests.support.pack import alone, random_trials, reports_of
from tests.support.search_spaces import PLAIN, space
from tests.support.trials import config, replace_step, traced_step, trial
from tests.support.widths import FULL, Cramped, RequeueingController
from tests.support.worker import FakeController
from workers.engine.fused.step import FusedStep
from workers.engine.machine import memory
from workers.engine.machine.memory import Shortage, attempt, cgroup_free, free_bytes, lane_bytes
from workers.engine.pack import Pack
from workers.engine.pack.lanes import NARROWEST
from workers.engine.speed import widths
from workers.engine.speed.rate_file import RateFile
from workers.engine.speed.timing import best_rate
from workers.engine.speed.widths import PAID, WIDEST, FoundWidths, knee, next_width
from workers.engine.step import TracedStep
from workers.numerics.tracing import Traced
from workers.pool.worker import Worker
from workers.training.recipe import Recipe, State

# -- the rule --------------------------------------------------------------------------------------------------------


def climbed(rate_of: Callable[[int], float], most: int) -> dict[int, float]:
    """Rates of the widths that the rule tries, one after another."""
    rates: dict[int, float] = {}
    while (width := next_width(rates, most)) is not None:
        assert width not in rates
        rates[width] = rate_of(width)
    return rates


@given(st.floats(1e-4, 1e3), st.floats(1e-4, 1.0), st.integers(1, 12))
def test_the_knee_of_a_saturating_curve_is_narrow_and_near_the_best_width_there_is(a: float, b: float, power: int):
    def rate_of(width: int) -> float:  # a step of `width` lanes takes a + b width seconds
        return width / (a + b * width)

    rates = climbed(rate_of, 2**power)
    chosen = knee(rates)
    assert list(rates) == [2**k for k in range(1, len(rates) + 1)]
    assert chosen <= 2**power
    assert rate_of(chosen) >= 0.93 * max(rate_of(2**k) for k in range(1, power + 1))
    assert all(rate < 0.95 * max(rates.values()) for width, rate in rates.items() if width < chosen)


@given(st.lists(st.floats(0.1, 10), min_size=12, max_size=12))
def test_on_any_curve_the_knee_is_the_first_within_5_percent_of_the_best_tried(curve: list[float]):
    rates = climbed(lambda width: curve[width.bit_length() - 2], WIDEST)
    first = next(width for width, rate in sorted(rates.items()) if rate >= 0.95 * max(rates.values()))
    assert knee(rates) == first


def test_beyond_a_cliff_two_more_widths_are_tried_and_not_taken():
    rates = climbed(lambda width: width if width <= 16 else 5.0, WIDEST)
    assert knee(rates) == 16
    assert max(rates) == 64


def test_where_nothing_fits_the_narrowest_pack_is_left():
    assert climbed(lambda width: 1.0, 1) == {}
    assert knee({}) == NARROWEST


# -- finding, and what it may cost -----------------------------------------------------------------------------------


@dataclass
class Device:
    """A make-believe device: steps of saturating cost, memory for so many lanes, a clock that trying moves."""

    fits: int = WIDEST
    knee: float = 8.0
    cost: float = 0.5
    now: float = 0.0
    tried: list[int] = field(default_factory=list)

    def rate_of(self, candidate: Trial, width: int, device: str) -> float:
        self.now += self.cost * max(1.0, width / 64)
        self.tried.append(width)
        if width > self.fits:
            raise FULL
        return width / (1 + width / self.knee)

    def finder(self, path: Path) -> FoundWidths:
        return FoundWidths(device="cpu", rate_file=RateFile(path), rate_of=self.rate_of, clock=lambda: self.now)


ONE = trial(0, config(width=12))


def test_a_width_is_found_once_training_has_paid_for_it_and_never_costs_more_than_2_percent(tmp_path: Path):
    device = Device()
    finder = device.finder(tmp_path / "widths.json")
    assert finder.find(ONE) is None
    assert device.tried == []
    for exchange in itertools.count(1):
        finder.add_training_time(2.0)
        width = finder.find(ONE)
        assert device.now <= PAID * 2.0 * exchange
        if width is not None:
            break
    assert device.tried == [2**k for k in range(1, len(device.tried) + 1)]
    assert width / (1 + width / 8) >= 0.93 * 8
    assert finder.find(ONE) == width
    assert len(device.tried) == len(set(device.tried))


def test_a_width_that_does_not_fit_ends_the_trying_and_the_widest_that_fits_is_taken(tmp_path: Path):
    device = Device(fits=10, knee=1e9)
    finder = device.finder(tmp_path / "widths.json")
    finder.add_training_time(1e6)
    finder.explore(ONE)
    assert finder.find(ONE) == 8
    assert device.tried == [2, 4, 8, 16]


@pytest.mark.parametrize(("fits", "tried", "expected"), [(4096, [264, 528, 1056], 264), (200, [264, 132], 132)])
def test_a_fused_step_is_tried_first_with_a_lane_for_each_block_that_the_gpu_holds(
    fits: int, tried: list[int], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    recipe = Recipe.of(config(width=12, dtype="float32"))

    def step(*_: Any) -> FusedStep:
        made = emulated_step(recipe)
        made.most_blocks = 264
        return made

    monkeypatch.setattr(widths, "step_of", step)
    device = Device(fits=fits)
    monkeypatch.setattr(Device, "rate_of", lambda self, candidate, width, where: _rate_by_blocks(self, width))
    finder = device.finder(tmp_path / "widths.json")
    finder.add_training_time(1e6)
    finder.explore(ONE)
    assert device.tried == tried
    assert finder.find(ONE) == expected


def _rate_by_blocks(device: Device, width: int) -> float:
    """Return the rate of lanes that take turns for 264 blocks, where memory has room for them."""
    device.tried.append(width)
    if width > device.fits:
        raise FULL
    return width / math.ceil(width / 264)


@pytest.mark.long
def test_the_estimate_of_a_lanes_memory_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of autograd that holds its own result is seen by no collector of garbage."""
    saved, hooks = list[weakref.ref[Tensor]](), memory.saved_tensors_hooks

    def noting(pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]) -> Any:
        def note(tensor: Tensor) -> Any:
            saved.append(weakref.ref(tensor))
            return pack(tensor)

        return hooks(note, unpack)

    monkeypatch.setattr(memory, "saved_tensors_hooks", noting)
    lane_bytes(Recipe.of(ONE.config))
    gc.collect()
    assert saved
    assert not [reference for reference in saved if reference() is not None]


def test_nothing_wider_than_predicted_to_fit_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    needed = lane_bytes(Recipe.of(ONE.config))
    monkeypatch.setattr(widths, "free_bytes", lambda device: 40 * needed)
    monkeypatch.setattr(widths, "default_workers", lambda device: 2)
    device = Device(knee=1e9)
    finder = device.finder(tmp_path / "widths.json")
    finder.add_training_time(1e6)
    finder.explore(ONE)
    assert device.tried == [2, 4, 8, 16]


def test_the_step_of_a_padded_structure_is_chosen_at_the_sizes_of_its_packs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    padded = config(length=5, vocabulary=11, width=13)
    padded["training"]["pad_shapes"] = True
    recipes: list[Recipe] = []
    choose = widths.step_of
    monkeypatch.setattr(widths, "step_of", lambda recipe, *others: recipes.append(recipe) or choose(recipe, *others))
    Device().finder(tmp_path / "widths.json").find(trial(0, padded))
    assert recipes == [Pack(trial(0, padded), width=2)._recipe]
    assert recipes[0] != Recipe.of(padded)


def test_another_worker_and_shapes_of_the_same_size_find_it_remembered(tmp_path: Path):
    first, second = Device(), Device()
    finder = first.finder(tmp_path / "widths.json")
    finder.add_training_time(1e6)
    finder.explore(ONE)
    like, larger = trial(1, config(width=13)), trial(2, config(width=12, batch=256))
    later = second.finder(tmp_path / "widths.json")
    assert later.find(like) == finder.find(ONE)
    assert later.find(larger) is None
    assert second.tried == []


@pytest.mark.parametrize("what", ["_versions", "device_name"])
def test_what_another_version_or_device_measured_is_not_used(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    finder = Device().finder(tmp_path / "widths.json")
    finder.add_training_time(1e6)
    finder.explore(ONE)
    monkeypatch.setattr(widths, what, lambda *_: "another")
    assert Device().finder(tmp_path / "widths.json").find(ONE) is None


def test_a_curve_that_was_cut_short_goes_on_where_it_was(tmp_path: Path):
    device = Device()
    for _ in range(20):  # each a new process, that trains just long enough for one width
        finder = device.finder(tmp_path / "widths.json")
        finder.add_training_time(1.0 / PAID)
        if finder.find(ONE) is not None:
            break
    assert device.tried == [2**k for k in range(1, len(device.tried) + 1)]
    assert len(device.tried) > 3


def test_a_width_that_was_tried_in_a_busy_hour_is_tried_again_by_later_processes_three_times_in_all(tmp_path: Path):
    path = tmp_path / "widths.json"
    busy = Device(knee=1.0)  # wide packs suffer most
    finder = busy.finder(path)
    finder.add_training_time(1e6)
    finder.explore(ONE)
    knees, tried = [finder.find(ONE)], []
    for _ in range(4):
        quiet = Device(knee=8.0)
        later = quiet.finder(path)
        later.add_training_time(1e6)
        for _ in range(40):
            later.find(ONE)
        knees.append(later.find(ONE))
        tried.append(quiet.tried)
    quiet_knee = knee(climbed(lambda width: width / (1 + width / 8.0), WIDEST))
    assert knees[0] is not None
    assert knees[0] < quiet_knee
    assert knees[1:] == [quiet_knee] * 4
    assert [len(widths) > 0 for widths in tried] == [True, True, True, False]
    assert all(len(widths) == len(set(widths)) for widths in tried)


def test_a_real_pack_has_a_rate():
    rate = best_rate(trial(0, config(dtype="float32")), 4, "cpu", seconds=0.01)
    assert 1 < rate < 1e7


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.just("k"), inner),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
    | st.dictionaries(
        st.just("k"), st.dictionaries(st.integers().map(str), st.floats() | st.integers() | st.booleans())
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_file_can_be_read_and_written_over(tmp_path_factory: pytest.TempPathFactory, content: bytes):
    path = tmp_path_factory.mktemp("cache") / "widths.json"
    path.write_bytes(content)
    rate_file = RateFile(path)
    assert all(width >= 2 and 0 < rate < math.inf for width, rate in rate_file.rates("k").items())
    rate_file.add("k", 8, 2.5)
    assert RateFile(path).rates("k")[8] == 2.5


def test_a_folder_that_cannot_be_written_is_no_error_and_this_process_still_knows(tmp_path: Path):
    (tmp_path / "file").write_text("no folder")
    rate_file = RateFile(tmp_path / "file" / "widths.json")
    rate_file.add("k", 4, 1.0)
    assert rate_file.rates("k") == {4: 1.0}


def test_readers_never_see_half_a_file_and_entries_of_others_stay(tmp_path: Path):
    path = tmp_path / "widths.json"
    RateFile(path).add("theirs", 2, 1.0)
    rate_file, done = RateFile(path), threading.Event()

    def write() -> None:
        for width in range(2, 200):
            rate_file.add("mine", width, 1.0)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert json.loads(path.read_text())["theirs"] == {"2": [1.0]}
    writer.join()
    assert len(RateFile(path).rates("mine")) == 198
    assert [file.name for file in tmp_path.iterdir()] == ["widths.json"]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_running_out_of_memory_is_told_from_other_errors():
    assert isinstance(attempt(lambda: torch.empty(1 << 52, dtype=torch.uint8), "cpu"), Shortage)
    assert isinstance(attempt(lambda: bytearray(1 << 62), "cpu"), Shortage)
    assert attempt(lambda: 3, "cpu") == 3
    with pytest.raises(RuntimeError, match="shape"):
        attempt(lambda: torch.zeros(2) @ torch.zeros(3, 3), "cpu")


GPU_SHORTAGES = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate(&handle)`",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
)
"""As torch 2.13 words them: CUDA's allocator, its runtime and driver, and its libraries' handles."""


@torch.library.custom_op("graft_tests::work", mutates_args=())
def work_of_a_gpu(values: Tensor) -> Tensor:
    """Fails as an operation of a GPU does, while `GPU_FAULT` holds an error."""
    if GPU_FAULT:
        raise GPU_FAULT[0]
    return values.clone()


@work_of_a_gpu.register_vmap
def _(info: Any, dims: Any, values: Tensor) -> Any:
    return work_of_a_gpu(values), dims[0]


GPU_FAULT: list[Exception] = []


@pytest.fixture
def gpu_fault() -> Iterator[list[Exception]]:
    yield GPU_FAULT
    GPU_FAULT.clear()


@pytest.mark.parametrize("words", GPU_SHORTAGES)
@pytest.mark.parametrize("kind", [RuntimeError, torch.OutOfMemoryError, torch.AcceleratorError])
def test_memory_that_ends_inside_a_replayed_step_is_told_from_other_errors(
    words: str, kind: type[Exception], gpu_fault: list[Exception]
):
    step = Traced(("memory", words), lambda values: work_of_a_gpu(values * 2) + 1)
    assert step(torch.ones(2)).tolist() == [3, 3]
    gpu_fault.append(kind(words))
    with pytest.raises(RuntimeError) as raised:
        step(torch.ones(2))
    assert type(raised.value) is RuntimeError  # the interpreter's own, whatever the operation's was
    assert attempt(lambda: step(torch.ones(2)), "cpu") == Shortage(words)
    gpu_fault[:] = [kind("CUDA error: an illegal memory access was encountered")]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        attempt(lambda: step(torch.ones(2)), "cpu")
    gpu_fault.clear()
    assert step(torch.ones(2)).tolist() == [3, 3]


def test_free_memory_is_what_machine_and_cgroups_leave(tmp_path: Path):
    def write(folder: str, **files: object) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            (tmp_path / folder / name.replace("__", ".")).write_text(f"{value}\n")

    write("a", memory__max="max", memory__current=5)
    write("a/b", memory__max=100, memory__current=30)
    write("memory/c", memory__limit_in_bytes=50, memory__usage_in_bytes=60)
    write("cpu/c", memory__max=1, memory__current=0)
    write("", own="0::/a/b\n3:memory:/c\n2:cpu:/c\n1:memory:/gone")
    assert sorted(cgroup_free(tmp_path / "own", tmp_path)) == [0, 70]
    assert list(cgroup_free(tmp_path / "none", tmp_path)) == []
    assert 0 < free_bytes("cpu") <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_lane_needs_its_state_twice_and_activations_by_batch():
    def needed(**fields: Any) -> int:
        return lane_bytes(Recipe.of(config(vocabulary=9, width=12, key_width=5, value_width=9, **fields)))

    parameters = sum(math.prod(p.shape) for p in Pack(ONE, width=2)._layout.parameters.values())
    assert needed(batch=1) >= 2 * 3 * 8 * parameters  # parameters and two moments in float64, before and after
    activations = [needed(batch=2 * n) - needed(batch=n) for n in (64, 128)]
    assert activations[1] == pytest.approx(2 * activations[0], rel=0.05)
    assert needed(batch=64, dtype="float32") < 0.75 * needed(batch=64)


def test_masks_of_dropout_have_the_length_of_the_inputs_whatever_an_input_has():
    """Of vectors and items the last axis has features."""

    def needed(rate: float) -> int:
        regression = config(batch=16)
        regression["task"] = {"name": "linear_regression", "dimension": 3, "pairs": 5}
        regression["model"] = {"name": "regressor", "width": 8, "depth": 2, "heads": 2, "attention_dropout": rate}
        return lane_bytes(Recipe.of(regression))

    assert needed(0.1) - needed(0.0) == 2 * 16 * 6 * 8, "sites, sequences, positions, width"


# -- a pack whose memory runs out ------------------------------------------------------------------------------------


def failing(act: Callable[..., Any], at: set[int]) -> Callable[..., Any]:
    """`act`, of which these calls (from 0) run out of memory instead."""
    calls = itertools.count()

    def instead(*arguments: Any) -> Any:
        if next(calls) in at:
            raise FULL
        return act(*arguments)

    instead.kind = getattr(act, "kind", "")  # pyright: ignore[reportFunctionMemberAccess]
    return instead


def trained(pack: Pack) -> Iterator[Report]:
    """All reports; a call that runs out of memory is made again."""
    while pack.running:
        reports = attempt(lambda: pack.train(1000), "cpu")
        yield from () if isinstance(reports, Shortage) else reports


@pytest.mark.parametrize("part", ["step", "validation"])
def test_memory_that_runs_out_in_a_step_or_a_validation_changes_and_loses_nothing(part: str):
    trials = random_trials(3, seed=5)
    trials[1].config["optimizer"]["learning_rate"] = 1e30  # diverges
    expected = Pack(trials[0], width=3)
    expected.fill(trials)
    undisturbed = reports_of(expected)
    pack = Pack(trials[0], width=3)
    pack.fill(trials)
    calls = {0, 1, 4, 5, 9, 11}
    if part == "step":
        replace_step(pack, failing(pack._step, calls))
    else:
        evaluation = pack._reporting.evaluation
        evaluation._evaluations = {"": failing(evaluation._evaluations[""], calls)}
    reports = list(trained(pack))
    assert {(report.number, report.step): report for report in reports} == undisturbed
    assert len(reports) == len(undisturbed)
    assert "diverged" in {report.state for report in reports}


def test_a_pack_that_cannot_be_resized_stays_as_it_is():
    trials = random_trials(3, seed=6)
    pack = Pack(trials[0], width=3)
    pack.fill(trials)
    pack.train(7)

    class Full(dict[str, Any]):
        def items(self) -> Any:
            raise FULL

    knobs, pack._tensors.knobs = pack._tensors.knobs, Full(pack._tensors.knobs)
    assert attempt(lambda: pack.resize(8), "cpu")
    pack._tensors.knobs = knobs
    assert pack.width == 3
    assert reports_of(pack) == {key: report for candidate in trials for key, report in alone(candidate).items()}


# -- a worker whose memory runs out ----------------------------------------------------------------------------------


def last_reports(controller: FakeController) -> dict[tuple[int, int], Report]:
    return {(report.number, report.step): report for report in controller.reports}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limit", [{"making": 2}, {"stepping": 3}, {"resizing": 5}, {"making": 2, "stepping": 2}])
def test_a_worker_goes_on_with_what_memory_has_room_for_and_numbers_do_not_change(
    limit: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    numbers = random.Random(1)
    trials = [trial(i, config(steps=12 + 4 * (i % 3), every=6)) for i in range(11)]
    numbers.shuffle(trials)
    monkeypatch.setattr("workers.pool.worker.Pack", type("Limited", (Cramped,), limit))
    controller = RequeueingController(trials)
    Worker(name="w", exchange=controller.exchange, width=3, finder=Fixed(8), wait_for_work=pytest.fail).run()
    assert last_reports(controller) == {key: report for candidate in trials for key, report in alone(candidate).items()}
    assert any(controller.dropped)


@pytest.mark.long
@pytest.mark.parametrize("words", GPU_SHORTAGES[::4])
def test_a_pack_goes_on_with_half_of_its_lanes_when_memory_ends_inside_its_replayed_step(
    words: str, monkeypatch: pytest.MonkeyPatch, gpu_fault: list[Exception]
):
    class StepOfAFullGpu(TracedStep):
        """Runs out of memory in a replay where it is wider than three lanes, from its fifth step on."""

        def __call__(self, knobs: Any, seeds: Tensor, state: State, batch: Any, used: int | None = None) -> State:
            guard = Traced(("room", words), work_of_a_gpu)
            gpu_fault.clear()
            guard(seeds)  # recorded while there is room
            gpu_fault[:] = [torch.OutOfMemoryError(words)] if len(seeds) > 3 and int(state.step.max()) >= 4 else []
            guard(seeds)
            return super().__call__(knobs, seeds, state, batch, used)

    trials = [trial(i, config(steps=8 + 2 * i, every=4)) for i in range(6)]
    monkeypatch.setattr("workers.engine.pack.step_of", lambda *given: StepOfAFullGpu(*given[:3]))
    controller = RequeueingController(trials)
    Worker(name="w", exchange=controller.exchange, width=6, wait_for_work=pytest.fail).run()
    monkeypatch.setattr("workers.engine.pack.step_of", traced_step)
    gpu_fault.clear()
    assert last_reports(controller) == {key: report for candidate in trials for key, report in alone(candidate).items()}
    assert any(controller.dropped)


@dataclass
class Fixed:
    """A finder that knows."""

    width: int

    def find(self, trial: Trial) -> int:
        return self.width

    def add_training_time(self, seconds: float) -> None:
        assert seconds >= 0


@pytest.mark.parametrize("limit", [{"making": 1}, {"stepping": 1}])
def test_trials_that_do_not_even_fit_in_the_narrowest_pack_have_failed_and_others_go_on(
    limit: dict[str, int], monkeypatch: pytest.MonkeyPatch
):
    huge = trial(0, config(steps=10, every=5, width=14))

    class Limited(Cramped):
        def __init__(self, trial: Trial, *, width: int, device: str) -> None:
            if trial.structure == huge.structure:
                self.making, self.stepping = limit.get("making", WIDEST), limit.get("stepping", WIDEST)
            super().__init__(trial, width=width, device=device)

    small = [trial(i, config(steps=10, every=5)) for i in range(1, 4)]
    monkeypatch.setattr("workers.pool.worker.Pack", Limited)
    controller = RequeueingController([huge, *small])
    Worker(name="w", exchange=controller.exchange, width=4, wait_for_work=pytest.fail).run()
    ends = {report.number: report for report in controller.reports if report.state != "running"}
    assert {number: report.state for number, report in ends.items()} == {
        0: "failed",
        1: "finished",
        2: "finished",
        3: "finished",
    }
    assert ends[0].error
    assert "out of memory in a pack of 2 lanes: CUDA out of memory." in ends[0].error


class LongQueue(FakeController):
    """Says how long its queue is; notes how long it was, how many it gave, and how many ran then."""

    def __init__(self, trials: list[Trial]) -> None:
        super().__init__(trials)
        self.grants: list[tuple[float, int, int]] = []

    def exchange(self, reports: Any, offer: Offer) -> Directives:
        was, before = len(self.waiting), len(self.waiting) / max(1, len(self.running))
        directives = super().exchange(reports, offer)
        self.grants.append((before, was - len(self.waiting), len(self.running)))
        return replace(directives, waiting_per_running=len(self.waiting) / max(1, len(self.running)))


@pytest.mark.long
def test_a_pack_widens_by_portions_to_the_width_that_was_found_and_narrows_before_the_queue_ends():
    controller = LongQueue([trial(i, config(steps=12, every=3)) for i in range(60)])
    worker = Worker(name="w", exchange=controller.exchange, width=4, finder=Fixed(9), wait_for_work=pytest.fail)
    worker.run()
    lanes = [(offer.lanes, offer.structure is None) for offer in controller.offers]
    assert lanes[:3] == [(4, True), (4, False), (1, False)]
    numbers = [report.number for report in controller.reports if report.state == "finished"]
    assert sorted(numbers) == list(range(60))
    assert max(running for _, _, running in controller.grants) == 9
    late = [running for rounds, given, running in controller.grants if rounds < 1 and given]
    assert late
    assert max(late) <= 4


def test_a_pack_begins_narrower_where_the_width_that_was_found_is():
    controller = RequeueingController([trial(i, config(steps=6, every=3)) for i in range(9)])
    Worker(name="w", exchange=controller.exchange, width=8, finder=Fixed(3), wait_for_work=pytest.fail).run()
    assert [len(dropped) for dropped in controller.dropped][:2] == [0, 5]
    assert len([report for report in controller.reports if report.state == "finished"]) == 9


# -- the queue -------------------------------------------------------------------------------------------------------


def test_the_controller_requeues_exactly_what_a_worker_does_not_hold_and_writes_it_first():
    here = space(PLAIN, trials=12, group=12)
    memory = Rows()
    controller = Controller.begin(here, memory)
    structure = controller.exchange([], Offer(worker="a", lanes=4)).start[0].structure
    controller.exchange([], Offer(worker="b", lanes=4))
    holds = tuple(TrialStart(number, 1) for number in (0, 2, 5, 99))  # 5 is b's, 99 nobody's
    offer = Offer(worker="a", lanes=0, structure=structure, holds=holds)
    answer = controller.exchange([], offer)
    assert answer.stop == (5, 99)
    assert [queued.start for queued in answer.start] == [TrialStart(1, 2), TrialStart(3, 2)], (
        "the two lanes that it is told to clear"
    )
    assert ("start", (1, 3)) in memory.log


def test_a_study_whose_workers_drop_at_random_makes_every_trial_once():
    here = space(PLAIN, trials=60, group=20, stopping="{asha: {min_steps: 10, eta: 2}}")
    memory, numbers = Rows(), random.Random(3)
    controller = Controller.begin(here, memory)

    @dataclass
    class Forgetful:
        inner: FakeWorker

        @property
        def done(self) -> bool:
            return self.inner.done

        def obey(self, directives: Directives) -> None:
            self.inner.obey(directives)

        def train(self, lanes: list[int]) -> Any:
            return self.inner.train(lanes)

        @property
        def lanes(self) -> Any:
            return self.inner.lanes

        def offer(self) -> Offer:
            dropped = tuple(number for number in self.inner.lanes if numbers.random() < 0.1)
            for number in dropped:
                del self.inner.lanes[number]
            return self.inner.offer()

    finish(controller, Forgetful(FakeWorker("a", 6)), Forgetful(FakeWorker("b", 4)))  # type: ignore[arg-type]
    audit(memory, here)


def test_the_database_requeues_some_of_a_workers_trials(url: str):
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(4)], "a")
        study.start([make_trial(4)], "b")
        study.record([make_report(n, 10) for n in range(4)])
        assert study.release(held(1, 2)) == [QueuedTrial(1), QueuedTrial(2)]
        assert study.queries.counts() == {"queued": 2, "running": 3}


@pytest.mark.slow
def test_a_launch_that_runs_out_of_memory_all_the_time_gives_the_numbers_of_an_undisturbed_one(tmp_path: Path):
    patch = """
import torch, workers.engine.pack as pack
find = pack.step_of
class Full:
    def __init__(self, *arguments):
        self.step = find(*arguments)
    def __getattr__(self, name):
        return getattr(self.step, name)
    def __call__(self, knobs, seeds, *others):
        made = self.step(knobs, seeds, *others)
        if len(seeds) > 3 and int(made.step.max()) % 9 == 8: raise torch.OutOfMemoryError("full")
        return made
pack.step_of = Full
""".strip()
    search(tmp_path, "launch", SPACE, "--workers", "2", before=f"exec({patch!r})")
    check_complete(f"sqlite:///{tmp_path}/graft.db")


def test_a_dry_run_says_which_width_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    from cli.estimates import print_estimate_table
    from graft.launching.placement import Placement
    from graft.launching.planning.estimate import estimate_study
    from graft.launching.planning.reading import read_space

    monkeypatch.setattr("workers.engine.speed.timing.model_steps_per_second", lambda *_, width, **__: 10.0 * width)
    shares = set[int | None]()

    def finder(*, device: str, sharing: int | None) -> FoundWidths:
        shares.add(sharing)
        return Device(knee=8, cost=0.05).finder(tmp_path / "widths.json")

    monkeypatch.setattr(widths, "FoundWidths", finder)
    placement = Placement(executor="inline", workers=3, ray_address=None, device="cpu", width=None)

    def told(width: int | None, steps: str) -> str:
        here = read_space(SPACE, {"training.steps": steps})
        print_estimate_table("here", estimate_study(here), Placement(**{**vars(placement), "width": width}))
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("width"))
        return line.removeprefix("width").strip()

    assert told(5, "90") == "5 lanes a pack, as asked for with --pack"
    assert told(None, "90").startswith("32 lanes a pack, the default")
    assert told(None, "9_000_000").startswith("128 lanes a pack, the fewest within 5 % of the fastest tried;")
    assert shares == {3}, "as in the launch, the workers share the memory"


@pytest.mark.parametrize(("length", "vocabulary"), [(100, 120), (40, 50), (4, 9)])
def test_the_bytes_of_a_padded_lane_can_be_told(length: int, vocabulary: int) -> None:
    """Also where length and vocabulary are padded to the same size, of which no longer sequence exists."""
    padded = config(length=length, vocabulary=vocabulary, width=6, batch=4)
    padded["training"]["pad_shapes"] = True
    exact = {**padded, "training": {**padded["training"], "pad_shapes": False}}
    assert lane_bytes(Recipe.of(padded)) >= lane_bytes(Recipe.of(exact)) > 0
