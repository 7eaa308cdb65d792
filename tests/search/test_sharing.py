"""Lanes shared out among studies, against water-filling by bisection; and shares that refilling alone leads to."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.steering.sharing import Demand, Share, share_lanes

pytestmark = pytest.mark.fast

WEIGHTS = st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0, 7.0])


@st.composite
def demands(draw: st.DrawFn, classes: int = 1) -> list[Demand]:
    count = draw(st.integers(0, 7))
    return [
        Demand(
            study=study,
            asks=draw(st.integers(0, 50)),
            weight=draw(WEIGHTS),
            priority=draw(st.integers(0, classes - 1)),
            owner=draw(st.sampled_from(["ann", "bo", "cy"])),
            max_lanes=draw(st.none() | st.integers(1, 20)),
        )
        for study in range(count)
    ]


def fill_with_water(needs: list[Demand], lanes: float, owner_lanes: float) -> dict[int, float]:
    """Return the max-min fair shares of one class: the level at which the vessels hold all lanes, found by bisection.

    Each study is a vessel as broad as its weight, and the studies of an owner stand in a basin with a level of its own
    where that is reached first.
    """

    def vessels(level: float, members: list[Demand]) -> list[float]:
        return [min(need.asks, need.max_lanes or need.asks, level * need.weight) for need in members]

    def basin(level: float, members: list[Demand]) -> float:
        return min(sum(vessels(level, members)), owner_lanes)

    by_owner = {owner: [need for need in needs if need.owner == owner] for owner in {need.owner for need in needs}}

    def find(amount: float, total: Callable[[float], float]) -> float:
        low, high = 0.0, 1e6
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle) <= amount else (low, middle)
        return low

    level = find(lanes, lambda height: sum(basin(height, members) for members in by_owner.values()))
    shares: dict[int, float] = {}
    for members in by_owner.values():
        owner_level = min(level, find(owner_lanes, lambda height, members=members: sum(vessels(height, members))))
        shares.update(zip((need.study for need in members), vessels(owner_level, members), strict=True))
    return shares


@given(demands(), st.integers(0, 100), st.integers(1, 60))
def test_the_shares_of_a_class_are_those_of_water(needs: list[Demand], lanes: int, owner_lanes: int):
    expected = fill_with_water(needs, lanes, owner_lanes)
    assert {study: share.lanes for study, share in share_lanes(needs, lanes, owner_lanes).items()} == pytest.approx(
        expected, abs=1e-6
    )


@given(demands(classes=3), st.integers(0, 100), st.integers(1, 60))
def test_each_class_is_filled_as_if_lower_ones_were_not_there(needs: list[Demand], lanes: int, owner_lanes: int):
    shares = share_lanes(needs, lanes, owner_lanes)
    for lowest in (2, 1):
        higher = [need for need in needs if need.priority >= lowest]
        assert share_lanes(higher, lanes, owner_lanes) == {need.study: shares[need.study] for need in higher}


@given(demands(classes=3), st.integers(0, 100), st.integers(1, 60))
def test_limits_hold_and_no_lane_is_left_that_a_study_could_have(needs: list[Demand], lanes: int, owner_lanes: int):
    shares = share_lanes(needs, lanes, owner_lanes)
    given_ = sum(share.lanes for share in shares.values())
    assert given_ <= lanes + 1e-9
    for owner, members in itertools.groupby(sorted(needs, key=lambda need: need.owner), key=lambda need: need.owner):
        assert sum(shares[need.study].lanes for need in members) <= owner_lanes + 1e-9, owner
    for need in needs:
        share, cap = shares[need.study], min(need.asks, need.max_lanes or need.asks)
        assert share.lanes <= cap
        of_owner = sum(shares[other.study].lanes for other in needs if other.owner == need.owner)
        held_by = {
            "asks": share.lanes == need.asks,
            "max_lanes": share.lanes == need.max_lanes,
            "owner": of_owner == pytest.approx(owner_lanes),
            "lanes": given_ == pytest.approx(lanes),
            "priority": given_ == pytest.approx(lanes) and share.lanes == 0,
        }
        assert held_by[share.limit], (need, share)


def test_shares_of_a_small_pool():
    three = [Demand(study=0, asks=100), Demand(study=1, asks=100, weight=2), Demand(study=2, asks=3)]
    assert share_lanes(three, 64) == {
        0: Share(lanes=61 / 3, limit="lanes"),
        1: Share(lanes=122 / 3, limit="lanes"),
        2: Share(lanes=3, limit="asks"),
    }
    above = [Demand(study=0, asks=100), Demand(study=1, asks=100, priority=1, max_lanes=60)]
    assert share_lanes(above, 64) == {1: Share(lanes=60, limit="max_lanes"), 0: Share(lanes=4, limit="lanes")}
    less = [Demand(study=0, asks=-3), Demand(study=1, asks=100)]  # planned trials were taken back
    assert share_lanes(less, 8) == {0: Share(lanes=0, limit="asks"), 1: Share(lanes=8, limit="lanes")}
    assert share_lanes(above, 60)[0] == Share(lanes=0, limit="priority")
    assert [Share(lanes=61 / 3, limit="lanes").rounded(up=up) for up in (False, True)] == [20, 21]


def test_the_studies_of_an_owner_are_summed_once_in_a_round(monkeypatch: pytest.MonkeyPatch):
    count, additions = 60, itertools.count()
    add = Fraction.__add__

    def count_and_add(left: Fraction, right: Fraction) -> Fraction:
        next(additions)
        return add(left, right)

    monkeypatch.setattr(Fraction, "__add__", count_and_add)
    share_lanes([Demand(study=study, asks=1 + study) for study in range(count)], 100_000)
    assert next(additions) < 5 * count**2


@pytest.mark.long
@given(st.integers(0, 2**32 - 1))
def test_refilling_leads_to_the_shares_whatever_the_start(seed: int):
    """Lanes come free one after the other; a study fills one while it has fewer than it is due."""
    chance = random.Random(seed)
    lanes = chance.randint(8, 64)
    needs = [
        Demand(study=study, asks=chance.choice([2, 10, 100]), weight=chance.choice([1.0, 2.0, 3.0]))
        for study in range(chance.randint(2, 6))
    ]
    shares = share_lanes(needs, lanes)
    held = {need.study: 0 for need in needs}
    held[0] = lanes  # the first one was alone before, and asked for more then
    for _ in range(40 * lanes):
        busy = [study for study, count in held.items() for _ in range(count)]
        held[chance.choice(busy)] -= 1
        for need in sorted(needs, key=lambda _: chance.random()):
            held[need.study] += max(0, shares[need.study].rounded(up=True) - held[need.study])
    for study, share in shares.items():
        assert abs(held[study] - share.lanes) <= 1, (shares, held)
