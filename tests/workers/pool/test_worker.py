"""The worker's loop against a fake controller: one small object, since the seam is one function of plain values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.trials import config, trial
from tests.support.worker import FakeController
from workers.engine.speed.rate_file import RateFile
from workers.engine.speed.widths import FoundWidths
from workers.pool.shared_packs import choose_width
from workers.pool.worker import Worker


def run(controller: FakeController, width: int) -> Worker:
    worker = Worker(
        name="w", exchange=controller.exchange, width=width, wait_for_work=lambda: pytest.fail("never idle here")
    )
    worker.run()
    return worker


def test_every_trial_is_trained_to_its_end_through_a_narrower_pack() -> None:
    controller = FakeController([trial(i, config(steps=10 + 5 * (i % 3), every=5)) for i in range(11)])
    run(controller, width=4)
    ends = {r.number: r.step for r in controller.reports if r.state == "finished"}
    assert ends == {i: 10 + 5 * (i % 3) for i in range(11)}
    assert all(offer.lanes <= 4 for offer in controller.offers)


def test_a_freed_lane_is_refilled_while_its_neighbours_go_on() -> None:
    controller = FakeController(
        [trial(0, config(steps=40, every=5)), *(trial(i, config(steps=5, every=5)) for i in range(1, 6))]
    )
    run(controller, width=2)
    order = [r.number for r in controller.reports if r.state == "finished"]
    assert order[-1] == 0
    assert set(order[:-1]) == set(range(1, 6))


def test_a_stopped_trial_reports_no_more() -> None:
    controller = FakeController([trial(i, config(steps=30, every=5)) for i in range(3)])
    controller.stop_at[1] = 10
    run(controller, width=4)
    assert [r.step for r in controller.reports if r.number == 1] == [5, 10]
    assert {r.number for r in controller.reports if r.state == "finished"} == {0, 2}


def test_structures_are_trained_one_after_the_other() -> None:
    kinds = [config(steps=5, width=12), config(steps=5, width=13), config(steps=5, model={"residual_dropout": 0.2})]
    controller = FakeController([trial(i, kinds[i % 3]) for i in range(9)])
    run(controller, width=8)
    assert len({offer.structure for offer in controller.offers} - {None}) == 3
    assert len([r for r in controller.reports if r.state == "finished"]) == 9


def test_a_trial_that_its_architecture_does_not_fit_fails_alone_also_where_its_width_would_be_found(
    tmp_path: Path,
) -> None:
    fits = trial(1, config(steps=5, every=5))
    uneven = {**fits.config, "model": {"name": "transformer", "width": 7, "heads": 2, "depth": 1}}
    fails = replace(fits, number=0, config=uneven, structure="uneven", architecture_trial=3)
    controller = FakeController([fails, fits])
    finder = FoundWidths(device="cpu", rate_file=RateFile(tmp_path / "widths.json"))
    Worker(name="w", exchange=controller.exchange, width=4, finder=finder, wait_for_work=pytest.fail).run()
    ends = {report.number: (report.state, report.error) for report in controller.reports}
    assert ends == {0: ("failed", "model.width: 7 must be a multiple of model.heads 2"), 1: ("finished", None)}


def test_steps_and_lane_room_are_accounted_for() -> None:
    controller = FakeController([trial(i, config(steps=20, every=10)) for i in range(3)])
    run(controller, width=4)
    assert sum(offer.steps for offer in controller.offers) == 60
    assert sum(offer.room for offer in controller.offers) == 60


@pytest.mark.parametrize(
    ("needed", "idle", "price", "expected"),
    [(8, 9.0, 1.0, 8), (9, 0.0, 1.0, 9), (5, 0.9, 1.0, 8), (5, 1.0, 1.0, 5), (7, 0.0, 0.0, 7), (4, 0.0, 1.0, 4)],
)
def test_a_pack_narrows_when_half_is_free_or_its_free_lanes_have_cost_as_much_as_a_new_width(
    needed: int, idle: float, price: float, expected: int
) -> None:
    assert choose_width(8, needed, idle, price) == expected
