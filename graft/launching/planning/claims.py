"""Claims before a launch: written into a space, and whether its seeds can find what is claimed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import polars as pl

from graft.plugins.collecting import plugins_of_space
from graft.plugins.families import families
from graft.stored.claims import read_scores
from search.analysis.arms.claims import ClaimAdvice, advise_claim
from search.analysis.statistics.verdicts import SURE
from spaces import parse
from spaces.errors import SpaceError, StorageError
from spaces.experiment import Claim, ExperimentSpace
from spaces.plugins.active import using
from spaces.reading import catalogue, content_of
from spaces.space import Space
from storage.frames import Reader, open_reader


def add_claim(origin: str, fields: Mapping[str, str]) -> tuple[str, tuple[Claim, ...]]:
    """Return the text of a space with one claim at its end, given the fields as YAML values; and the claim, read.

    Raises SpaceError as reading the space does, which may have a claim already.
    """
    written = ", ".join(f"{name}: {value}" for name, value in fields.items())
    text = f"{catalogue.read_text(origin).rstrip()}\nclaim: {{{written}}}\n"
    with using(plugins_of_space(origin)):
        space = parse(text, origin, families())
    if not isinstance(space, ExperimentSpace):
        raise SpaceError(f"{origin}: a claim compares two arms: name them under arms")
    return text, space.claims


class Advice(NamedTuple):
    """The facts about one claim that are known before a launch."""

    claim: Claim
    studies: Sequence[str]
    """Finished studies of the same arms."""
    known: Sequence[str]
    """Those of them whose `search.seed` is the claim's too, so that its results are known."""
    found: ClaimAdvice | None
    """None where these have too few trials."""

    def __str__(self) -> str:
        claim, found = self.claim, self.found
        if self.known:
            return f"{claim}: {', '.join(self.known)} trained these arms from these seeds: take another search.seed"
        if found is None:
            return f"{claim}: no study of this database has trained these arms from three seeds; --pilot 8 does"
        return (
            f"{claim}: {claim.seeds:,} seeds find it with a probability of {100 * found.power:.0f} %; 80 % takes "
            f"{found.seeds_needed:,} seeds; the smallest difference that {claim.seeds:,} seeds find with 80 % is "
            f"{found.detectable:.3g} (spread {found.spread:.3g} over seeds, from {', '.join(self.studies)})"
        )

    def to_row(self) -> dict[str, Any]:
        """Return the claim and what is known of it as the row of a table; null for what is not known."""
        claim, found = self.claim, self.found
        known = ("spread", "freedom", "detectable", "power", "seeds_needed")
        asked = {name: getattr(claim, name) for name in ("arm", "than", "metric", "difference", "seeds")}
        return {**asked, **{name: getattr(found, name, None) for name in known}, "studies": " ".join(self.studies)}

    @property
    def falls_short(self) -> bool:
        """Whether results are known, or the seeds find the difference less often than four times in five."""
        return bool(self.known) or (self.found is not None and self.found.seeds_needed > self.claim.seeds)


def advise(reader: Reader, space: Space, study: str) -> list[Advice]:
    """Say of each claim of a space, launched as `study`, what its seeds can find, by other studies of the same arms."""
    claims = space.claims if isinstance(space, ExperimentSpace) else ()
    content = content_of(space.text, "the space")
    rows = reader.studies().filter(pl.col("name") != study, pl.col("state") == "finished") if claims else pl.DataFrame()
    stored = [
        (row["name"], row["seed"], content_of(row["space"], row["name"]))
        for row in rows.iter_rows(named=True)  # of a study that has not finished it would be a look at interim results
        if "arms" in row["space"]
    ]
    advice: list[Advice] = []
    for claim in claims:
        same = [
            (name, seed) for name, seed, other in stored if _comparable(content, claim) == _comparable(other, claim)
        ]
        names, known = [name for name, _ in same], [name for name, seed in same if seed == space.search.seed]
        results = [read_scores(reader.study(name), claim) for name in names]
        advice.append(Advice(claim, names, known, advise_claim(claim, results, SURE / len(claims))))
    return advice


def _comparable(content: Any, claim: Claim) -> Any:
    """Return what of a space's content decides the spread of a claim's difference: all but names, seeds and counts."""
    arms = content.get("arms") or {}
    search = {key: value for key, value in content.get("search", {}).items() if key not in ("seed", "history")}
    rest = {key: value for key, value in content.items() if key not in _FREE}
    confirmed = content["confirm"]["top"] if "confirm" in content else None
    return rest | {"search": search, "arms": [arms.get(claim.arm, _ABSENT), arms.get(claim.than, _ABSENT)]}, confirmed


_FREE = ("study", "seeds", "confirm", "claim", "plugins", "arms", "search")
_ABSENT = "absent"


def note_claims(url: str, space: Space, study: str) -> list[str]:
    """Return a line for each claim of a space, launched as `study`, that falls short; none without stored trials."""
    with suppress(StorageError), open_reader(url) as reader:  # a new database has none
        return [str(one) for one in advise(reader, space, study) if one.falls_short]
    return []


def plan_pilot(space: Space, seeds: int) -> Space:
    """Return a space of the same arms without claims, with so many seeds that the claims' own study does not have.

    Raises SpaceError for arms that are tuned first, whose pilot would be the search itself.
    """
    if not isinstance(space, ExperimentSpace) or space.configurations > 1:
        raise SpaceError(f"{space.name}: --pilot is for arms in which nothing is drawn; search once under another name")
    changes = {"study": f"{space.name}-pilot-{seeds}", "seeds": str(seeds), "search.seed": str(space.search.seed + 1)}
    return parse(space.text, space.name, families(), {**changes, "claim": "[]"})
