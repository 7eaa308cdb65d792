"""Which workers a cluster should have, as nodes come and go and workers die: no Ray in it."""

from __future__ import annotations

import pytest

from workers.pool.slots import MOST_CRASHES, Slots, fraction, room_on, share_of

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("devices", "workers"), [(0, 2), (1, 1), (8, 3), (1, 3), (2, 7), (4, 5), (1, 999), (3, 4), (7, 20)]
)
def test_as_many_workers_as_asked_fit_on_the_devices(devices: int, workers: int):
    share = fraction(devices, workers)
    if devices:
        assert devices * int(1 / share) >= workers, "each device takes whole workers"
    assert 0 < share <= 1


def test_workers_take_gpus_alone_where_there_are_any_and_else_cores():
    assert share_of({"GPU": 3, "CPU": 64}, None) == {"GPU": 1}
    assert share_of({"GPU": 3, "CPU": 64}, 7) == {"GPU": 0.333}
    assert share_of({"GPU": 0, "CPU": 4}, None) == {"CPU": 1}
    assert share_of({"CPU": 4}, 8) == {"CPU": 0.5}


def test_nodes_with_different_numbers_of_gpus_hold_a_worker_on_each():
    nodes = [{"GPU": 8.0, "CPU": 2.0}, {"GPU": 1.0, "CPU": 64.0}, {"CPU": 128.0}]
    assert room_on(nodes, {"GPU": 1}) == 9
    assert room_on(nodes[1:], {"GPU": 1}) == 1
    assert room_on([], {"GPU": 1}) == 0


@pytest.mark.parametrize("each", [1, 2, 3, 7, 28, 59, 999])
def test_a_gpu_holds_as_many_workers_as_its_fraction_was_made_for(each: int):
    share = share_of({"GPU": 3.0}, 3 * each)
    alone = room_on([{"GPU": 1.0}], share)
    assert alone >= each
    assert alone * share["GPU"] <= 1
    assert room_on([{"GPU": 2.0}, {"GPU": 1.0}], share) == 3 * alone, "no worker lies across two GPUs"


class Grounds:
    """Room that a test changes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def slots(self, most: int | None) -> Slots:
        return Slots(most=most, room=lambda: self.room)


def filled(slots: Slots) -> list[int]:
    """Slots that are handed out until there are no more, their workers at work."""
    taken = list(iter(slots.take, None))
    for slot in taken:
        slots.note_start(slot)
    return taken


def test_each_place_gets_a_worker_and_one_that_joins_gets_its_own():
    grounds = Grounds(2)
    slots = grounds.slots(None)
    assert filled(slots) == [0, 1]
    grounds.room = 4
    assert filled(slots) == [2, 3]


def test_no_more_workers_than_asked_for():
    assert filled(Grounds(9).slots(3)) == [0, 1, 2]
    assert filled(Grounds(2).slots(3)) == [0, 1]


def test_a_slot_whose_worker_died_is_handed_out_again_where_there_is_room():
    grounds = Grounds(3)
    slots = grounds.slots(None)
    filled(slots)
    slots.note_crash(1)
    assert filled(slots) == [1]
    grounds.room = 1
    slots.note_departure(0)
    slots.note_departure(2)
    assert filled(slots) == []
    grounds.room = 3
    assert filled(slots) == [0, 2]


def test_a_slot_in_which_workers_only_die_is_given_up_and_the_others_go_on():
    slots = Grounds(2).slots(None)
    filled(slots)
    for _ in range(MOST_CRASHES - 1):
        slots.note_crash(0)
        assert filled(slots) == [0]
    slots.note_crash(0)
    assert filled(slots) == []
    assert not slots.closed
    slots.note_end(1)
    assert slots.closed
    assert not slots.exhausted


def test_deaths_count_from_the_last_report():
    slots = Grounds(1).slots(None)
    filled(slots)
    for _ in range(3 * MOST_CRASHES):
        slots.note_report(0)
        slots.note_crash(0)
        assert filled(slots) == [0]


def test_workers_that_go_down_with_their_machines_do_not_count():
    slots = Grounds(1).slots(None)
    filled(slots)
    for _ in range(3 * MOST_CRASHES):
        slots.note_departure(0)
        assert filled(slots) == [0]


def test_a_cluster_in_which_workers_only_die_is_given_up():
    slots = Grounds(2).slots(None)
    for _ in range(MOST_CRASHES):
        for slot in filled(slots):
            slots.note_crash(slot)
    assert slots.take() is None
    assert slots.exhausted
    assert slots.finished


def test_a_cluster_without_nodes_is_waited_for():
    grounds = Grounds(1)
    slots = grounds.slots(None)
    for _ in range(MOST_CRASHES):
        filled(slots)
        slots.note_crash(0)
    grounds.room = 0
    assert slots.take() is None
    assert not slots.closed


def test_a_study_is_over_when_its_last_worker_at_work_is_home_whoever_waits_for_a_place():
    slots = Grounds(3).slots(None)
    slots.note_start(slots.take() or 0)
    slots.note_start(slots.take() or 0)
    assert slots.take() == 2
    slots.note_end(0)
    assert slots.take() is None
    assert not slots.finished
    slots.note_end(1)
    assert slots.finished


def test_after_a_stop_no_worker_is_placed_and_none_is_waited_for():
    grounds = Grounds(1)
    slots = grounds.slots(None)
    filled(slots)
    slots.closed = True
    assert not slots.finished
    slots.note_departure(0)
    assert slots.take() is None
    assert slots.finished
