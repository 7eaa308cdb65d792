"""The history of a study's claims: locked at launch, then edited, refused to change, or looked at.

Rows are only added. The owner of a database can still change them, like any row. Someone who has
written down the hash sees such a change.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from sqlalchemy import Connection, func, insert, select

from spaces.plugins import canonical_json
from spaces.reading.claim_section import claims_of_text
from spaces.records import TERMINAL
from storage.clock import Now
from storage.schema import claim_events, studies, trials


def lock_claims(connection: Connection, study_id: int, space: str, version: str) -> None:
    """Record a space's claims unless the newest are the same: first `locked`, then `edited`."""
    claims = [claim.to_json() for claim in claims_of_text(space)]
    last = _find_last(connection, study_id)
    if claims != (last.claims if last else []):
        _insert(connection, study_id, "edited" if last else "locked", claims, version)


def record_look(connection: Connection, study: str, *, command: str, version: str, results: int, request: str) -> None:
    """Record that `command` showed `results` ended trials of an unfinished study with a claim.

    The request may have waited while a launch alone could write. Nothing is recorded if the study
    or its claims are gone, or if the request of this id was recorded already.
    """
    study_id = connection.scalar(select(studies.c.id).where(studies.c.name == study))
    last = None if study_id is None else _find_last(connection, study_id)
    if study_id is None or last is None or not last.claims:
        return
    c = claim_events.c
    these = select(c.number).where(c.study_id == study_id, c.request == request)
    if connection.execute(these).first() is None:
        details: dict[str, Any] = {"command": command, "results": results, "request": request}
        _insert(connection, study_id, "looked", last.claims, version, **details)


def record_refusal(connection: Connection, study_id: int, *, change: str, version: str) -> bool:
    """Record that a launch or submission was refused, as it would change a claim's trials.

    More seeds after a look are such a change. Return False, without a record, without claims.
    """
    last = _find_last(connection, study_id)
    if not (last and last.claims):
        return False
    _insert(connection, study_id, "refused", last.claims, version, command=change)
    return True


def hash_claims(claims: Any) -> str:
    """Return the SHA-256 that locks claims, JSON values: of JSON with sorted keys and no spaces."""
    return hashlib.sha256(canonical_json(claims).encode()).hexdigest()


def _find_last(connection: Connection, study_id: int) -> Any:
    these = select(claim_events.c.claims).where(claim_events.c.study_id == study_id)
    return connection.execute(these.order_by(claim_events.c.number.desc()).limit(1)).one_or_none()


def _insert(
    connection: Connection,
    study_id: int,
    event: Literal["locked", "edited", "looked", "refused"],
    claims: list[dict[str, Any]],
    version: str,
    command: str = "",
    results: int | None = None,
    request: str | None = None,
) -> None:
    condition = trials.c.study_id == study_id
    ended = select(func.count()).select_from(trials).where(condition, trials.c.state.in_(TERMINAL))
    mine = claim_events.c.study_id == study_id
    these = select(func.count()).select_from(claim_events).where(mine)
    connection.execute(
        insert(claim_events).values(
            study_id=study_id,
            number=these.scalar_subquery(),
            created_at=Now(),
            event=event,
            claims=claims,
            sha256=hash_claims(claims),
            results=ended.scalar_subquery() if results is None else results,
            version=version,
            command=command,
            request=request,
        )
    )
