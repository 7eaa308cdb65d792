"""The cost of a step: FLOPs against torch's counter, bytes against hand counts, kernels against a pretended GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cli.estimates import print_estimate_table
from graft.launching.placement import Placement
from graft.launching.planning import estimate as estimate_module
from graft.launching.planning import gpu_estimate
from graft.launching.planning.estimate import PackPlan, estimate_study
from graft.launching.planning.gpu_estimate import (
    COUNTED,
    describe_filling,
    describe_gpu_estimate,
    estimate_gpu,
    estimated_as,
)
from graft.machine.devices import ESTIMATED
from graft.plugins.families import families
from spaces import load
from spaces.reading.catalogue import packaged_spaces
from spaces.records import Trial
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.pretended_gpu import count_step as count_on_pretended
from tests.support.pretended_gpu import pack_of, pretended_gpu, step_cases
from tests.support.trials import config, trial
from workers.data.tasks.set_complement import SetComplement
from workers.engine.machine import devices
from workers.engine.machine.side_by_side import PACKS
from workers.engine.speed.cost import (
    BANDWIDTH_SHARE,
    FLOPS_SHARE,
    GPUS,
    LAUNCH_SECONDS,
    StepCost,
    count_step,
    estimate_rates,
)
from workers.engine.speed.operations import Kernel, KernelList, stored_bytes
from workers.numerics.randomness import Streams

CASES = dict(step_cases())
CPU = torch.device("cpu")
GPU = GPUS["h100"]._replace(
    multiprocessors=10, threads=100, flops=1e12 / FLOPS_SHARE, bandwidth=1e12 / BANDWIDTH_SHARE, memory=1e9
)
"""Of which kernels of this kind reach 1 TFLOP/s and 1 TB/s."""
PRODUCTS = ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm", "aten.convolution")


def listed(act: Callable[[], Any]) -> list[Kernel]:
    with KernelList(CPU) as kernels:
        act()
    return kernels.kernels


@pytest.mark.parametrize(
    ("act", "moved", "flops"),
    [
        (lambda: torch.ones(3, 4), 48, 12),
        (lambda: torch.empty(3, 4).t().unsqueeze(0).expand(7, 4, 3), 0, 0),
        (lambda: torch.empty(3, 4) + torch.empty(3, 4), 3 * 48, 12),
        (lambda: torch.empty(3, 4) + torch.empty(4), 48 + 16 + 48, 12),
        (lambda: torch.empty(1, 4).expand(3, 4) * 2, 16 + 48, 12),  # four numbers in memory, read by three rows
        (lambda: torch.empty(3, 4).add_(1), 48 + 48, 12),
        (lambda: torch.empty(3, 4).sum(-1), 48 + 12, 3),
        (lambda: torch.empty(3, 4) @ torch.empty(4, 5), 48 + 80 + 60, 2 * 3 * 4 * 5),
        (lambda: torch.empty(2, 3, 4) @ torch.empty(2, 4, 5), 96 + 160 + 120, 2 * 2 * 3 * 4 * 5),
        (lambda: torch.empty(5, dtype=torch.float64).to(torch.float32), 40 + 20, 5),
    ],
)
def test_bytes_and_flops_are_those_counted_by_hand(act: Callable[[], Any], moved: int, flops: int):
    kernels = listed(act)
    assert (sum(kernel.bytes for kernel in kernels), sum(kernel.flops for kernel in kernels)) == (moved, flops)


def test_what_is_expanded_is_in_memory_once():
    assert stored_bytes(torch.zeros(1, 4).expand(1000, 4)) == 16
    assert stored_bytes(torch.zeros(0, 4)) == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["minimal with dropout in float32", "gpt with every dropout in float32", "pooling with muon"]
)
def test_flops_of_products_are_those_of_torchs_own_counter(name: str):
    candidate = trial(3, CASES[name])
    none_small = patch("workers.numerics.fusion.operations.SMALL_PRODUCT", 0)  # those would be part of other kernels
    with none_small, FlopCounterMode(display=False) as counter:
        cost = count_step(candidate, 3)
    products = sum(kernel.flops for kernel in cost.kernels if kernel.operation.startswith(PRODUCTS))
    assert 2 * products == counter.get_total_flops() > 0  # once while it is recorded, once while it is counted


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["minimal with dropout in float32", "gpt with every dropout in float32", "task set_complement 0"]
)
def test_kernels_are_those_of_a_recorded_step_on_a_pretended_gpu(name: str):
    with pretended_gpu() as gpu:
        recorded = count_on_pretended(gpu, pack_of(CASES[name]))
    assert len(count_step(trial(3, CASES[name]), 2).kernels) == recorded.kernels


def test_kernels_do_not_depend_on_lanes_and_what_they_do_is_in_proportion():
    candidate = trial(0, config(length=8, vocabulary=17, width=32, batch=128, dtype="float32"))
    few, many = count_step(candidate, 100), count_step(candidate, 1000)
    assert [kernel.operation for kernel in few.kernels] == [kernel.operation for kernel in many.kernels]
    assert many.bytes == pytest.approx(10 * few.bytes, rel=1e-3)
    assert many.flops == pytest.approx(10 * few.flops, rel=1e-3)


def test_a_kernel_takes_the_longest_of_launch_bytes_and_flops():
    small, wide, busy = (Kernel("x", *numbers) for numbers in ((8, 1, 500), (10**9, 1, 2000), (8, 10**10, 1000)))
    cost = StepCost(lanes=1, kernels=[small, wide, busy])
    assert cost.seconds(GPU) == pytest.approx(LAUNCH_SECONDS + 1e-3 + 1e-2)
    assert cost.launch_share(GPU) == pytest.approx(LAUNCH_SECONDS / cost.seconds(GPU))
    assert cost.occupancy(GPU) == pytest.approx((0.5 * LAUNCH_SECONDS + 1.1e-2) / cost.seconds(GPU))


def test_the_width_is_searched_by_powers_of_two_to_the_end_of_memory_or_of_the_gain():
    of_128 = StepCost(lanes=128, kernels=[Kernel("x", 128 * 10**5, 1, 128 * 40)] * 3)
    assert of_128.of_lanes(256).bytes == 2 * of_128.bytes
    free = estimate_rates(of_128, GPU, lane_bytes=10**5)
    # A kernel of 80 lanes takes as long as its launch; what doubling brings beyond ends with that of 512.
    assert [*free] == [2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert free[64] == pytest.approx(64 / (3 * LAUNCH_SECONDS))
    assert free[128] == pytest.approx(free[256])
    assert [*estimate_rates(of_128, GPU, lane_bytes=10**8)] == [2, 4, 8]
    assert estimate_rates(of_128, GPU, lane_bytes=10**9) == {}


def test_a_dry_run_estimates_a_gpu_that_is_not_here_and_says_that_it_is_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    assert set(GPUS) == set(ESTIMATED)
    monkeypatch.chdir(tmp_path)
    status, out, _ = called(monkeypatch, capfd, "launch", SPACE, "--dry-run", "--device", "h100")
    assert status == 0
    *rates, fused, choice, filling = [line for line in out.splitlines() if line.startswith("h100 ")]
    assert "trials by the traced step: " in choice
    assert filling.split(maxsplit=1)[1] == "one pack of 48 lanes: 20% of the GPU at work (an estimate, not measured)"
    assert len(rates) == 2
    assert fused.split(maxsplit=1)[1] == "no fused step: the fused step knows float32, not torch.float64"
    assert all("model-steps/s (an estimate, not measured)" in line for line in rates)
    assert "; device h100" in out
    assert "model-steps/s in all, if every trial trains to its end (an estimate)" in out.splitlines()[-1]
    status, _, error = called(monkeypatch, capfd, "launch", SPACE, "--device", "h100")
    assert status == 2
    assert error.splitlines() == ["error: --device: 'h100' is estimated by --dry-run alone, and is not trained on"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_each_structure_of_a_study_has_a_rate_and_their_packs_train_side_by_side():
    space = load(SPACE, families(), {"training.pad_shapes": "false"})
    estimate = estimate_gpu(space, "h100")
    assert len(estimate.counted) == estimate.structures > 1
    assert sum(structure.trials for structure in estimate.counted) == space.search.trials
    assert sum(structure.model_steps for structure in estimate.counted) == pytest.approx(estimate.model_steps)
    each = [structure.seconds for structure in estimate.counted]
    assert estimate_gpu(space, "h100", packs=1).seconds == pytest.approx((sum(each),) * 2)
    assert estimate.packs == min(PACKS, len(each))
    assert estimate.seconds == pytest.approx((max(*each, sum(each) / estimate.packs),) * 2)
    full = [replace(structure, full_rate=structure.model_steps_per_second) for structure in estimate.counted]
    assert replace(estimate, counted=full).seconds == pytest.approx((sum(each),) * 2), "a full GPU is no faster"
    names = [structure.name for structure in estimate.counted]
    assert len(set(names)) == len(names)
    assert all(name.startswith("set_complement, model.value_width ") for name in names)
    lines = list(describe_gpu_estimate(estimate))
    assert [label for label, _ in lines] == ["h100"] * (len(names) + 1) + ["time"]
    assert lines[-2][1].startswith(f"{estimate.packs} packs of ")
    assert lines[-2][1].endswith(f" side by side: {estimate.filled:.0%} of the GPU at work (an estimate, not measured)")
    assert all(text.startswith(name) for name, (_, text) in zip(names, lines, strict=False))


def test_a_dry_run_on_a_gpu_times_packs_of_the_studys_trials_and_tells_what_they_fill(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    timed: list[int] = []

    def plan(self: Any, candidate: Trial, width: int, reason: str) -> PackPlan:
        assert self.workers == 1, "the rate of one pack on a GPU is not that of several"
        timed.append(width)
        return PackPlan(width=width, reason=f"{width} lanes, {reason}", step="fused", evaluation="traced", rate=1e5)

    monkeypatch.setattr(estimate_module._Timing, "_plan", plan)
    monkeypatch.setattr(devices, "device_name", lambda device: "NVIDIA H100 80GB HBM3")
    space = load(SPACE, families(), {"search.trials": "64", "training.dtype": "float32"})
    placement = Placement(executor="inline", device="cuda:0", workers=2)
    print_estimate_table("small", estimate_study(space), placement)
    lines = capsys.readouterr().out.splitlines()
    assert {*timed} == {64}
    assert "width       64 lanes, at most as many as the study has trials" in lines
    [filling] = [line for line in lines if line.startswith("h100 ")]
    assert filling == f"h100        {describe_filling(estimate_gpu(space, 'h100', packs=2))}"
    assert "at work (an estimate, not measured)" in filling
    assert estimated_as("cpu") is None
    monkeypatch.setattr(devices, "device_name", lambda device: "NVIDIA T4")
    assert estimated_as("cuda") is None


@pytest.mark.long
def test_structures_that_were_not_looked_at_make_the_time_a_range():
    estimate = estimate_gpu(load("set_complement", families(), {}), "h100")
    assert len(estimate.counted) == COUNTED < estimate.structures
    rates = [structure.model_steps_per_second for structure in estimate.counted]
    least, most = estimate.seconds
    assert estimate.model_steps / max(rates) / PACKS <= least < most <= estimate.model_steps / min(rates)
    assert any("more structures, taken to be as fast as these" in text for _, text in describe_gpu_estimate(estimate))


def test_a_pack_has_no_more_lanes_than_trials():
    space = load(SPACE, families(), {"search.trials": "4", "search.group": "1"})
    estimate = estimate_gpu(space, "h100")
    assert all(
        structure.used.lanes == min(structure.trials, structure.best.lanes) <= 4 for structure in estimate.counted
    )


LARGE = ("language/web", "transfer/language/models")
"""Spaces of models of GPT-2's size, of which a step takes minutes to count."""


@pytest.mark.sampled(2, 12)
@pytest.mark.parametrize("name", [name for name in packaged_spaces() if name not in LARGE])
@pytest.mark.parametrize("gpu", ["h100", "h200", "a100", "4090"])
def test_every_packaged_space_has_an_estimate(name: str, gpu: str, monkeypatch: pytest.MonkeyPatch):
    """Of the smallest and the largest structure, or of four tasks of a transfer; all others take the same way."""
    monkeypatch.setattr(gpu_estimate, "COUNTED", 2)
    monkeypatch.setattr(gpu_estimate, "COUNTED_OF_TRANSFER", 4)
    monkeypatch.setattr(gpu_estimate, "DRAWN", 40)
    estimate = estimate_gpu(load(name, families(), {}), gpu)
    assert all(
        0 < structure.used.model_steps_per_second <= structure.best.model_steps_per_second
        for structure in estimate.counted
    )
    assert all(
        structure.step == "fused" or structure.model_steps_per_second == structure.used.model_steps_per_second
        for structure in estimate.counted
    )
    assert 0 < estimate.seconds[0] <= estimate.seconds[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_spaces_of_large_models_have_an_estimate(name: str, monkeypatch: pytest.MonkeyPatch):
    test_every_packaged_space_has_an_estimate(name, "h100", monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("name", ["algorithmic/parentheses_scorers", "quick/copying_positions", "quick/othello"])
def test_numbers_that_a_step_needs_are_none_where_it_is_counted(name: str, monkeypatch: pytest.MonkeyPatch):
    """The 1 of a fused `torch.where(c, x, 1)`, ALiBi's slopes and games of Othello have no value on the meta device."""
    assert len(estimate_gpu(load(name, families(), {}), "h100").counted) <= COUNTED


@pytest.mark.long
def test_a_step_under_autocast_is_counted_as_one_of_float32():
    candidate = trial(3, CASES["gpt with every dropout in float32"])
    cast = replace(
        candidate, config={**candidate.config, "training": {**candidate.config["training"], "autocast": "bfloat16"}}
    )
    assert count_step(cast, 2) == count_step(candidate, 2)


def test_a_task_that_cannot_be_counted_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def draw_by_numbers(self: SetComplement, streams: Streams, *_: Any) -> Any:
        raise AssertionError(streams.state.sum().item())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graft.launching.planning.review.review", lambda *_: [])
    monkeypatch.setattr(SetComplement, "training", draw_by_numbers)
    status, _, error = called(monkeypatch, capfd, "launch", SPACE, "--dry-run", "--device", "a100")
    assert status == 2
    assert error.splitlines()[-1].startswith("error: --device a100: the steps of this space cannot be counted: ")
