"""The live display of a running study: a progress bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spaces.records import TERMINAL
from spaces.records import Progress as StudyProgress

LINE_SECONDS = 15.0
"""Without a terminal: a line this often."""
WINDOW_SECONDS = 30.0
"""The rate shown is that of the last half minute; the expected end is that of the whole run."""
REFRESH_SECONDS = 0.2


class Live:
    """Shows the progress of a study. A context manager; `show` is cheap and may be called often."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(name, total=None, text="starting")
        self._rates: deque[tuple[float, int]] = deque()
        self._first: tuple[float, int] | None = None
        self._shown = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def show(self, study: StudyProgress) -> None:
        """Note the progress, and show it if it is time."""
        now = time.monotonic()
        if now < self._shown + (REFRESH_SECONDS if self._console.is_terminal else LINE_SECONDS):
            return
        self._shown = now
        done = study.ended
        text = self._text(study, done, now)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=done, total=study.planned, text=text)
        else:
            print(f"{self._name}: {done}/{study.planned} trials, {text}", file=sys.stderr, flush=True)

    def _text(self, study: StudyProgress, done: int, now: float) -> str:
        self._rates.append((now, study.model_steps))
        while self._rates[0][0] < now - WINDOW_SECONDS and len(self._rates) > 2:
            self._rates.popleft()
        then, steps = self._rates[0]
        parts = [f"{study.counts.get('running', 0)} lanes"]
        if study.model_steps > steps:
            parts.append(f"{(study.model_steps - steps) / (now - then):,.0f} model-steps/s")
        if study.best is not None:
            parts.append(f"best {study.objective} {study.best:.4g} (trial {study.best_number})")
        start, before = self._first = self._first or (now, done)
        if done > before:
            parts.append(f"ETA {duration((study.planned - done) * (now - start) / (done - before))}")
        return ", ".join(["stopping", *parts] if study.stopping else parts)


def closing_line(name: str, study: StudyProgress, seconds: float) -> str:
    """What a run ends with: counts by state, the best trial, the time and the lane utilisation."""
    counts = ", ".join(f"{study.counts[state]} {state}" for state in sorted(TERMINAL) if study.counts.get(state))
    parts = [f"{name}: {counts or 'no trial ended'} of {study.planned}"]
    if study.best is not None:
        parts.append(f"best {study.objective} {study.best:.6g} (trial {study.best_number})")
    rate = f"{study.model_steps:,} model-steps in {duration(seconds)}"
    if study.utilisation is not None:
        rate += f", {study.utilisation:.0%} of lane-steps used"
    return "; ".join([*parts, rate])


def duration(seconds: float) -> str:
    """`1:02:03`, or days and years where hours mislead."""
    if seconds >= 2 * 365.25 * 86400:
        return f"{seconds / (365.25 * 86400):,.0f} years"
    if seconds >= 3 * 86400:
        return f"{seconds / 86400:,.0f} days"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
