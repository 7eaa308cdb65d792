"""Claims before a launch: adding one to a space, and the power of the space's seeds."""

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
    """Add a claim, its fields given as YAML values, to a space; return the new text and its claims.

    Raises SpaceError if it cannot be read, as when the space has a claim already.
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
    """Finished studies of the same arms, one of each `search.seed`."""
    known: Sequence[str]
    """Finished studies of the same arms with the claim's `search.seed`, so that its results are known."""
    found: ClaimAdvice | None
    """None if these studies have too few trials."""

    def __str__(self) -> str:
        claim, advice = self.claim, self.found
        if self.known:
            return f"{claim}: {', '.join(self.known)} trained these arms from these seeds: take another search.seed"
        if advice is None:
            return f"{claim}: no study of this database has trained these arms from three seeds; --pilot 8 does"
        return (
            f"{claim}: {claim.seeds:,} seeds find it with a probability of {100 * advice.power:.0f} %; 80 % takes "
            f"{advice.seeds_needed:,} seeds; the smallest difference that {claim.seeds:,} seeds find with 80 % is "
            f"{advice.detectable:.3g} (spread {advice.spread:.3g} over seeds, from {', '.join(self.studies)})"
        )

    def to_row(self) -> dict[str, Any]:
        """Return the claim and the known facts as the row of a table; unknown ones are null."""
        claimed = ("arm", "than", "metric", "difference", "seeds")
        known = ("spread", "freedom", "detectable", "power", "seeds_needed")
        row = {name: getattr(self.claim, name) for name in claimed}
        row |= {name: getattr(self.found, name, None) for name in known}
        return row | {"studies": " ".join(self.studies)}

    @property
    def falls_short(self) -> bool:
        """True if results are known, or the power of the seeds is below 80 %."""
        return bool(self.known) or (self.found is not None and self.found.seeds_needed > self.claim.seeds)


def advise(reader: Reader, space: Space, study: str) -> list[Advice]:
    """Estimate the power of a space's claims, launched as `study`, by other studies of its arms."""
    if not isinstance(space, ExperimentSpace) or not space.claims:
        return []
    content = content_of(space.text, "the space")
    # Interim results of a study that has not finished must not be seen.
    finished = reader.studies().filter(pl.col("name") != study, pl.col("state") == "finished")
    stored = [
        (row["name"], row["seed"], content_of(row["space"], row["name"]))
        for row in finished.iter_rows(named=True)
        if "arms" in row["space"]
    ]
    advice: list[Advice] = []
    for claim in space.claims:
        wanted = _comparable(content, claim)
        same = {name: seed for name, seed, other in stored if _comparable(other, claim) == wanted}
        known = [name for name, seed in same.items() if seed == space.search.seed]
        scores = {name: read_scores(reader.study(name), claim) for name in same}
        # Studies of one search.seed train the same trials: the one with the most seeds counts.
        by_size = sorted(same, key=lambda name: scores[name]["seed"].n_unique())
        largest = {same[name]: name for name in by_size}.values()
        studies = [name for name in same if name in largest]
        estimate = advise_claim(claim, [scores[name] for name in studies], SURE / len(space.claims))
        advice.append(Advice(claim, studies, known, estimate))
    return advice


def _comparable(content: Any, claim: Claim) -> Any:
    """Return all of a space that decides a difference's spread: no names, seeds and counts."""
    arms = content.get("arms") or {}
    search = {key: value for key, value in content.get("search", {}).items() if key not in ("seed", "history")}
    rest = {key: value for key, value in content.items() if key not in _FREE}
    confirmed = content["confirm"]["top"] if "confirm" in content else None
    return rest, search, arms.get(claim.arm, _ABSENT), arms.get(claim.than, _ABSENT), confirmed


_FREE = ("study", "seeds", "confirm", "claim", "plugins", "arms", "search")
_ABSENT = "absent"


def note_claims(url: str, space: Space, study: str) -> list[str]:
    """Return a line for each claim of a space, launched as `study`, that falls short."""
    with suppress(StorageError), open_reader(url) as reader:  # a new database has none
        return [str(advice) for advice in advise(reader, space, study) if advice.falls_short]
    return []


def plan_pilot(space: Space, seeds: int) -> Space:
    """Return a space of the same arms without claims, with `seeds` seeds that the space lacks.

    Raises SpaceError for arms that are tuned first, whose pilot would be the search itself.
    """
    if not isinstance(space, ExperimentSpace) or space.configurations > 1:
        raise SpaceError(f"{space.name}: --pilot is for arms in which nothing is drawn; search once under another name")
    changes = {"study": f"{space.name}-pilot-{seeds}", "seeds": str(seeds), "search.seed": str(space.search.seed + 1)}
    return parse(space.text, space.name, families(), {**changes, "claim": "[]"})
