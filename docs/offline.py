"""Whether a page of the site works without a network."""

from __future__ import annotations

import re

_FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^"'\s>]+|url\(["']?https?:[^)]+"""
)


def fetched(text: str) -> str:
    """Return the first thing that a browser would fetch from elsewhere for this page; empty for none.

    A link that a person may follow is none.
    """
    found = _FETCHED.search(text)
    return found.group() if found else ""
