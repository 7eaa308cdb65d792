"""The progress of a running study in words: what fits into a line, and what a run ends with."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from spaces.messages import shorten_name
from spaces.progress import Progress, TimeLeft
from spaces.records import TERMINAL

WINDOW_SECONDS = 30.0
"""The rate shown is that of the last half minute."""
_ALIKE = 1.1
"""Where the most is less than so many times the least, the time left is one number."""


@final
class ProgressText:
    """Makes the line of a running study: its rate needs what was seen before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: deque[tuple[float, int]] = deque()

    def describe(self, study: Progress, room: int | None = None) -> str:
        """Trials, busy lanes, rate, the best trial and the expected end, in at most `room`
        characters.

        Where there is no room for all, the objective's name goes first, then the lanes, the rate
        and the best trial: the count and the time left stay longest. A study of which no trial has
        ended shows the steps made so far.
        """
        now = self._clock()
        # Model-steps per second of the last half minute; 0 where none is known.
        self._rates.append((now, study.model_steps))
        while self._rates[0][0] < now - WINDOW_SECONDS and len(self._rates) > 2:
            self._rates.popleft()
        then, steps = self._rates[0]
        rate = (study.model_steps - steps) / (now - then) if now > then else 0.0
        left = f"ETA {describe_time_left(study.time_left)}" if study.time_left else None
        count = f"{study.ended:,}/{study.planned:,}"
        best = f"{study.best:.4g}" if study.best is not None else None
        in_full = best and f"best {study.objective} {best} (trial {study.best_number})"
        variants = [
            [f"{count} trials", _lanes(study), _steps(study), _rate(rate, "model-steps/s"), in_full, left],
            [count, _lanes(study), _steps(study), _rate(rate, "steps/s"), best and f"best {best}", left],
            [count, _steps(study), _rate(rate, "steps/s"), best and f"best {best}", left],
            [count, _rate(rate, "steps/s"), best and f"best {best}", left],
            [count, best and f"best {best}", left],
            [count, left],
        ]
        texts = [", ".join(filter(None, ["stopping" if study.stopping else None, *parts])) for parts in variants]
        return next((text for text in texts if room is None or len(text) <= room), texts[-1])


def _lanes(study: Progress) -> str:
    return f"{study.counts.get('running', 0):,} lanes"


def _steps(study: Progress) -> str | None:
    return f"{study.model_steps:,} steps" if study.model_steps and not study.ended else None


def _rate(rate: float, unit: str) -> str | None:
    return f"{rate:,.0f} {unit}" if rate > 0 else None


def closing_line(name: str, study: Progress, seconds: float) -> str:
    """Return the last line of a run: counts by state, the best trial, the time and the lane utilisation."""
    counts = ", ".join(f"{study.counts[state]} {state}" for state in sorted(TERMINAL) if study.counts.get(state))
    parts = [f"{name}: {counts or 'no trial ended'} of {study.planned}"]
    if study.best is not None:
        parts.append(f"best {study.objective} {study.best:.6g} (trial {study.best_number})")
    rate = f"{study.model_steps:,} model-steps in {duration(seconds)}"
    if study.utilisation is not None:
        rate += f", {study.utilisation:.0%} of lane-steps used"
    return "; ".join([*parts, rate])


def bar(done: int, planned: int, width: int) -> str:
    """Return a bar of `width` characters, the part of it that is done in thick ones."""
    filled = min(width, width * done // planned) if planned else 0
    return "━" * filled + "─" * (width - filled)


def fit_line(name: str, text: str, study: Progress, width: int) -> str:
    """Name, bar and text in `width` characters; the bar takes what is left, and the name is cut before the text is."""
    name = shorten_name(name, max(8, width - len(text) - 1))
    room = min(40, width - len(name) - len(text) - 2)
    parts: Sequence[str] = (name, bar(study.ended, study.planned, room), text) if room >= 4 else (name, text)
    return " ".join(parts)[:width]


def describe_time_left(left: TimeLeft) -> str:
    """Return `4:10 to 6:30`, or one time where both are nearly the same."""
    least, most = duration(left.least), duration(left.most)
    return most if left.most <= _ALIKE * left.least or least == most else f"{least} to {most}"


def duration(seconds: float) -> str:
    """`1:02:03`, or days and years where hours mislead."""
    if seconds >= 2 * 365.25 * 86400:
        return f"{seconds / (365.25 * 86400):,.0f} years"
    if seconds >= 3 * 86400:
        return f"{seconds / 86400:,.0f} days"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
