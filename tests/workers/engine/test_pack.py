"""Packed equals alone: a trial's numbers never depend on its lane, its neighbours, the pack's width or its history."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import threading
from typing import Any

import pytest
import torch

from spaces import plugins
from spaces.records import Report
from tests.support.pack import alone, assert_equal_to_the_bit, assert_same, random_trials, reports_of
from tests.support.plug_ins import example
from tests.support.trials import config, random_knobs, replace_step, set_parameters, trial
from workers.engine.machine.process import flush_subnormals
from workers.engine.pack import Pack
from workers.engine.pack.lanes import LaneTrial
from workers.engine.pack.reporting import Reporting
from workers.numerics.tensors import power
from workers.numerics.tracing import Traced
from workers.training.optimizers import Optimizer


@pytest.mark.parametrize("lanes", [1, 2, 7])
def test_lanes_together_equal_trials_alone_with_every_knob_random_and_dropout_on(lanes: int) -> None:
    trials = random_trials(lanes, seed=lanes)
    pack = Pack(trials[0], width=lanes)
    pack.fill(trials)
    expected = {key: report for candidate in trials for key, report in alone(candidate).items()}
    assert_same(reports_of(pack), expected)


def test_a_refilled_lane_gives_the_numbers_of_the_trial_alone() -> None:
    trials = random_trials(7, seed=70)
    pack = Pack(trials[0], width=3)
    pack.fill(trials[:3])
    expected = {key: report for candidate in trials for key, report in alone(candidate).items()}
    assert_same(reports_of(pack, waiting=trials[3:]), expected)


def test_lanes_of_different_lengths_out_of_step_equal_trials_alone() -> None:
    numbers = random.Random(5)
    trials = [trial(i, config(steps=8 + 5 * i, every=6, **random_knobs(numbers))) for i in range(5)]
    pack = Pack(trials[0], width=2)
    pack.fill(trials[:2])
    expected = {key: report for candidate in trials for key, report in alone(candidate).items()}
    assert_same(reports_of(pack, waiting=trials[2:]), expected)


def test_resizing_a_pack_in_the_middle_changes_no_number() -> None:
    trials = random_trials(3, seed=8)
    pack = Pack(trials[0], width=8)
    pack.fill(trials)
    seen = {(r.number, r.step): r for r in pack.train(1000)}
    pack.train(4)
    pack.resize(3)
    seen |= reports_of(pack)
    assert_same(seen, {key: report for candidate in trials for key, report in alone(candidate).items()})


@pytest.mark.parametrize("model", [{"embedding_dropout": 0.3}, {"residual_dropout": 0.3}, {}])
def test_each_dropout_path_is_the_same_packed_and_alone(model: dict[str, float]) -> None:
    trials = [trial(i, config(steps=12, every=6, model=model)) for i in range(4)]
    pack = Pack(trials[0], width=4)
    pack.fill(trials)
    assert_same(reports_of(pack), {key: report for candidate in trials for key, report in alone(candidate).items()})


def test_a_lane_that_diverges_is_reported_and_freed_and_its_neighbours_never_notice() -> None:
    trials = random_trials(3, seed=3, dropout=False)
    pack = Pack(trials[0], width=3)
    pack.fill(trials)
    pack.train(4)
    broken = {name: torch.full_like(p, math.nan) for name, p in pack.parameters(1).items()}
    set_parameters(pack, 1, broken)
    seen = reports_of(pack)
    assert seen[1, 5].state == "diverged"
    assert seen[1, 5].error == "the training loss was not finite at step 5"
    assert [key for key in seen if key[0] == 1] == [(1, 5)]
    assert_same(
        {key: r for key, r in seen.items() if key[0] != 1},
        {key: r for candidate in (trials[0], trials[2]) for key, r in alone(candidate).items()},
    )


def test_parameters_that_the_last_step_broke_are_found_by_the_validation() -> None:
    candidate = trial(0, config(steps=10, every=5))
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    pack.train(4)
    step = pack._step  # pyright: ignore[reportPrivateUsage]

    def breaking(*arguments: Any) -> Any:
        return (after := step(*arguments))._replace(parameters=torch.full_like(after.parameters, math.inf))

    replace_step(pack, breaking)
    (report,) = pack.train(100)
    assert (report.state, report.step, report.error) == (
        "diverged",
        5,
        "a validation metric was not finite at step 5",
    )
    assert not pack.running


def test_a_trial_reports_at_every_validation_and_at_its_last_step() -> None:
    candidate = trial(0, config(steps=25, every=10))
    seen = alone(candidate)
    assert [(key[1], r.state) for key, r in seen.items()] == [(10, "running"), (20, "running"), (25, "finished")]
    assert {(m.name, m.variant) for m in seen[0, 25].metrics} == {
        *((name, variant) for name in ("tvd", "itp", "itr") for variant in ("raw", "bema")),
        ("loss", "raw"),
    }


@pytest.mark.parametrize("failing", [1, 2, 4])
def test_an_error_in_a_report_loses_none_of_its_neighbours(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was due then is due at the next call, the last reports of both trials, too."""
    trials = random_trials(2, seed=4, steps=20)
    expected = {key: report for candidate in trials for key, report in alone(candidate).items()}
    describe, calls = Reporting._fingerprint_of, itertools.count(1)  # pyright: ignore[reportPrivateUsage]

    def describe_or_fail(reporting: Reporting, running: LaneTrial) -> Any:
        if next(calls) == failing:
            raise MemoryError
        return describe(reporting, running)

    monkeypatch.setattr(Reporting, "_fingerprint_of", describe_or_fail)
    pack, seen = Pack(trials[0], width=2), dict[tuple[int, int], Report]()
    pack.fill(trials)
    for _ in range(3):
        with contextlib.suppress(MemoryError):
            seen |= {(report.number, report.step): report for report in pack.train(1000)}
    assert seen == expected


def test_float32_packs_agree_with_trials_alone_over_a_short_run() -> None:
    numbers = random.Random(2)
    trials = [trial(i, config(steps=10, dtype="float32", **random_knobs(numbers))) for i in range(5)]
    pack = Pack(trials[0], width=5)
    pack.fill(trials)
    seen, expected = reports_of(pack), {key: r for candidate in trials for key, r in alone(candidate).items()}
    for key, report in expected.items():
        for metric, other in zip(seen[key].metrics, report.metrics, strict=True):
            assert metric.value == other.value, "to the bit on one kind of device"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_of_products_and_powers_do_not_depend_on_the_lane(dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(0)
    for rows, inner, columns in [(5, 12, 7), (9, 12, 5), (9, 12, 9), (17, 32, 16)]:
        left = torch.randn(11, rows, inner, dtype=dtype, generator=numbers)
        right = torch.randn(11, inner, columns, dtype=dtype, generator=numbers)
        whole = torch.bmm(left, right)
        for lane in range(11):
            assert torch.equal(torch.bmm(left[[lane, lane]], right[[lane, lane]])[0], whole[lane])
    bases = 1 + 100 * torch.rand(1003, dtype=dtype, generator=numbers)
    alone = torch.cat([power(base, -0.7) for base in bases.split(1)])
    assert torch.equal(power(bases, -0.7), alone)
    assert torch.allclose(alone, bases**-0.7)


@pytest.mark.parametrize("scorer", ["softmax", "spline_kernel", "entmax", "ssa"])
def test_a_diverging_trial_is_told_whatever_its_scorer(scorer: str) -> None:
    wild = config(steps=20, every=10, model={"scorer": {"name": scorer}}, optimizer={"learning_rate": 1e30})
    pack = Pack(trial(0, wild), width=2)
    pack.fill([trial(0, wild)])
    (report,) = pack.train(20)
    assert report.state == "diverged"


def test_every_thread_replays_recordings_as_they_are() -> None:
    """Torch's switch for fusing and reordering is each thread's own."""
    traced, switches = Traced("negation", torch.neg), list[bool]()
    ones = torch.ones(3)
    traced(ones)

    def replay() -> None:
        traced(ones)
        switches.append(torch._C._get_graph_executor_optimize())  # pyright: ignore[reportPrivateUsage]

    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
    assert switches == [False]


def test_splines_are_the_same_to_the_bit_wherever_their_lane_is() -> None:
    """Each lane with its own range; an odd number of points, so that the last vector is not full."""
    model = {"name": "transformer", "width": 9, "depth": 1, "heads": 1, "mlp_multiple": 1}
    trials = [
        trial(
            number,
            {
                **config(steps=12, every=6, dtype="float32", batch=7, length=3),
                "model": {**model, "activation": {"name": "spline", "knots": 11, "low": -1.0 - number}},
                "optimizer": {"name": "adamw", "learning_rate": 0.01},
            },
        )
        for number in range(5)
    ]
    assert_equal_to_the_bit(trials)


@pytest.mark.parametrize("optimizer", plugins.names(Optimizer))
def test_lanes_together_are_lanes_alone_to_the_bit_under_every_optimizer(optimizer: str) -> None:
    """A transformer in float32: stacked matrices are turned and averaged lane by lane."""
    model = {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 2, "mlp_dropout": 0.1}
    trials = [
        trial(
            number,
            {
                **config(steps=4 + number, every=4, dtype="float32"),
                "model": model,
                "optimizer": {**example(Optimizer, optimizer), "learning_rate": 0.01 * (number + 1)},
                "averaging": {"name": "bema_grid", "rho": 1.0 + number, "kappas": 2, "etas": 1},
            },
        )
        for number in range(4)
    ]
    assert_equal_to_the_bit(trials)


def test_a_pack_computes_without_subnormal_numbers_and_leaves_the_thread_as_it_was() -> None:
    candidate = trial(0, config(steps=10, every=5))
    pack = Pack(candidate, width=2)
    pack.fill([candidate])
    step, seen = pack._step, list[bool]()  # pyright: ignore[reportPrivateUsage]

    def watching(*arguments: Any) -> Any:
        seen.append(bool(torch.tensor(1e-45) * 1 == 0) and math.ulp(0.0) == 0.0)
        return step(*arguments)

    replace_step(pack, watching)
    thread = threading.Thread(target=pack.train, args=(2,))
    thread.start()
    thread.join()
    pack.train(1)
    assert seen == [True] * 3
    assert math.ulp(0.0) > 0
    with flush_subnormals(), flush_subnormals():
        pass
    assert math.ulp(0.0) > 0
