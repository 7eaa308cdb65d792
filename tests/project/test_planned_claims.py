"""The claims of planned findings: the hashes and verdicts on the pages are those of spaces and kept trials."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from benchmarks.papers.__main__ import KEPT
from benchmarks.papers.claims import describe_claims
from benchmarks.papers.plan import read_plan
from spaces.reading import catalogue
from spaces.reading.claim_section import claims_of_text
from storage.claim_events import hash_claims

PAGES = Path(__file__).parents[2] / "docs" / "experiments"


def test_hashes_of_planned_findings_are_those_of_their_spaces() -> None:
    rows = re.findall(
        r"^\| \d \| `([a-z_/]+)`.*\| `([0-9a-f]{16})` \|", (PAGES / "planned.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 5
    for space, digest in rows:
        claims = claims_of_text(catalogue.read_text(space))
        assert hash_claims([claim.to_json() for claim in claims])[:16] == digest, space


def test_verdicts_on_kept_trials_are_those_of_the_page() -> None:
    claims = [line.split(" | ") for line in describe_claims(read_plan(), pl.read_parquet(KEPT))][2:]
    page = (PAGES / "starts.md").read_text()
    section = page[page.index("by `python -m benchmarks.papers claims`") : page.index("Ten trials, two of each study")]
    rows = re.findall(r"^\|.*\| (confirmed|refuted|undecided) \|", section, re.MULTILINE)
    assert [verdict.partition(":")[0] for _, _, verdict in claims] == rows
    assert all(digest.strip("` ") in section for _, digest, _ in claims)
