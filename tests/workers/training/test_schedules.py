"""Schedules: every member against torch's LambdaLR with a lambda written by hand, through a whole run."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graft.plugins.collecting import plugins_asked_for
from spaces import plugins
from spaces.plugins.active import using
from tests.support.pack import alone, assert_same, reports_of
from tests.support.plug_ins import shipped
from tests.support.trials import config, traced_step, trial
from workers.engine.pack import Pack
from workers.training.schedules import Schedule

pytestmark = pytest.mark.fast

STEPS = 40


def rates(factor: Callable[[int], float], steps: int) -> list[float]:
    """Return the rate of each update when torch's scheduler multiplies a peak rate of 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    values: list[float] = []
    for _ in range(steps):
        values.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return values


def exact(value: float) -> torch.Tensor:
    """Return a knob as the engine has it."""
    return torch.tensor(value, dtype=torch.float64)


def factors(schedule: Schedule, steps: int = STEPS) -> list[float]:
    bound = plugins.bind(schedule, {path: exact(value) for path, value in plugins.knobs(schedule)})
    return [float(bound.factor(torch.tensor(n), exact(steps))) for n in range(steps)]


def built(config: dict) -> Schedule:
    return plugins.build(Schedule, config)


def warm(step: int, warmup: float) -> float:
    return (step + 1) / (warmup + 1) if step < warmup else 1.0


def linear(step: int) -> float:
    return warm(step, 6) if step < 6 else 0.1 + 0.9 * (40 - step) / 34


def cosine(step: int) -> float:
    return warm(step, 6) if step < 6 else 0.55 + 0.45 * math.cos(math.pi * (step - 6) / 34)


def warmup_cooldown(step: int) -> float:
    """4 steps up, 26 at the peak, 10 down to zero."""
    return warm(step, 4) * (1.0 if step < 30 else (1 + math.cos(math.pi * (step - 30) / 10)) / 2)


CASES = [
    ({"name": "constant"}, lambda step: 1.0),
    ({"name": "linear", "warmup": 6, "end_multiplier": 0.1}, linear),
    ({"name": "cosine", "warmup": 6, "end_multiplier": 0.1}, cosine),
    ({"name": "warmup_cooldown", "warmup": 0.1, "cooldown": 0.25}, warmup_cooldown),
]


def test_every_schedule_has_a_case() -> None:
    assert {config["name"] for config, _ in CASES} == shipped(Schedule)


@pytest.mark.parametrize(("config", "factor"), CASES, ids=lambda case: case["name"] if isinstance(case, dict) else "")
def test_a_schedule_equals_torch_with_a_lambda_written_by_hand(config: dict, factor: Callable[[int], float]) -> None:
    assert factors(built(config)) == pytest.approx(rates(factor, STEPS), abs=1e-14)


def test_paper_002_warms_up_for_one_twentieth_and_cools_down_for_half() -> None:
    values = factors(built({"name": "warmup_cooldown"}), 500)
    assert [n for n, factor in enumerate(values) if factor == 1.0] == list(range(25, 251))
    assert values[24] == pytest.approx(25 / 26)
    assert values[375] == pytest.approx(0.5)
    assert values[-1] == pytest.approx((math.pi / 250) ** 2 / 4, rel=1e-3)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [((0.0, 0.0), [1, 1, 1, 1]), ((1.0, 0.0), [1 / 5, 2 / 5, 3 / 5, 4 / 5]), ((0.0, 0.25), [1, 1, 1, 1])],
)
def test_shares_of_nothing_and_of_the_whole_run(shares: tuple[float, float], expected: list[float]) -> None:
    schedule = built({"name": "warmup_cooldown", "warmup": shares[0], "cooldown": shares[1]})
    assert factors(schedule, 4) == pytest.approx(expected)


def test_a_cosine_with_warmup_as_long_as_the_run_only_rises() -> None:
    assert factors(built({"name": "cosine", "warmup": 9}), 4) == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("name", sorted(shipped(Schedule)))
def test_whole_numbers_give_the_factor_in_float64(name: str) -> None:
    """As from Python, where a quotient of two integers would be float32."""
    schedule = plugins.build(Schedule, {"name": name})
    factor = schedule.factor(torch.tensor(7), torch.tensor(STEPS))
    assert torch.equal(factor.double(), schedule.factor(exact(7), exact(STEPS)).double())
    assert factor.dtype == torch.float64


TABLE = '''
from dataclasses import dataclass

import torch

from workers.training.schedules import Schedule


@dataclass(frozen=True, kw_only=True)
class Table(Schedule):
    """A factor for each fourth of the run."""

    def factor(self, step, steps):
        factors = torch.tensor([0.4, 1.0, 0.5, 0.25], dtype=torch.float64)
        return factors.index_select(0, (4 * step // steps).long().view(1))[0]
'''


@pytest.mark.parametrize("traced", [False, True])
def test_a_schedule_is_asked_for_updates_of_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, traced: bool
) -> None:
    """Scalars are computed ahead, and a lane whose trial has ended is stepped on with the others."""
    if traced:
        monkeypatch.setattr("workers.engine.pack.step_of", traced_step)
    (tmp_path / "table.py").write_text(TABLE)
    setups = [config(steps=steps, every=2, optimizer={"schedule": {"name": "table"}}) for steps in (4, 8)]
    with using(plugins_asked_for([str(tmp_path / "table.py")])):
        trials = [trial(number, setup) for number, setup in enumerate(setups)]
        pack = Pack(trials[0], width=2)
        pack.fill(trials)
        assert_same(reports_of(pack), alone(trials[0]) | alone(trials[1]))
