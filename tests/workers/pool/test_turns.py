"""Packs that use devices in turn: the time of each study is in proportion to its share, and nobody waits in vain."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from tests.support.launches import wait_until
from workers.pool.turns import CREDIT_SECONDS, Turns

pytestmark = pytest.mark.fast

STEP = 0.01
"""Seconds of a device, of its clock."""


def never() -> bool:
    return False


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def share_time(shares: Mapping[int, float], devices: Mapping[int, Sequence[int]], seconds: float) -> Counter[int]:
    """Return steps that studies make on the devices where each has a pack, until a clock has gone so far.

    The clock goes on with every step of any device; a pack is away for a while after some steps, as while its reports
    are recorded.
    """
    clock, spent, inside = Clock(), Counter[int](), list[int]()
    turns = Turns(clock)
    together = threading.Barrier(sum(map(len, devices.values())))
    count = len({device for its in devices.values() for device in its})

    def train(study: int, device: int) -> None:
        together.wait()
        while clock.now < seconds:
            with turns.of(device, study, lambda: shares[study]).training(never, lambda: {study: 1}) as is_mine:
                assert device not in inside
                inside.append(device)
                for _ in range(20):
                    time.sleep(0.0005)  # other packs queue up meanwhile
                    clock.now += STEP / count
                    spent[study] += 1
                    if not is_mine():
                        break
                inside.remove(device)
            time.sleep(0.001)

    threads = [threading.Thread(target=train, args=(study, device)) for study, its in devices.items() for device in its]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return spent


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "devices",
    [{1: (0,), 2: (0,), 3: (0,)}, {1: (0, 1), 2: (0, 1), 3: (0, 1)}, {1: (0,), 2: (0,), 3: (0, 1)}],
    ids=["one device", "two devices", "two studies on one of two devices"],
)
def test_time_is_shared_in_proportion_wherever_the_packs_are(devices: Mapping[int, Sequence[int]]):
    shares = {1: 1.0, 2: 2.0, 3: 5.0}
    spent = share_time(shares, devices, seconds=20.0)
    for study, share in shares.items():
        assert spent[study] / spent.total() == pytest.approx(share / 8, abs=0.04)


def test_a_pack_alone_has_the_device():
    assert share_time({1: 0.1}, {1: (0,)}, seconds=0.5)[1] >= 0.5 / STEP


def test_a_study_that_comes_is_served_at_once_and_catches_up_nothing_but_its_credit():
    clock, order = Clock(), list[int]()
    turns = Turns(clock)

    def train(study: int) -> None:
        with turns.of(0, study, lambda: 1.0).training(never, lambda: {study: 1}):
            order.append(study)
            clock.now += 1.0

    train(2)
    for _ in range(100):
        train(1)
    with turns.of(0, 1, lambda: 1.0).training(never, lambda: {1: 1}):
        threads = [threading.Thread(target=train, args=(study,)) for study in (1, 2, 3)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        clock.now += 1.0
    for thread in threads:
        thread.join()
    assert order[-3:] == [2, 3, 1]
    spent = turns._spent  # pyright: ignore[reportPrivateUsage] - what they go on from
    assert spent[1] - spent[2] <= CREDIT_SECONDS + 1.0
    assert spent[1] - spent[3] <= 2.0


def test_a_pack_that_fails_gives_the_device_back():
    turns = Turns()
    with pytest.raises(RuntimeError), turns.of(0, 1, lambda: 1.0).training(never, lambda: {1: 1}):
        raise RuntimeError
    with turns.of(0, 2, lambda: 1.0).training(never, lambda: {2: 1}):
        pass


def test_something_short_comes_before_all_that_train_and_ends_the_turn_of_the_one_that_does():
    clock, order = Clock(), list[str]()
    turns = Turns(clock)
    with turns.of(0, 1, lambda: 1.0).training(never, lambda: {1: 1}) as is_mine:
        assert is_mine()

        def train() -> None:
            with turns.of(0, 2, lambda: 1.0).training(never, lambda: {2: 1}):
                order.append("trains")

        def act() -> None:
            with turns.of(0, 3, lambda: 1.0).briefly():
                order.append("acts")

        threads = [threading.Thread(target=train), threading.Thread(target=act)]
        threads[0].start()
        wait_until(lambda: 2 in turns._devices[0].training)  # pyright: ignore[reportPrivateUsage]
        assert is_mine()
        threads[1].start()
        wait_until(lambda: not is_mine())
    for thread in threads:
        thread.join()
    assert order == ["acts", "trains"]


def test_a_turn_that_became_needless_is_none_and_keeps_nobody_from_the_device():
    turns, is_needless, order = Turns(), threading.Event(), list[str]()
    with turns.of(0, 1, lambda: 1.0).training(never, lambda: {1: 1}) as is_mine:

        def train() -> None:
            with turns.of(0, 2, lambda: 1.0).training(is_needless.is_set, lambda: {2: 1}) as is_mine:
                order.append(f"has it: {is_mine()}")

        thread = threading.Thread(target=train)
        thread.start()
        wait_until(lambda: 2 in turns._devices[0].training)  # pyright: ignore[reportPrivateUsage]
        is_needless.set()
        turns.of(0, 1, lambda: 1.0).wake()
        thread.join()
        assert order == ["has it: False"]
        assert is_mine()
    with turns.of(0, 2, lambda: 1.0).training(never, lambda: {2: 1}) as is_mine:
        assert is_mine()


def test_the_time_of_a_pack_of_several_studies_counts_for_each_by_its_lanes():
    clock = Clock()
    turns = Turns(clock)
    first, second = (turns.of(0, study, lambda: 2.0) for study in (1, 2))
    with second.training(never, lambda: {2: 1}):
        pass
    with first.training(never, lambda: {1: 1, 2: 3}):
        clock.now += 8.0
    with second.briefly():
        clock.now += 1.0
    assert turns._spent == {1: 1.0, 2: 3.5}  # pyright: ignore[reportPrivateUsage] - what the next turn goes by
