"""Source code without its comments (after Lu et al. 2021, CodeXGLUE)."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from tokenize import COMMENT, DEDENT, ENCODING, INDENT, NEWLINE, NL, STRING, TokenInfo
from typing import NamedTuple

VERSION = "1"
"""Goes up when what is cut out changes, so that what was made from it is made anew."""

_STARTS = frozenset({ENCODING, NEWLINE, INDENT, DEDENT})
_JAVA = re.compile(
    r'(?P<kept>"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|[ \t]*//[^\n]*|[ \t]*/\*.*?\*/', re.DOTALL
)


class _Cut(NamedTuple):
    start: tuple[int, int]  # line from 1 on, column from 0 on
    end: tuple[int, int]
    instead: str


def without_python_comments(source: str) -> str:
    """Return the source without comments and docstrings, with the same syntax tree but for those.

    A block of a docstring alone gets a `pass`. Lines that become empty go. Raises SyntaxError for what is not Python.
    """
    lines = StringIO(source).readlines()  # of line ends alone, as the tokens count them
    try:
        tokens = [token for token in tokenize.generate_tokens(StringIO(source).readline) if token.type != NL]
    except tokenize.TokenError as error:
        raise SyntaxError(str(error)) from error
    for cut in reversed([*_cuts(tokens)]):
        (first, left), (last, right) = cut.start, cut.end
        before, after = lines[first - 1][:left], lines[last - 1][right:]
        whole = (before + cut.instead).rstrip() + after if not after.strip() else before + cut.instead + after
        lines[first - 1 : last] = [whole if whole.strip() else ""]
    return "".join(lines)


def without_java_comments(source: str) -> str:
    """Return the source without comments; strings and characters stay as they are, lines that become empty go."""
    bare = _JAVA.sub(lambda found: found["kept"] or " ", source)
    return re.sub(r"[ \t]+$", "", re.sub(r"\n\s*\n", "\n", bare), flags=re.MULTILINE)


STRIPPERS: Mapping[str, Callable[[str], str]] = {
    "none": str,
    "python": without_python_comments,
    "java": without_java_comments,
}
"""Programming language -> what takes the comments out of its source."""


def _cuts(tokens: Sequence[TokenInfo]) -> Iterator[_Cut]:
    code = [token for token in tokens if token.type != COMMENT]
    docstrings = dict(_docstrings(code))
    for token in tokens:
        if token.type == COMMENT:
            yield _Cut(token.start, token.end, "")
        elif token.start in docstrings and token.type == STRING:
            yield docstrings[token.start]


def _docstrings(code: Sequence[TokenInfo]) -> Iterator[tuple[tuple[int, int], _Cut]]:
    """Strings that are statements, by where they start."""
    for index, token in enumerate(code[:-1]):
        before = code[index - 1].type if index else ENCODING
        if token.type == STRING and before in _STARTS and code[index + 1].type == NEWLINE:
            alone = before == INDENT and code[index + 2].type == DEDENT
            yield token.start, _Cut(token.start, token.end, "pass" if alone else "")
