"""The report on a study's claims: their verdicts, the evidence, and their history since launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from graft.stored.claims import (
    claims_in,
    describe_history,
    put_side_by_side,
    read_history,
    read_scores,
    read_test_scores,
)
from graft.stored.fingerprints import StoredFingerprint, read_fingerprints
from search.analysis.arms.claims import ClaimResult, decide_claims
from search.analysis.statistics.verdicts import SURE
from spaces.errors import StudyError
from spaces.experiment import Claim
from storage.frames import Reader


@dataclass(frozen=True, kw_only=True, eq=False)
class ClaimReport:
    """The claims of one study, decided."""

    study: Mapping[str, Any]
    """Row of the table `studies`."""
    results: Sequence[ClaimResult]
    history: Sequence[dict[str, Any]]
    fingerprints: Sequence[StoredFingerprint]
    reveals: Sequence[dict[str, Any]] = ()
    """Rows of the table `reveals`: when the test sets were opened, and by whom."""
    sides: Sequence[pl.DataFrame | None] = ()
    """A claim's scores on opened test sets: validation, test and fresh seeds side by side."""

    @property
    def was_first(self) -> bool:
        """True if the claims were locked before any trial had ended, and not edited after."""
        return not any(row["results"] for row in self.history if row["event"] in ("locked", "edited"))

    def sentences(self) -> list[str]:
        """Return the verdicts, a line each, and then the history of the claims."""
        lines = [describe_result(result) for result in self.results]
        if not self.was_first:
            lines.append("the claims were written or edited after trials had ended: they were not made in advance")
        lines += [line for side in self.sides if side is not None for line in describe_sides(side)]
        for row in self.reveals:
            lines.append(f"revealed {row['created_at']:%Y-%m-%d %H:%M} UTC by {row['person']}")
        return lines + describe_history(self.history)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values (docs/schemas/report-claim.json)."""
        name = self.study["name"]
        claims: list[dict[str, Any]] = []
        for result in self.results:
            # What cannot be computed is NaN, of which JSON knows nothing.
            values = {key: None if value != value else value for key, value in asdict(result).items()}
            other = {"claim": result.claim.to_json(), "diverged": [*result.diverged], "text": str(result.claim)}
            claims.append(values | other)
        return {
            "format": 1,
            "study": name,
            "state": self.study["state"],
            "objective": self.study["objective"],
            "level": SURE,
            "made_in_advance": self.was_first,
            "claims": claims,
            "reveals": [{"created_at": row["created_at"].isoformat(), "person": row["person"]} for row in self.reveals],
            "side_by_side": [side.to_dicts() if side is not None else None for side in self.sides],
            "history": [{**row, "created_at": row["created_at"].isoformat()} for row in self.history],
            "fingerprints": [fingerprint.describe() for fingerprint in self.fingerprints],
            "version": self.study["version"],
            "space": self.study["space"],
            "space_sha256": self.study["space_hash"],
            "commands": [
                f"search launch space.yaml --study {name}  # space.yaml: the text under `space`",
                f"search report claim {name} --format json",
            ],
        }


def read_claim_report(reader: Reader, study: str) -> ClaimReport:
    """Decide the claims of a study by its trials so far; raises StudyError if it has no claim."""
    stored = reader.study(study)
    history = read_history(stored)
    claims = claims_in(history)
    if not claims:
        raise StudyError(f"study {study!r} has no claim; write claim: {{arm, difference}} into its space")
    sealed = [claim.on == "test" and stored.reveals().is_empty() for claim in claims]
    results: list[pl.DataFrame] = []
    for claim in claims:
        scores = read_test_scores(stored, claim) if claim.on == "test" else read_scores(stored, claim)
        # Nothing is known of sets that are sealed.
        results.append(read_scores(stored, claim).clear() if scores is None else scores)
    reason = f"its test sets are sealed; when all seeds have ended, `search reveal {study}` opens them"
    return ClaimReport(
        study=stored.row,
        results=[
            replace(result, reason=reason) if is_sealed else result
            for result, is_sealed in zip(decide_claims(claims, results), sealed, strict=True)
        ],
        history=history,
        fingerprints=read_fingerprints(reader, study),
        reveals=stored.reveals().to_dicts(),
        sides=[put_side_by_side(stored, claim) if claim.on == "test" else None for claim in claims],
    )


def describe_sides(sides: pl.DataFrame) -> list[str]:
    """Return a line for each arm: its best by validation, on test sets, and from fresh seeds."""
    lines: list[str] = []
    for row in sides.iter_rows(named=True):
        line = f"{row['arm']}: the best of {row['configurations']:,} by validation has "
        line += f"{_show(row['validation'])} there, and {_show(row['test'])} on test sets"
        if row["fresh_seeds"]:
            line += f"; from {row['fresh_seeds']:,} fresh seeds {_show(row['fresh_validation'])}"
            line += f" and {_show(row['fresh_test'])}"
        lines.append(line)
    return lines


def _show(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}"


def describe_result(result: ClaimResult) -> str:
    """Return a claim, its verdict and what it rests on, in a line."""
    claim: Claim = result.claim
    line = f"{result.verdict}: {claim}: {result.reason}"
    if result.gain == result.gain:
        line += f"; gain {result.gain:.4g} over {result.pairs:,} seeds"
    if result.low == result.low:
        line += f", 95 % interval {result.low:.4g} to {result.high:.4g}"
    if result.q == result.q:
        line += f", q = {result.q:.2g}"
    if result.seeds_needed is not None:
        line += f"; {result.pairs:,} seeds find {claim.difference:g} with a probability of {100 * result.power:.0f} %"
        more = result.seeds_needed - result.pairs
        line += f"; 80 % takes {more:,} more" if more > 0 else ""
    return line
