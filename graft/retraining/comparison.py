"""A stored trial against its replay: the numbers that are equal, and the verdict in one line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import polars as pl

from graft.stored.fingerprints import Changes, StoredFingerprint, compare_fingerprints
from spaces.records import Report

TOLERANCE = 1e-3
"""Relative difference that is allowed if bits are not promised."""

Key = tuple[int, str, str, str]
"""step, name, variant, condition"""


class MetricPair(NamedTuple):
    """A stored and a replayed metric; None for a number that is not finite or is missing."""

    step: int
    name: str
    variant: str
    condition: str
    stored: float | None
    replayed: float | None
    difference: float
    """Relative to the larger number; infinite if only one is finite or the replay has none."""

    def __str__(self) -> str:
        """Name the value that is compared, such as `tvd/bema at step 500`."""
        name = "/".join(part for part in (self.name, self.variant, self.condition) if part)
        return f"{name} at step {self.step:,}"


@dataclass(frozen=True, kw_only=True)
class ReplayComparison:
    """A trial's stored metrics next to those of its replay."""

    number: int
    pairs: Sequence[MetricPair]
    objective: MetricPair | None
    """The objective by the replay's reports; None without one, or if the replay stopped early."""
    divergence: str | None
    """The error of the stored trial's divergence; None if it had none in the replayed steps."""
    replayed_divergence: str | None
    trained_step_kind: str
    """The `step_kind` of the trial's reports, or the kind of device if that is unknown (`cpu`)."""
    replayed_step_kind: str
    fingerprints: Sequence[StoredFingerprint]
    """The fingerprints of the trial's training, the last ones first."""
    replayed_under: StoredFingerprint

    @property
    def reproduced(self) -> bool:
        """True if the numbers agree, to the bit if promised, else within TOLERANCE."""
        return self.divergence == self.replayed_divergence and not self._different and not self._objective_differs

    @property
    def verdict(self) -> str:
        """A line: `reproduced: 36 of 36 metrics equal to the bit`, or the first difference."""
        good = f"{len(self.pairs) - len(self._different):,} of {len(self.pairs):,}"
        equal = "equal to the bit" if self._bits_promised else f"within {TOLERANCE:g}"
        if self.reproduced:
            statements = [f"reproduced: {good} metrics {equal}"]
            if self.divergence:
                statements.append(f"{self.divergence}, as stored")
        else:
            pair = self._different[0] if self._different else self.objective if self._objective_differs else None
            stored, replayed = self.divergence, self.replayed_divergence
            first = f"stored: {stored or 'no divergence'}, replayed: {replayed or 'no divergence'}"
            if pair:
                values = f"stored {_exact(pair.stored)}, replayed {_exact(pair.replayed)}"
                first = f"{pair}: {values} (relative {pair.difference:.0e})"
            count = f"{good} {'equal' if self._bits_promised else equal}"
            statements = [f"differs: {first}", count, self._describe_changes()]
        if not self._bits_promised:
            statements += self._explain_tolerance()
        return "; ".join(statements)

    @cached_property
    def _different(self) -> Sequence[MetricPair]:
        most = 0.0 if self._bits_promised else TOLERANCE
        return [pair for pair in self.pairs if pair.difference > most]

    @property
    def _objective_differs(self) -> bool:
        return self.objective is not None and self.objective.difference > (0.0 if self._bits_promised else TOLERANCE)

    @property
    def _bits_promised(self) -> bool:
        if self._on_gpu:
            return False
        is_same_step = self.trained_step_kind == self.replayed_step_kind
        return is_same_step and not any(change.voids_promise for change in self._changes)

    @property
    def _on_gpu(self) -> bool:
        """True on a GPU, whose kernels depend on the pack's width, and so do the bits."""
        return "cuda" in self.replayed_step_kind

    @cached_property
    def _changes(self) -> Sequence[Changes]:
        """The differences of the present conditions from each of the stored ones."""
        return [compare_fingerprints([fingerprint], self.replayed_under) for fingerprint in self.fingerprints]

    def _explain_tolerance(self) -> Iterable[str]:
        if self.pairs:
            pair = max(self.pairs, key=lambda pair: pair.difference)
            yield f"largest relative difference {pair.difference:.1e} ({pair})"
        if self.trained_step_kind != self.replayed_step_kind:
            kinds = f"trained by {self.trained_step_kind} steps, replayed by {self.replayed_step_kind} ones"
            yield f"{kinds}, so bits are not promised"
        elif self._on_gpu:
            yield "a GPU's sums depend on how wide the pack is, so bits are not promised"
        now = self.replayed_under
        for fingerprint in self.fingerprints:
            if fingerprint.numerics != now.numerics:
                yield f"made by Graft {fingerprint.version}, whose steps rounded differently, so bits are not promised"
                break
            if fingerprint.torch and fingerprint.torch != now.torch:
                yield f"trained with torch {fingerprint.torch}, replayed with {now.torch}, so bits are not promised"
                break

    def _describe_changes(self) -> str:
        """Describe the possible reasons for different numbers."""
        words = list(dict.fromkeys(words for changes in self._changes for words in changes.all))
        if len(self.fingerprints) > 1 and words:
            return f"it was trained under {len(self.fingerprints)} fingerprints; changed since: {'; '.join(words)}"
        if words:
            return f"changed since it was trained: {'; '.join(words)}"
        if any(fingerprint.is_known for fingerprint in self.fingerprints):
            return "nothing that determines its numbers has changed (code, plug-ins, torch, steps, processor)"
        return "what determined its numbers was not stored with it"


def compare(stored: Mapping[Key, float | None], replayed: Iterable[Report]) -> list[MetricPair]:
    """Return a pair for each stored metric, in the order of steps.

    What is not finite is stored as null, so that all such values are alike.
    """
    values = {
        (report.step, *metric[:3]): metric.value if math.isfinite(metric.value) else None
        for report in replayed
        for metric in report.metrics
    }
    return [
        MetricPair(*key, value, values.get(key), relative_difference(value, values[key]) if key in values else math.inf)
        for key, value in sorted(stored.items())
    ]


def relative_difference(value: float | None, other: float | None) -> float:
    """Return |value - other| relative to the larger; None stands for a number that is not finite."""
    if value == other:
        return 0.0
    if value is None or other is None:
        return math.inf
    return abs(value - other) / max(abs(value), abs(other))


def to_frame(comparisons: Iterable[ReplayComparison]) -> pl.DataFrame:
    """Return a row per stored metric of each trial."""
    rows = [(comparison.number, *pair) for comparison in comparisons for pair in comparison.pairs]
    return pl.DataFrame(rows, schema=_COLUMNS, orient="row")


_COLUMNS = {
    "number": pl.Int64(),
    "step": pl.Int64(),
    "name": pl.String(),
    "variant": pl.String(),
    "condition": pl.String(),
    "stored": pl.Float64(),
    "replayed": pl.Float64(),
    "difference": pl.Float64(),
}


def _exact(value: float | None) -> str:
    return "nothing finite" if value is None else repr(value)
