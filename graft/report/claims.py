"""The report on a study's claims: the verdict on each, what it rests on, and what became of the claims since launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graft.stored.claims import claims_in, describe_history, read_history, read_scores
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
    """Its row of the table `studies`."""
    results: Sequence[ClaimResult]
    history: Sequence[dict[str, Any]]
    conditions: Sequence[StoredFingerprint]

    @property
    def was_first(self) -> bool:
        """Whether the claims were locked before any trial had ended, and not edited after."""
        return not any(row["results"] for row in self.history if row["event"] != "looked")

    def sentences(self) -> list[str]:
        """Return the verdicts, a line each, and then the history of the claims."""
        lines = [describe_result(one) for one in self.results]
        if not self.was_first:
            lines.append("the claims were written or edited after trials had ended: they were not made in advance")
        return lines + describe_history(self.history)

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values, of the shape of docs/schemas/report-claim.json."""
        name = self.study["name"]
        return {
            "format": 1,
            "study": name,
            "state": self.study["state"],
            "objective": self.study["objective"],
            "level": SURE,
            "made_in_advance": self.was_first,
            "claims": [_to_json(one) for one in self.results],
            "history": [{**row, "created_at": row["created_at"].isoformat()} for row in self.history],
            "fingerprints": [one.describe() for one in self.conditions],
            "version": self.study["version"],
            "space": self.study["space"],
            "space_sha256": self.study["space_hash"],
            "commands": [
                f"search launch space.yaml --study {name}  # space.yaml: the text under `space`",
                f"search report claim {name} --format json",
            ],
        }


def read_claim_report(reader: Reader, study: str) -> ClaimReport:
    """Decide the claims of a study by the trials that it has; raises StudyError if it has no claim."""
    one = reader.study(study)
    history = read_history(one)
    claims = claims_in(history)
    if not claims:
        raise StudyError(f"study {study!r} has no claim; write claim: {{arm, difference}} into its space")
    results = [read_scores(one, claim) for claim in claims]
    return ClaimReport(
        study=one.row,
        results=decide_claims(claims, results),
        history=history,
        conditions=read_fingerprints(reader, study),
    )


def _to_json(found: ClaimResult) -> dict[str, Any]:
    """Return a claim's result as JSON values; null for what cannot be computed."""
    values = {name: None if value != value else value for name, value in asdict(found).items()}
    return {**values, "diverged": [*found.diverged], "text": str(found.claim)}


def describe_result(found: ClaimResult) -> str:
    """Return a claim, its verdict and what it rests on, in a line."""
    claim: Claim = found.claim
    line = f"{found.verdict}: {claim}: {found.reason}"
    if found.gain == found.gain:
        line += f"; gain {found.gain:.4g} over {found.pairs:,} seeds"
    if found.low == found.low:
        line += f", 95 % interval {found.low:.4g} to {found.high:.4g}"
    if found.q == found.q:
        line += f", q = {found.q:.2g}"
    if found.seeds_needed is not None:
        line += f"; {found.pairs:,} seeds find {claim.difference:g} with a probability of {100 * found.power:.0f} %"
        more = found.seeds_needed - found.pairs
        line += f"; 80 % takes {more:,} more" if more > 0 else ""
    return line
