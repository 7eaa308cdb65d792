"""Source code without its comments (after Lu et al. 2021, CodeXGLUE)."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from tokenize import COMMENT, DEDENT, ENCODING, INDENT, NEWLINE, NL, STRING, TokenInfo
from typing import NamedTuple

_STARTS = frozenset({ENCODING, NEWLINE, INDENT, DEDENT})
_JAVA = re.compile(
    r'(?P<kept>\0|"""(?:\\.|.)*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\')|[ \t]*//[^\n]*|[ \t]*/\*.*?\*/',
    re.DOTALL,
)


class _Cut(NamedTuple):
    start: tuple[int, int]  # line from 1 on, column from 0 on
    end: tuple[int, int]
    instead: str


def without_python_comments(source: str) -> str:
    """Return the source without comments and docstrings, with the same syntax tree but for those.

    Where a block has nothing else, `pass` stays. Lines that become empty go. Raises SyntaxError.
    """
    lines = StringIO(source).readlines()  # of line ends alone, as the tokens count them
    try:
        all_tokens = [*tokenize.generate_tokens(StringIO(source).readline)]
    except tokenize.TokenError as error:
        raise SyntaxError(str(error)) from error
    tokens = [token for token in all_tokens if token.type != NL]
    comments = (_Cut(token.start, token.end, "") for token in tokens if token.type == COMMENT)
    docstrings = _docstrings([token for token in tokens if token.type != COMMENT])
    for cut in sorted([*comments, *docstrings], reverse=True):
        (first, left), (last, right) = cut.start, cut.end
        before, after = lines[first - 1][:left], lines[last - 1][right:]
        kept = before + cut.instead
        whole = (kept if after.strip() else kept.rstrip()) + after
        lines[first - 1 : last] = [whole if whole.strip() else ""]
    return "".join(lines)


def without_java_comments(source: str) -> str:
    """Return the source without comments and lines that become empty; strings stay as they are."""
    strings: list[str] = []

    def take_out(match: re.Match[str]) -> str:
        if match["kept"] is None:
            return " "
        strings.append(match["kept"])
        return "\0"

    bare = re.sub(r"\n\s*\n", "\n", _JAVA.sub(take_out, source))
    kept = iter(strings)
    return re.sub("\0", lambda _: next(kept), re.sub(r"[ \t]+$", "", bare, flags=re.MULTILINE))


STRIPPERS: Mapping[str, Callable[[str], str]] = {
    "none": str,
    "python": without_python_comments,
    "java": without_java_comments,
}
"""Programming language -> the function that takes the comments out of its source."""
VERSIONS: Mapping[str, str] = {"none": "1", "python": "2", "java": "2"}
"""Programming language -> a number that goes up when other text is cut out, so that tokens made of
the source are made anew."""


def _docstrings(code: Sequence[TokenInfo]) -> Iterator[_Cut]:
    """Yield the strings that are statements; a block of nothing else keeps one `pass`."""
    for index, token in enumerate(code[:-1]):
        before = code[index - 1].type if index else ENCODING
        if token.type == STRING and before in _STARTS and code[index + 1].type == NEWLINE:
            after = index + 2
            while [token.type for token in code[after : after + 2]] == [STRING, NEWLINE]:
                after += 2
            alone = before == INDENT and code[after].type == DEDENT
            yield _Cut(token.start, token.end, "pass" if alone else "")
