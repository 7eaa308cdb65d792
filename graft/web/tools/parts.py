"""Texts that are given in parts: a cursor has a digest of the text, so that all parts are of one.

A table of a running study changes from one part to the next. Texts that are not large are kept for
the parts that follow; a larger one is written again, and its parts are refused once it has changed.
"""

from __future__ import annotations

import hashlib
import io
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import IO, Any

from graft.web.security.refusals import RefusalError
from graft.web.tools.answers import cut_file

PART_CURSOR = r"^[0-9]{1,10}(-[0-9a-f]{12})?$"
"""The cursor of a part, as a regular expression: a byte, and the digest of the text."""
_LARGEST = 8 << 20
"""Bytes of a text that is kept."""
_MOST_BYTES = 4 * _LARGEST
"""Bytes of all texts that are kept, the newest ones."""
_DIGITS = 12

_kept: OrderedDict[tuple[str, ...], bytes] = OrderedDict()
"""What a text is of, and its digest -> the text."""
_lock = threading.Lock()


def start_of(cursor: str) -> int:
    """Return the byte, or the row, at which a cursor goes on."""
    return int(cursor.partition("-")[0])


def give_part(
    subject: tuple[str, ...], write: Callable[[IO[bytes]], object], cursor: str, size: int, **facts: Any
) -> dict[str, Any]:
    """Return `cut_file` of what `write` writes, with a cursor as `next`.

    `subject`: the database, the study, and what it is of these. Refused with 400 for a cursor of a
    text that is no longer the same.
    """
    start, digest = start_of(cursor), cursor.partition("-")[2]
    with _lock:
        text = _kept.get((*subject, digest))
        if text is not None:
            _kept.move_to_end((*subject, digest))
    if text is not None:
        return _point_on(cut_file(io.BytesIO(text), start, size, **facts), digest)
    with tempfile.TemporaryFile() as file:
        write(file)
        file.seek(0)
        now = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
        if digest != now and (digest or start):
            what = " of ".join(reversed(subject[1:]))
            reason = f"cursor: {cursor} is of {what} as it was before; begin again, without a cursor"
            raise RefusalError(400, reason)
        answer = cut_file(file, start, size, **facts)
        if "next" in answer and answer["bytes"] <= _LARGEST:
            file.seek(0)
            with _lock:
                _kept[*subject, now] = file.read()
                while sum(map(len, _kept.values())) > _MOST_BYTES:
                    _kept.popitem(last=False)
    return _point_on(answer, now)


def _point_on(answer: dict[str, Any], digest: str) -> dict[str, Any]:
    return {**answer, "next": f"{answer['next']}-{digest}"} if "next" in answer else answer
