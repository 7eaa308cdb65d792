"""A new study: its values, and writing it into the database with its plug-ins from outside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, insert

from spaces.errors import StudyError
from spaces.messages import shorten
from spaces.plugins.bundles import Bundle
from spaces.plugins.digests import Data
from spaces.settings import Objective, SecondObjective
from storage import claim_events, sources
from storage.clock import Now
from storage.schema import studies

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
"""A study's name, as a regular expression."""


@dataclass(frozen=True)
class NewStudy:
    """The values of a study that is not in the database yet."""

    name: str
    space: str
    """The space's YAML text."""
    space_hash: str
    objective: Objective
    seed: int
    trials: int
    version: str
    numerics: int
    """The version of the numerics (`workers.numerics.version`)."""
    bundles: tuple[Bundle, ...] = ()
    """The plug-ins from outside that the study runs."""
    second: SecondObjective | None = None
    data: Mapping[str, Data] = field(default_factory=dict[str, Data])
    """The files and folders that its trials read, by their names in the space."""

    def __post_init__(self) -> None:
        """Raise StudyError for an impossible name, before a database is opened or made for it."""
        check_name(self.name)


def check_name(name: str) -> None:
    """Raise StudyError unless the name fits a command line, a file name and a URL."""
    if not re.fullmatch(NAME, name):
        rule = "must be a word of letters, digits, '.', '_' and '-'"
        raise StudyError(f"a study's name: {shorten(repr(name))} {rule}")


def row_of(study: NewStudy) -> dict[str, Any]:
    """Return the columns of `studies` for a new, stopped study, as JSON values without times."""
    return {
        **{name: value for name, value in vars(study).items() if name not in ("bundles", "second")},
        "objective": str(study.objective),
        "direction": study.objective.direction,
        "second_objective": str(study.second) if study.second else None,
        "state": "stopped",
        "stop_requested": False,
        "data": {name: [version.to_json()] for name, version in study.data.items()},
    }


def insert_study(connection: Connection, row: Mapping[str, Any], bundles: Sequence[Bundle]) -> int:
    """Write a new study (`row_of`) with its plug-ins from outside and its claims; return its id."""
    times = {"created_at": Now(), "updated_at": Now()}
    statement = insert(studies).values(**row, **times).returning(studies.c.id)
    study_id = connection.execute(statement).scalar_one()
    sources.write(connection, study_id, bundles)
    claim_events.lock_claims(connection, study_id, row["space"], row["version"])
    return study_id
