"""How many workers a cluster has room for, each on a device or a share of one: no Ray in it."""

from __future__ import annotations

import pytest

from spaces.errors import StudyError
from workers.pool.slots import fraction, reservation_of, room_on, sharing_of

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
    assert reservation_of({"GPU": 3, "CPU": 64}, None) == {"GPU": 1}
    assert reservation_of({"GPU": 3, "CPU": 64}, 7) == {"GPU": 0.333}
    assert reservation_of({"GPU": 0, "CPU": 4}, None) == {"CPU": 1}
    assert reservation_of({"CPU": 4}, 8) == {"CPU": 0.5}


def test_nodes_with_different_numbers_of_gpus_hold_a_worker_on_each():
    nodes = [{"GPU": 8.0, "CPU": 2.0}, {"GPU": 1.0, "CPU": 64.0}, {"CPU": 128.0}]
    assert room_on(nodes, {"GPU": 1}) == 9
    assert room_on(nodes[1:], {"GPU": 1}) == 1
    assert room_on([], {"GPU": 1}) == 0


@pytest.mark.parametrize("each", [1, 2, 3, 7, 28, 59, 999])
def test_a_gpu_holds_as_many_workers_as_its_fraction_was_made_for(each: int):
    share = reservation_of({"GPU": 3.0}, 3 * each)
    alone = room_on([{"GPU": 1.0}], share)
    assert alone >= each
    assert alone * share["GPU"] <= 1
    assert room_on([{"GPU": 2.0}, {"GPU": 1.0}], share) == 3 * alone, "no worker lies across two GPUs"


def test_a_device_is_shared_by_as_many_workers_as_its_fraction_was_made_for_and_by_1000_at_most():
    assert [sharing_of(reservation_of({"GPU": 2.0}, workers)) for workers in (None, 1, 2, 3, 7, 2000)] == [
        1, 1, 1, 2, 4, 1000,
    ]  # fmt: skip
    assert room_on([{"GPU": 2.0}], reservation_of({"GPU": 2.0}, 2000)) == 2000
    with pytest.raises(StudyError, match=r"^--workers: 2001 must be at most 2000 on this cluster, 1000 for each GPU"):
        reservation_of({"GPU": 2.0}, 2001)
