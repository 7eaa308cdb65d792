"""The reports of a trial that stay in the database, and the bytes that they take.

full   every report
thin   the first 16, then 4 per octave of the report's index (16, 20, 24, 28, 32, 40, ...), the best
       and the last
last   the last report only

A report's index counts the trial's reports from 1. A report that a new one supersedes is deleted in
the transaction that writes that, so a trial's rows grow with the logarithm of its length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from spaces.plugins import canonical_json
from spaces.records import Trial
from spaces.settings import History

_ALL = 16
_PER_OCTAVE = 4

# Measured on SQLite 3.40 (4096-byte pages, filled as during a study); a test keeps them honest.
_METRIC_BYTES = 42
_TRIAL_BYTES = 260
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Past:
    """The state of a trial's reports, from which follows what the next one replaces."""

    count: int = 0
    last: int = -1
    """Step of the latest report."""
    last_is_landmark: bool = False
    best: int = -1
    """Step of the best report; -1 if none had a finite objective."""
    best_is_landmark: bool = False
    best_score: float = math.inf

    def to_json(self) -> list[Any]:
        """Return the values as JSON values."""
        *rest, score = astuple(self)
        return [*rest, score if math.isfinite(score) else None]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Past:
        """Rebuild the values that `to_json` returned."""
        count, last, last_is_landmark, best, best_is_landmark, score = values
        best_score = math.inf if score is None else score
        return cls(count, last, last_is_landmark, best, best_is_landmark, best_score)


def is_landmark(policy: History, index: int) -> bool:
    """Return True if the report number `index` (from 1) stays whatever comes after it."""
    if policy == "full":
        return True
    if policy == "last":
        return False
    octave = 1 << (index.bit_length() - 1)
    return index <= _ALL or index % (octave // _PER_OCTAVE) == 0


def follow(policy: History, past: Past, step: int, score: float) -> tuple[Past, tuple[int, ...]]:
    """Return the past after a later report (low scores are good), and the steps it supersedes."""
    landmark = is_landmark(policy, past.count + 1)
    now = replace(past, count=past.count + 1, last=step, last_is_landmark=landmark)
    if policy == "thin" and math.isfinite(score) and score < past.best_score:
        now = replace(now, best=step, best_is_landmark=landmark, best_score=score)
    before = {past.last: past.last_is_landmark, past.best: past.best_is_landmark}
    gone = (old for old, kept in before.items() if old >= 0 and not kept and old != now.best)
    return now, tuple(sorted(gone))


def predict_rows(policy: History, validations: int, metrics_per_validation: int) -> int:
    """Return the metric rows that `validations` reports leave, or up to two reports more."""
    if policy == "last":
        return min(validations, 1) * metrics_per_validation
    if policy == "full" or validations <= _ALL:
        return validations * metrics_per_validation
    octave = 1 << (validations.bit_length() - 1)
    whole = _PER_OCTAVE * (octave.bit_length() - _ALL.bit_length())
    landmarks = _ALL - 1 + whole + (validations - octave) // (octave // _PER_OCTAVE) + 1
    best_and_last = 2
    return min(validations, landmarks + best_and_last) * metrics_per_validation


def predict_bytes(trial: Trial, trials: int, rows: int) -> int:
    """Return the bytes of a SQLite file of `trials` with `rows` metrics each, to some 30 %."""
    texts = map(canonical_json, (trial.params, trial.draws, trial.config))
    row = _TRIAL_BYTES + sum(map(len, texts))
    if row < _PAGE:  # a page holds whole rows; a longer one has pages of its own
        row = _PAGE // (_PAGE // row)
    return trials * (row + rows * _METRIC_BYTES)
