"""Continuous packing counted: of all the steps that lanes could have trained a trial, nearly all did.

The controller, the worker and the pack are the real ones; only a step's arithmetic is left out, and validations come
from a made-up curve, so that a thousand trials take seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import workers.engine.pack
import workers.pool.worker
from search.steering.controller import Controller
from spaces import parse
from spaces.records import Directives, Metric, Offer, Report
from spaces.space import Space
from tests.support.controller import Rows
from tests.support.search_spaces import FAMILIES
from workers.data.tasks import Batch
from workers.engine.pack import Pack
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.lanes import Lanes
from workers.engine.pack.reporting import Reporting
from workers.engine.step import Knobs
from workers.pool.shared_packs import choose_width
from workers.pool.worker import Worker
from workers.training.recipe import State

WIDTH = 32


class Costly(Pack):
    """A pack whose other widths would cost it dear."""

    @property
    def setup_seconds(self) -> float:
        return math.inf


class CountingStep:
    """A step that learns nothing."""

    kind = "counted"

    def __call__(self, knobs: Knobs, seeds: Tensor, state: State, batch: Batch, used: int | None = None) -> State:
        return state._replace(step=state.step + 1)


def evaluate(reporting: Reporting, lanes: Lanes, tensors: LaneTensors, indices: list[int]) -> list[tuple[Metric, ...]]:
    """Curves as if the lanes had learned."""
    seeds, steps = tensors.seeds, tensors.state.step
    return [(Metric("tvd", "raw", "", curve(int(seeds[at]), int(steps[at]))),) for at in indices]


def curve(seed: int, step: int) -> float:
    """From 1 down to a limit of the trial's own, at a rate of its own."""
    numbers = random.Random(seed)
    limit, rate = numbers.random(), numbers.uniform(1, 8)
    return limit + (1 - limit) * math.exp(-rate * step / 256)


class Desk:
    """Passes a worker's words on to the controller, and adds up its lanes' steps."""

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.steps = self.room = 0

    def exchange(self, reports: Sequence[Report], offer: Offer) -> Directives:
        self.steps += offer.steps
        self.room += offer.room
        return self.controller.exchange(reports, offer)


def report(number: int, step: int, value: float, state: Literal["running", "finished"] = "running") -> Report:
    return Report(number=number, fence=1, step=step, metrics=(Metric("tvd", "raw", "", value),), state=state)


def searching(
    structures: str, *, trials: int = 1000, stopping: str = "{asha: {min_steps: 16}}", group: int = 1
) -> Space:
    """Return a search over trials of 256 steps."""
    text = f"""
study: packed
task: {{name: set_complement, length: 2, vocabulary: 4}}
model: {{name: minimal, width: 4, key_width: 2, value_width: 4, {structures}}}
optimizer: {{name: adamw, learning_rate: 10 ** uniform(-4, -1)}}
training: {{steps: 256, batch: 8, validate_every: 16}}
search: {{stopping: {stopping}, trials: {trials}, group: {group}, objective: {{minimize: tvd/raw}}}}
"""
    return parse(text, "test.yaml", FAMILIES, {})


ONE = "scorer: softmax"
FOUR = "scorer: {choice: [softmax, average]}, residual_dropout: 'relu(uniform(-1, 0.5))'"


@pytest.mark.long
@pytest.mark.parametrize("structures", [ONE, FOUR])
def test_a_search_with_early_stopping_uses_its_lanes_from_the_first_step_to_the_last(
    structures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers.pool.worker, "Pack", Costly)
    monkeypatch.setattr(workers.engine.pack, "step_of", lambda *_: CountingStep())
    monkeypatch.setattr(Reporting, "evaluate", evaluate)
    memory = Rows()
    desk = Desk(Controller.begin(searching(structures), memory))
    Worker(
        name="w", exchange=desk.exchange, width=WIDTH, wait_for_work=lambda: pytest.fail("nothing to wait for")
    ).run()
    states = [row.state for row in memory.rows.values()]
    assert len(states) == 1000
    assert 20 < states.count("finished") < 200
    assert desk.steps == sum(row.reports[-1].step for row in memory.rows.values())
    assert desk.steps / desk.room >= 0.95


def test_lanes_of_stopped_trials_are_filled_in_the_answer_that_stops_them() -> None:
    controller = Controller.begin(searching(ONE, trials=20), Rows())
    started = controller.exchange([], Offer(worker="w", lanes=8)).start
    reports = [report(trial.number, 16, 0.1 * trial.number) for trial in started]
    holds = tuple(trial.start for trial in started)
    said = controller.exchange(reports, Offer(worker="w", lanes=0, structure=started[0].structure, holds=holds))
    assert len(said.stop) == len(said.start) > 0


def test_a_lane_that_fell_free_by_itself_is_filled_once_though_its_trial_was_to_be_stopped() -> None:
    space = searching(ONE, trials=4, group=2, stopping="{patience: {steps: 16}}")
    controller = Controller.begin(space, Rows())
    [ours] = controller.exchange([], Offer(worker="a", lanes=1)).start
    [theirs] = controller.exchange([], Offer(worker="b", lanes=1)).start
    full = {
        name: Offer(worker=name, lanes=0, structure=ours.structure, holds=(queued.start,))
        for name, queued in (("a", ours), ("b", theirs))
    }
    for step in (16, 32):
        controller.exchange([report(theirs.number, step, 1.0)], full["b"])
        controller.exchange([report(ours.number, step, 1.0)], full["a"])
    late = report(theirs.number, 256, 1.0, "finished")
    said = controller.exchange([late], Offer(worker="b", lanes=1, structure=ours.structure))
    assert (said.stop, len(said.start)) == ((), 1)


@given(
    free=st.floats(0.01, 1.0),
    price=st.floats(0.0, 5.0),
    seconds=st.lists(st.floats(0.001, 2.0), min_size=1, max_size=60),
)
def test_free_lanes_never_cost_twice_what_the_best_moment_to_narrow_would_have_cost(
    free: float, price: float, seconds: list[float]
) -> None:
    idle = paid = 0.0
    narrow = False
    for lasted in seconds:
        if not narrow and choose_width(WIDTH, WIDTH - 1, idle, price) < WIDTH:
            narrow, paid = True, idle + price
        idle += 0.0 if narrow else free * lasted
    best = min(price, free * sum(seconds))
    assert (paid if narrow else idle) <= 2 * best + free * max(seconds)
