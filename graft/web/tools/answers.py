"""Answers that fit into a program's context: some rows, shortened texts, a cursor for the rest.

Rows have the names of the command's `--format json`. Nulls are left out, and numbers are rounded to
six digits; the tool `export` gives all of them whole.
"""

from __future__ import annotations

import codecs
import io
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import IO, Any

from spaces.messages import shorten

LARGEST = 4_000
"""Characters of an answer: under 2,000 tokens of GPT-2, two characters each in numbers of JSON."""
_LONGEST_TEXT = 400
"""Characters of a text in a row."""
_MOST_ITEMS = 40
"""Items of a list or a mapping in a row."""
_DIGITS = 6


def digest(value: Any) -> Any:
    """Return a value as short JSON: no nulls in mappings, six digits, short texts, few items."""
    if isinstance(value, Mapping):
        kept = [(str(name), digest(item)) for name, item in value.items() if item is not None]
        return dict(kept[:_MOST_ITEMS])
    if isinstance(value, list | tuple):
        return [digest(item) for item in value[:_MOST_ITEMS]]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return shorten(value, _LONGEST_TEXT) if isinstance(value, str) else value


def list_rows(
    rows: Sequence[Mapping[str, Any]], start: int = 0, facts: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the facts and as many `rows` as fit; `next` is the cursor of the first left out."""
    answer: dict[str, Any] = {**digest(facts or {}), "rows": []}
    left = LARGEST - len(write(answer)) - len(', "next": 1000000000')
    for index, row in enumerate(rows):
        shown = digest(row)
        if len(write(shown)) > LARGEST // 2:
            shown = {"cut": write(shown)[: LARGEST // 2]}
        left -= len(write(shown)) + 2
        if left < 0 and answer["rows"]:
            return {**answer, "next": start + index}
        answer["rows"].append(shown)
    return answer


def cut_file(file: IO[bytes], start: int, size: int, **facts: Any) -> dict[str, Any]:
    """Return the facts and `size` bytes of a file from `start`, in whole characters, and `next`."""
    total = file.seek(0, io.SEEK_END)
    file.seek(min(start, total))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(file.read(max(size, 4)))
    end = file.tell() - len(decoder.getstate()[0])
    return {**digest(facts), "bytes": total, "text": text, **({"next": end} if end < total else {})}


def write(answer: Any) -> str:
    """Return an answer as JSON, in ASCII, so that no character takes several tokens unseen."""
    return json.dumps(answer, default=str)
