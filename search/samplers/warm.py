"""A search that starts from what earlier studies found."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

from search.samplers import Sampler, Strategy
from search.samplers.grid import Grid
from spaces.errors import PluginError, SpaceError
from spaces.messages import no_such
from spaces.plugins import Examples
from spaces.plugins.fields import knob, part, text
from spaces.records import TERMINAL, Draws, Outcome, Trial
from spaces.seeds import stream_word
from spaces.space import Space

if TYPE_CHECKING:
    from spaces.grammar.formulas import CoordinateOf, Draw

_BELOW_ONE = math.nextafter(1.0, 0.0)
_DIGITS = 10**6
"""Steps of coordinates in a text: millionths."""
UNRESTRICTED = "unrestricted"
_STREAM = int.from_bytes(b"floor", "little")


@final
@dataclass(frozen=True, kw_only=True)
class Warm(Sampler):
    """Another sampler that tries given points first, then looks more often where good trials lie.

    The first trials are the `candidates`; draws that one of them lacks come from `sampler`. After
    them a share `floor` of the trials is the sampler's over the whole space, so that a wrong prior
    cannot trap the search; the others are the sampler's over the `box`, stretched to fill it. A
    sampler that learns does so twice: over the whole space from all trials, and over the box from
    those inside it. If it learns draws that a group shares, whole groups are of the floor, those of
    the candidates among them. Shared draws are never narrowed, and candidates do not give them.

    `search launch --warm-start` writes both texts; coordinates are of trials' `draws`, in [0, 1).
    """

    EXAMPLES: ClassVar[Examples] = (
        {
            "sampler": {"name": "tpe", "startup": 5},
            "candidates": '{"optimizer.learning_rate": [0.3]}',
            "box": '{"optimizer.learning_rate": [0.1, 1]}',
        },
    )

    sampler: Sampler = part(Sampler, "random")
    candidates: str = text("{}", plain=True)
    """JSON, a column per draw: `{"optimizer.learning_rate": [0.52], "model.scorer": [null]}`."""
    box: str = text("{}", plain=True)
    """JSON, the range of each narrowed draw: `{"optimizer.learning_rate": [0.4, 0.7]}`; of a choice
    it keeps whole options, those of which it has more than a half."""
    floor: float = knob(0.25, low=0, high=1)
    """Share of the trials that the box does not touch."""

    def __post_init__(self) -> None:
        """Raise PluginError for wrong texts, and for samplers that do not go with a prior."""
        if isinstance(self.sampler, Grid):
            raise PluginError("sampler: grid tries each of its points once; random, qmc or tpe can start warm")
        if isinstance(self.sampler, Warm):
            raise PluginError("sampler: warm cannot start another warm; name the sampler that it should start")
        self.points()
        self.ranges()

    @property
    def takes_two_objectives(self) -> bool:
        """True if the sampler that it starts takes two objectives."""
        return self.sampler.takes_two_objectives

    def points(self) -> tuple[Draws, ...]:
        """Return the candidates' coordinates, the most promising first."""
        columns = _columns(self.candidates, "candidates", lambda u: u is None or (_is_end(u) and u < 1))
        if len({len(column) for column in columns.values()}) > 1:
            raise PluginError("candidates: every draw must have as many coordinates as the others, null for none")
        names = list(columns)
        rows = [zip(names, row, strict=True) for row in zip(*columns.values(), strict=True)]
        return tuple({name: u for name, u in row if u is not None} for row in rows)

    def ranges(self) -> Mapping[str, tuple[float, float]]:
        """Return the low and the high end of each narrowed draw."""
        box = _columns(self.box, "box", _is_end)
        for name, ends in box.items():
            if len(ends) != 2 or not ends[0] < ends[1]:
                raise PluginError(f"box: {name}: {json.dumps(ends)} must be [low, high] with 0 <= low < high <= 1")
        return {name: (low, high) for name, (low, high) in box.items()}

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start; raises SpaceError for a draw that the space lacks."""
        known = [draw.name for draw in space.draws]
        for name in {name: None for point in (*self.points(), self.ranges()) for name in point}:
            if name not in known:
                raise SpaceError(f"search.sampler: {no_such('draw of the space', name, known)}")
        return WarmStrategy(space, outcomes, self)


def format_prior(points: Sequence[Draws], ranges: Mapping[str, tuple[float, float]]) -> tuple[str, str]:
    """Return these coordinates as `candidates` and `box`, six decimals, ranges rounded inwards."""
    names = list({name: None for point in points for name in point})
    columns = {
        name: [min(round(point[name] * _DIGITS), _DIGITS - 1) / _DIGITS if name in point else None for point in points]
        for name in names
    }
    box = {
        name: [math.ceil(low * _DIGITS) / _DIGITS, math.floor(high * _DIGITS) / _DIGITS]
        for name, (low, high) in ranges.items()
    }
    return json.dumps(columns), json.dumps(box)


def _columns(given: str, field: str, fits: Callable[[Any], bool]) -> dict[str, list[Any]]:
    """Return `{draw: [...]}` with entries that fit; raises PluginError for anything else."""
    try:
        columns: Any = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise PluginError(f"{field}: this is not JSON: {error}") from error
    if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
        raise PluginError(f'{field}: this must be JSON of the form {{"draw": [coordinate, ...]}}')
    for name, column in columns.items():
        if not all(map(fits, column)):
            raise PluginError(f"{field}: {name}: {json.dumps(column)} must hold coordinates from 0 to 1")
    return columns


def _is_end(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


@final
class WarmStrategy(Strategy):
    """A prior at work on one study. Seed and number decide which trials are of the floor."""

    def __init__(self, space: Space, outcomes: Sequence[Outcome], settings: Warm) -> None:
        self._space = space
        self._candidates = _candidates(space, settings)
        self._box = Box(space, settings.ranges())
        self._floor = settings.floor if self._box.narrows else 1.0
        started = {outcome.number for outcome in outcomes}
        open_ones = [Outcome.of_open(candidate) for candidate in self._candidates if candidate.number not in started]
        # Both must agree on what a group shares. Points are a function of the number, so they do; a
        # sampler that learns would draw it twice, so for it whole groups are of the floor.
        learns = bool(space.group_draws) and settings.sampler.learns
        self._unit = space.search.group if learns else 1
        self._first = -(-len(self._candidates) // self._unit)
        known = [*outcomes, *open_ones]
        self._whole = settings.sampler.begin(space, self._but_open(known, "box"))
        warped = warp(space, self._box.to_space, self._box.narrowed)
        self._narrow = settings.sampler.begin(warped, self._box.to_box(self._but_open(known, UNRESTRICTED)))
        self.look_ahead = self._whole.look_ahead

    def _but_open(self, outcomes: Sequence[Outcome], origin: str) -> list[Outcome]:
        """Leave out open trials of this origin, of which a sampler knows nothing while both go on."""
        return [outcome for outcome in outcomes if outcome.state in TERMINAL or self.origin(outcome.number) != origin]

    def ask(self, numbers: range) -> list[Trial]:
        trials: list[Trial] = []
        for number in numbers:
            origin = self.origin(number)
            if origin == "candidates":
                trials.append(self._candidates[number])
            elif origin == UNRESTRICTED:
                trials += self._whole.ask(range(number, number + 1))
            else:
                narrow = self._narrow.ask(range(number, number + 1))
                trials += unwarp(self._space, narrow, self._box.to_space)
        return trials

    def origin(self, number: int) -> str:
        """Return the origin of a trial: `candidates`, `box`, or `unrestricted` (of the floor)."""
        if number < len(self._candidates):
            return "candidates"
        unit = number // self._unit
        word = stream_word(self._space.search.seed ^ _STREAM, unit)
        return UNRESTRICTED if unit < self._first or word < self._floor * 2.0**64 else "box"

    def tell(self, outcomes: Sequence[Outcome]) -> None:
        self._whole.tell(outcomes)
        self._narrow.tell(self._box.to_box(outcomes))


def _candidates(space: Space, settings: Warm) -> list[Trial]:
    points = settings.points()[: space.search.trials]
    if not points:  # some samplers resolve the first trial as they begin
        return []
    free = {draw.name for draw in space.own_draws}

    def coordinate(number: int, name: str, u: float) -> float:
        return points[number].get(name, u) if name in free else u

    asked = settings.sampler.begin(warp(space, coordinate), []).ask(range(len(points)))
    return unwarp(space, asked, coordinate)


Warping = Callable[[int, str, float], float]
"""(number of the trial, name of the draw, a sampler's coordinate) -> the trial's coordinate."""


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class WarpedSpace(Space):
    """A space with coordinates of its own for a sampler, other than those of the trials."""

    original: Space
    warping: Warping
    narrowed: Mapping[Draw, Draw]
    """A choice -> the same of fewer options, which the sampler sees instead of it."""

    def sample(self, number: int, coordinate_of: CoordinateOf) -> Trial:
        """Return the trial at the warped coordinates, which carries the sampler's own."""
        draws: dict[str, float] = {}

        def coordinate(draw: Draw) -> float:
            draws[draw.name] = coordinate_of(self.narrowed.get(draw, draw))
            return self.warping(number, draw.name, draws[draw.name])

        return replace(self.original.sample(number, coordinate), draws=draws)


def warp(space: Space, warping: Warping, narrowed: Mapping[Draw, Draw] | None = None) -> WarpedSpace:
    """Return the same space behind `warping`, with `narrowed` choices in place of its own."""
    shown = narrowed or {}
    same = {field.name: getattr(space, field.name) for field in fields(Space)}
    for block in ("group_draws", "trial_draws"):
        same[block] = tuple(shown.get(draw, draw) for draw in same[block])
    return WarpedSpace(**same, original=space, warping=warping, narrowed=shown)


def unwarp(space: Space, trials: Sequence[Trial], warping: Warping) -> list[Trial]:
    """Return the trials that a sampler asked of a warped space, with their real coordinates."""
    resolved: list[Trial] = []
    for trial in trials:
        draws = {name: warping(trial.number, name, u) for name, u in trial.draws.items()}
        resolved.append(space.resolve(trial.number, draws))
    return resolved


@final
class Box:
    """The part of a space that is searched more often, and the cube that a sampler sees of it."""

    def __init__(self, space: Space, ranges: Mapping[str, tuple[float, float]]) -> None:
        self._ranges: dict[str, tuple[float, float]] = {}
        self.narrowed: dict[Draw, Draw] = {}
        """A narrowed choice -> the same with the options that the box keeps alone."""
        for draw in space.own_draws:
            if draw.name not in ranges:
                continue
            low, high = ranges[draw.name]
            if count := draw.choices:
                # Whole ones, so that a sampler that draws one of them gets each in a part of its own.
                first, end = round(low * count), round(high * count)
                if first >= end:
                    first = min(int((low + high) / 2 * count), count - 1)
                    end = first + 1
                low, high = first / count, end / count
                self.narrowed[draw] = replace(draw, choices=end - first)
            self._ranges[draw.name] = low, high
        self.narrows = bool(self._ranges)

    def to_space(self, number: int, name: str, u: float) -> float:
        """Return the trial's coordinate for the sampler's."""
        low, high = self._ranges.get(name, (0.0, 1.0))
        return min(low + u * (high - low), math.nextafter(high, 0.0))

    def to_box(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return the outcomes that lie in the box, with coordinates as the sampler sees them."""
        inside: list[Outcome] = []
        for outcome in outcomes:
            draws = dict(outcome.draws)
            ranges = [(name, *ends) for name, ends in self._ranges.items() if name in draws]
            if all(low <= draws[name] < high for name, low, high in ranges):
                for name, low, high in ranges:
                    draws[name] = min((draws[name] - low) / (high - low), _BELOW_ONE)
                inside.append(replace(outcome, draws=draws))
        return inside
