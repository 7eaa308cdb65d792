"""Conditions and orders that a client writes over trials.

They are SQL, but only the part of it that compares values of a trial: columns, paths of its
configuration, numbers, texts and operators. There is no word for another table, a function or a
second statement, so that a client with a token for reading reads no more than trials.
"""

from __future__ import annotations

import re

from graft.stored.trials import LISTED
from spaces.errors import StudyError
from spaces.messages import no_such, shorten
from storage.frames.paths import SECTIONS
from storage.trial_notes import WORDS

LONGEST = 2_000
"""Characters of a condition or an order, at most."""
_COLUMNS = (*LISTED, "draws", *WORDS)
_IN_CONDITIONS = frozenset(["AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "TRUE", "FALSE"])
_IN_ORDERS = _IN_CONDITIONS | frozenset(["ASC", "DESC", "NULLS", "FIRST", "LAST"])
_BEFORE_PARENTHESIS = frozenset(["AND", "OR", "NOT", "IN", "BETWEEN", "LIKE"])
_TOKEN = re.compile(
    r"(?P<text>'(?:[^'\0]|'')*')"
    r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[A-Za-z_]\w*(?:\.\w+)*)"
    r"|(?P<sign><=|>=|<>|!=|[=<>+*/(),-])",
    re.ASCII,
)
_PATH = re.compile(rf"params(?:\.[A-Za-z_]\w*)+|(?:{SECTIONS})(?:\.[A-Za-z_]\w*)+", re.ASCII)


def check_condition(text: str | None) -> str | None:
    """Return the condition as it is sent to the database; raises StudyError for what is none."""
    return _check(text, "where", _IN_CONDITIONS)


def check_order(text: str | None) -> str | None:
    """Return the order as it is sent to the database; raises StudyError for what is none."""
    return _check(text, "sort", _IN_ORDERS)


def _check(text: str | None, what: str, keywords: frozenset[str]) -> str | None:
    if text is None or not text.strip():
        return None
    if len(text) > LONGEST:
        raise StudyError(f"{what} has {len(text):,} characters; it may have {LONGEST:,}")
    tokens: list[str] = []
    position, depth = 0, 0
    while rest := text[position:].lstrip():
        position = len(text) - len(rest)
        match = _TOKEN.match(text, position)
        if match is None:
            raise StudyError(f"{what}: {shorten(rest, 20)!r} is no value, path, word or sign of a condition on trials")
        token, before = match[0], tokens[-1] if tokens else ""
        if match["word"]:
            if token.upper() not in keywords and token not in _COLUMNS and not _PATH.fullmatch(token):
                hint = no_such("column of trials", token, _COLUMNS)
                raise StudyError(f"{what}: {hint}, or a path such as params.task.length")
        elif token == "(" and before[:1].isidentifier() and before.upper() not in _BEFORE_PARENTHESIS:
            raise StudyError(f"{what}: {before!r} is no function; there is none")
        depth += {"(": 1, ")": -1}.get(token, 0)
        if depth < 0:
            break
        tokens.append(token)
        position = match.end()
    if depth:
        raise StudyError(f"{what}: {shorten(text)!r} needs a ')' for each '(', after it")
    # Put together again with spaces, so that no two signs become a comment.
    return " ".join(tokens)
