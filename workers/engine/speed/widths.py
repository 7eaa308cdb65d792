"""Widths of packs: measured on the device, and kept for structures of the same size.

Widths 2, 4, 8, ... are tried with copies of a trial, until doubling twice has gained less than 5 %
or memory ends. A fused step trains a lane in each block of a GPU, which has room for hundreds, the
first width there. The result is the narrowest width within 5 % of the fastest: fewer lanes need
less memory, and let a search decide sooner. Structures are of the same size if their lanes need as
many bytes, to the next power of two, and have the same kind of step and device: a few entries serve
a search of hundreds of shapes.

The search is paid for: a worker tries one width at a time, and only when 2 % of its training time
so far covers twice the cost of the last width (at first a second). Until it ends packs have the
device's default width; a width that costs more delays the next. A rate is measured by three
processes, at their own times, and the best one counts: a busy machine keeps no width low for ever.

A worker widens its packs by portions of that default, and only while the queue is long
(`workers.pool.worker`): in small studies, and near the end of large ones, workers share what is
left.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from typing import final

import torch

from spaces.records import Trial
from workers.engine.fused.step import FusedStep
from workers.engine.machine.devices import default_workers, device_name
from workers.engine.machine.memory import Shortage, attempt, free_bytes, lane_bytes
from workers.engine.machine.side_by_side import alone
from workers.engine.pack.lanes import NARROWEST
from workers.engine.speed.rate_file import RateFile, Rates
from workers.engine.speed.timing import best_rate
from workers.engine.step import step_of
from workers.numerics.native import cache_folder
from workers.training.recipe import Recipe

TOLERANCE = 0.05
WIDEST = 4096
PAID = 0.02
FIRST_SECONDS = 1.0
FREE_SHARE = 0.8
"""Share of free memory that a pack's lanes may be predicted to need."""
KINDS_KEPT = 1024
TIMES = 3
"""Measurements of a rate, each by another process."""

_ONE_AT_A_TIME = threading.Lock()
"""Without it, workers of one process that try widths together would measure one another."""


def knee(rates: Rates) -> int:
    """Return the narrowest width whose rate is within 5 % of the best; without rates, NARROWEST."""
    best = max(rates.values(), default=0.0)
    return min((width for width, rate in rates.items() if rate >= (1 - TOLERANCE) * best), default=NARROWEST)


def next_width(rates: Rates, most: int, first: int = NARROWEST) -> int | None:
    """Return the width to try next, at most `most`; None if further doubling would not pay."""
    if not rates:
        return min(first, most) if most >= NARROWEST else None
    widest = max(rates)
    # Two doublings without a gain, not one: a single measurement may be low on a busy machine.
    before = [rate for width, rate in rates.items() if 4 * width <= widest]
    flat = bool(before) and max(rates.values()) < (1 + TOLERANCE) * max(before)
    return None if flat or 2 * widest > most else 2 * widest


@final
@dataclass(kw_only=True)
class FoundWidths:
    """The search for a structure's width, and the time that one worker may still spend on it."""

    device: str
    rate_file: RateFile = field(default_factory=lambda: RateFile(cache_folder() / "widths.json"))
    rate_of: Callable[[Trial, int, str], float] = best_rate
    """Returns model-steps per second of so many copies of a trial on a device."""
    clock: Callable[[], float] = time.perf_counter
    sharing: int | None = None
    """Workers that share the device's memory; None: as many as suit it."""
    _purse: float = 0.0
    _kinds: dict[str, str] = field(default_factory=dict[str, str])
    """Structure -> the key of its kind."""
    _most: dict[str, int] = field(default_factory=dict[str, int])
    """Key -> the widest pack that memory has room for."""
    _first: dict[str, int] = field(default_factory=dict[str, int])
    """Key -> the first width to try."""
    _known: dict[str, int] = field(default_factory=dict[str, int])
    """Key -> the width, once all are tried."""
    _settled: set[str] = field(default_factory=set[str])
    """Keys whose widths this process tries no more."""
    _tried: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Keys and widths that were tried."""
    _cost: dict[str, float] = field(default_factory=dict[str, float])
    """Key -> seconds of the last try."""

    def add_training_time(self, seconds: float) -> None:
        """Add seconds of training, a fiftieth of which may be spent on trying widths."""
        self._purse += PAID * seconds

    def find(self, trial: Trial) -> int | None:
        """Return the width for trials of this structure, if known; may measure one first."""
        key = self._key(trial)
        if key not in self._settled:
            width = self._next_to_try(trial, key)
            # Twice as wide may take twice as long as the last try did.
            affords = self._purse >= 2 * self._cost.get(key, FIRST_SECONDS / 2)
            # While another worker measures, this one trains on, and asks again at its next offer.
            if width and affords and _ONE_AT_A_TIME.acquire(blocking=False):
                try:
                    self._try(trial, key, width)
                finally:
                    _ONE_AT_A_TIME.release()
            rates = self.rates(trial)
            if next_width(rates, self._most[key], self._first[key]) is None:
                self._known[key] = knee(rates)
            if self._next_to_try(trial, key) is None:
                self._settled.add(key)
        return self._known.get(key)

    def explore(self, trial: Trial) -> None:
        """Try widths for this structure until its own is found, or no more can be paid."""
        before = -1
        while self.find(trial) is None and len(self.rates(trial)) > before:
            before = len(self.rates(trial))

    def rates(self, trial: Trial) -> Rates:
        """Return the known rates of structures of this size, for widths that fit in memory."""
        key = self._key(trial)
        return {w: rate for w, rate in self.rate_file.rates(key).items() if w <= self._most[key]}

    def _next_to_try(self, trial: Trial, key: str) -> int | None:
        """Return the width to try next: a new one, else one that was tried too rarely."""
        rates = self.rates(trial)
        rare = (w for w in rates if (key, w) not in self._tried and self.rate_file.times(key, w) < TIMES)
        return next_width(rates, self._most[key], self._first[key]) or next(rare, None)

    def _try(self, trial: Trial, key: str, width: int) -> None:
        with alone(torch.device(self.device)):
            start = self.clock()
            rate = attempt(lambda: self.rate_of(trial, width, self.device), self.device)
        self._cost[key] = self.clock() - start
        self._purse -= self._cost[key]
        self._tried.add((key, width))
        if isinstance(rate, Shortage):
            # Kept in this process alone: the next launch may have more free memory.
            self._most[key] = width // 2
        else:
            self.rate_file.add(key, width, rate)

    def _key(self, trial: Trial) -> str:
        key = self._kinds.get(trial.structure)
        if key is None:
            recipe = Recipe.of(trial.config)
            needed = lane_bytes(recipe)
            step = step_of(recipe.pad(), trial.structure, torch.device(self.device))
            kind = f"{type(step).__name__}, 2^{(needed - 1).bit_length()} bytes a lane"
            key = f"{_versions()}; {device_name(self.device)}; {kind}"
            if len(self._kinds) >= KINDS_KEPT:
                self._kinds.clear()
            self._kinds[trial.structure] = key
            room = FREE_SHARE * free_bytes(self.device) / (self.sharing or default_workers(self.device))
            self._most.setdefault(key, min(WIDEST, int(room // needed)))
            self._first.setdefault(key, step.most_blocks if isinstance(step, FusedStep) else NARROWEST)
        return key


def _versions() -> str:
    try:
        graft = metadata.version("graft-search")
    except metadata.PackageNotFoundError:
        graft = "of no version"
    return f"graft {graft}, torch {torch.__version__}"
