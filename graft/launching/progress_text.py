"""The progress of a running study in words: a line of a given width, and the last line of a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from spaces.messages import shorten_name
from spaces.progress import Progress, TimeLeft
from spaces.records import TERMINAL

WINDOW_SECONDS = 30.0
"""Seconds over which the rate is averaged."""
_ALIKE = 1.1
"""The ratio of most to least up to which the time left is shown as one number."""


@final
class ProgressText:
    """Makes the line of a running study, and keeps earlier progress for its rate."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rates: deque[tuple[float, int]] = deque()

    def describe(self, study: Progress, room: int | None = None) -> str:
        """Return trials, busy lanes, rate, best trial and time left in at most `room` characters.

        If needed, the objective's name goes first, then the lanes, the rate and the best trial.
        Until a trial has ended, the steps made so far are shown.
        """
        now = self._clock()
        self._rates.append((now, study.model_steps))
        while self._rates[0][0] < now - WINDOW_SECONDS and len(self._rates) > 2:
            self._rates.popleft()
        then, before = self._rates[0]
        rate = (study.model_steps - before) / (now - then) if now > then else 0.0
        lanes = f"{study.counts.get('running', 0):,} lanes"
        steps = f"{study.model_steps:,} steps" if study.model_steps and not study.ended else None
        left = f"ETA {describe_time_left(study.time_left)}" if study.time_left else None
        count = f"{study.ended:,}/{study.planned:,}"
        best = f"{study.best:.4g}" if study.best is not None else None
        in_full = best and f"best {study.objective} {best} (trial {study.best_number})"
        speed = f"{rate:,.0f}" if rate > 0 else None
        short_rate, short_best = speed and f"{speed} steps/s", best and f"best {best}"
        variants = [
            [f"{count} trials", lanes, steps, speed and f"{speed} model-steps/s", in_full, left],
            [count, lanes, steps, short_rate, short_best, left],
            [count, steps, short_rate, short_best, left],
            [count, short_rate, short_best, left],
            [count, short_best, left],
            [count, left],
        ]
        state = "stopping" if study.stopping else None
        texts = [", ".join(filter(None, [state, *parts])) for parts in variants]
        return next((text for text in texts if room is None or len(text) <= room), texts[-1])


def closing_line(name: str, study: Progress, seconds: float) -> str:
    """Return the last line of a run: counts by state, best trial, time and lane utilisation."""
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
    """Return name, bar and text in `width` characters; the bar shrinks first, then the name."""
    name = shorten_name(name, max(8, width - len(text) - 1))
    room = min(40, width - len(name) - len(text) - 2)
    parts: Sequence[str] = (name, bar(study.ended, study.planned, room), text) if room >= 4 else (name, text)
    return " ".join(parts)[:width]


def describe_time_left(left: TimeLeft) -> str:
    """Return `4:10 to 6:30`, or one time if both are nearly the same."""
    least, most = duration(left.least), duration(left.most)
    return most if left.most <= _ALIKE * left.least or least == most else f"{least} to {most}"


def duration(seconds: float) -> str:
    """Return `1:02:03`, or days or years for a long time."""
    if seconds >= 2 * 365.25 * 86400:
        return f"{seconds / (365.25 * 86400):,.0f} years"
    if seconds >= 3 * 86400:
        return f"{seconds / 86400:,.0f} days"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
