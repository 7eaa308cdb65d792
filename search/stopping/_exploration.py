"""Small moves in a space: a trial whose draws lie near those of another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from spaces.errors import SpaceError
from spaces.records import Draws, Trial

if TYPE_CHECKING:
    from spaces.space import Space

_LAST = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """Moves each draw of the trial's own but choices by `move`, or with `resample` draws it again.

    The trial's structure, sizes and number of steps stay: a move that would change them is not
    made, so that a dropout that is on stays on.
    """

    move: float
    resample: float

    def child(self, space: Space, parent: Trial, number: int, start: int, random: Random) -> Trial:
        """Return the trial `number` that continues from `parent` at step `start`."""
        moves: dict[str, float] = {}
        for draw in space.trial_draws:
            if draw.choices is None and draw.name in parent.draws:
                if random.random() < self.resample:
                    moves[draw.name] = random.random()
                else:
                    moved = abs(parent.draws[draw.name] + random.choice((-self.move, self.move)))
                    moves[draw.name] = min(2 - moved if moved > 1 else moved, _LAST)
        if child := _move_all(space, parent, number, start, moves):
            return child
        child, made = space.child(parent, number, start, parent.draws), dict[str, float]()
        # Make each move that can be made.
        for name, u in moves.items():
            if further := _move_all(space, parent, number, start, {**made, name: u}):
                child, made = further, {**made, name: u}
        return child


def _move_all(space: Space, parent: Trial, number: int, start: int, moves: Draws) -> Trial | None:
    """Return the child with these moves made; None if it could not train in its parent's lane."""
    try:
        child = space.child(parent, number, start, {**parent.draws, **moves})
    except SpaceError:
        return None
    same_length = child.config["training"]["steps"] == parent.config["training"]["steps"]
    # Padded or not.
    same_sizes = all(child.params.get(path) == parent.params.get(path) for path in space.drawn_sizes)
    return child if child.structure == parent.structure and same_sizes and same_length else None
