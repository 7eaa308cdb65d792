"""Results on test sets: sealed as they are written, and read once the study is revealed.

The seal hides numbers from a query and from a copy of the table. It is no lock: a person who has
the code and the rows can open it, and one who has the space can train its trials again.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence

from sqlalchemy import Connection, func, insert, select

from spaces.errors import RowError, StudyError
from spaces.reading.claim_section import claims_of_text
from spaces.records import Metric
from storage.clock import Now
from storage.schema import reveals, studies

_SALT_BYTES = 8


def seal(metrics: Sequence[Metric]) -> str:
    """Return metrics as a text in which no number can be read."""
    plain = json.dumps([list(metric) for metric in metrics]).encode()
    salt = hashlib.sha256(plain).digest()[:_SALT_BYTES]
    return base64.b64encode(salt + _mask(plain, salt)).decode()


def unseal(sealed: str) -> list[Metric]:
    """Return the metrics of a sealed text; raises RowError if it was edited by hand."""
    try:
        content = base64.b64decode(sealed, validate=True)
        salt, plain = content[:_SALT_BYTES], _mask(content[_SALT_BYTES:], content[:_SALT_BYTES])
        if hashlib.sha256(plain).digest()[:_SALT_BYTES] != salt:
            raise ValueError("its hash is another one")
        return [Metric(*values) for values in json.loads(plain)]
    except (ValueError, TypeError):
        raise RowError("a row of test_results was edited by hand: it cannot be opened") from None


def reveal(connection: Connection, study: str, *, person: str, version: str, request: str) -> None:
    """Record once that a person opens test results; StudyError without any, or before the end."""
    row = connection.execute(select(studies).where(studies.c.name == study)).one_or_none()
    if row is None:
        raise StudyError(f"study {study!r} does not exist")
    if not any(claim.on == "test" for claim in claims_of_text(row.space)):
        raise StudyError(f"study {study!r} has no test sets: no claim of its space says `on: test`")
    if row.state != "finished":
        rule = "its test sets are opened once, when all of its trials have ended"
        raise StudyError(f"study {study!r} is {row.state}: {rule}")
    mine = reveals.c.study_id == row.id
    same = select(reveals.c.number).where(mine, reveals.c.request == request)
    if connection.execute(same).first():
        return
    number = select(func.count()).select_from(reveals).where(mine).scalar_subquery()
    values = {"person": person, "version": version, "request": request}
    statement = insert(reveals).values(study_id=row.id, number=number, created_at=Now(), **values)
    connection.execute(statement)


def check_sealed(connection: Connection, study_id: int) -> None:
    """Raise StudyError if the study was revealed: its trials and claims may not change any more."""
    these = select(reveals.c.person, reveals.c.created_at).where(reveals.c.study_id == study_id)
    first = connection.execute(these.order_by(reveals.c.number).limit(1)).one_or_none()
    if first:
        opened = f"{first.person} revealed its test sets on {first.created_at:%Y-%m-%d %H:%M} UTC"
        raise StudyError(
            f"{opened}, so that nothing is trained or changed in this study any more; take another "
            "name and another search.seed"
        )


def _mask(content: bytes, salt: bytes) -> bytes:
    """Return the content under the stream of a hash, which the same call takes off again."""
    blocks = range(-(-len(content) // hashlib.sha256().digest_size))
    keys = (b"test set" + salt + block.to_bytes(4) for block in blocks)
    stream = b"".join(hashlib.sha256(key).digest() for key in keys)
    return bytes(byte ^ other for byte, other in zip(content, stream, strict=False))
