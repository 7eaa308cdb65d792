"""Shares of lanes of several studies: pure functions without clock, thread or database.

Classes of priority come one after the other; inside a class lanes are shared by weighted max-min
fairness (progressive filling: Bertsekas and Gallager, "Data Networks", 1992, section 6.5.2). No
lane is taken away: a study above its share gets none of those that come free, so that refilling
alone leads to the shares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

Limit = Literal["asks", "max_lanes", "owner", "lanes", "priority"]
"""The limit on a study's lanes: it asks for no more; its own or its owner's maximum; all lanes are
shared out, or higher classes have them."""


@dataclass(frozen=True, kw_only=True)
class Demand:
    """The lanes that one study asks for."""

    study: int
    asks: int
    """Lanes that it could use now, including those that it has."""
    weight: float = 1.0
    """Above 0."""
    priority: int = 0
    """Its class; lanes go to the highest first."""
    owner: str = ""
    max_lanes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Share:
    """The lanes that one study is due."""

    lanes: float
    limit: Limit

    def rounded(self, *, up: bool) -> int:
        """Return whole lanes; a part of a lane is a whole one for that part of the time."""
        return math.ceil(self.lanes) if up else math.floor(self.lanes)


@dataclass(kw_only=True)
class _Filling:
    """A study while lanes are shared out."""

    demand: Demand
    lanes: Fraction = Fraction(0)
    limit: Limit | None = None
    """None while its lanes still rise."""

    @cached_property
    def weight(self) -> Fraction:
        return Fraction(self.demand.weight)

    @cached_property
    def cap(self) -> Fraction:
        """The most lanes that it asks for and may have."""
        asks, most = self.demand.asks, self.demand.max_lanes
        most = asks if most is None else min(asks, most)
        return Fraction(max(0, most))


def share_lanes(demands: Sequence[Demand], lanes: int, owner_lanes: int | None = None) -> dict[int, Share]:
    """Return each study's share of `lanes`; the studies of one owner have at most `owner_lanes`.

    Each class gets what the higher ones leave. In a class the lanes of all studies rise together,
    in proportion to their weights, until a study has all that it asks for or may have, its owner
    has the most, or no lane is left; the others rise on.
    """
    left = Fraction(lanes)
    owners = {demand.owner: Fraction(lanes if owner_lanes is None else owner_lanes) for demand in demands}
    shares: dict[int, Share] = {}
    for priority in sorted({demand.priority for demand in demands}, reverse=True):
        members = [_Filling(demand=demand) for demand in demands if demand.priority == priority]
        is_first = left == lanes
        _fill(members, left, owners)
        for member in members:
            left -= member.lanes
            owners[member.demand.owner] -= member.lanes
            limit: Limit = member.limit or "lanes"
            if limit == "lanes" and not is_first and not member.lanes:
                limit = "priority"
            shares[member.demand.study] = Share(lanes=float(member.lanes), limit=limit)
    return shares


def _fill(members: Sequence[_Filling], lanes: Fraction, owners: dict[str, Fraction]) -> None:
    """Raise the lanes of a class until all are at a limit; each round takes at least one there."""
    for _ in range(len(members) + 1):
        had = _sum_by_owner((member.demand.owner, member.lanes) for member in members)
        taken = sum(had.values(), Fraction(0))
        for member in members:
            if member.limit is not None:
                continue
            owner = member.demand.owner
            if member.lanes >= member.cap:
                member.limit = "asks" if member.cap == max(0, member.demand.asks) else "max_lanes"
            elif taken >= lanes:
                member.limit = "lanes"
            elif had[owner] >= owners[owner]:
                member.limit = "owner"
        rising = [member for member in members if member.limit is None]
        if not rising:
            return
        room = [(member.cap - member.lanes) / member.weight for member in rising]
        weights = _sum_by_owner((member.demand.owner, member.weight) for member in rising)
        room.append((lanes - taken) / sum(weights.values(), Fraction(0)))
        room.extend((owners[owner] - had[owner]) / weight for owner, weight in weights.items())
        rise = min(room)
        for member in rising:
            member.lanes += rise * member.weight
    raise AssertionError("a round in which no study stopped")  # rather than to loop for ever


def _sum_by_owner(pairs: Iterable[tuple[str, Fraction]]) -> dict[str, Fraction]:
    sums = defaultdict[str, Fraction](Fraction)
    for owner, value in pairs:
        sums[owner] += value
    return sums
