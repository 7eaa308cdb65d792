"""The differences of two spaces, whatever their comments, layout and order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from spaces.messages import list_some, shorten
from spaces.plugins import canonical_json
from spaces.reading import content_of


class Difference(NamedTuple):
    """A place in which two spaces differ; None for a missing value."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        """Write the difference as one line, such as `search.trials: 64 -> 128`."""
        return f"{self.path}: {_show(self.before)} -> {_show(self.after)}"


def compare_spaces(before: str, after: str) -> list[Difference]:
    """Return the places in which the texts of two spaces differ."""

    def compare(path: str, before: Any, after: Any) -> Iterator[Difference]:
        if before == after:
            return
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            for key in dict.fromkeys([*before, *after]):
                yield from compare(f"{path}.{key}" if path else str(key), before.get(key), after.get(key))
        else:
            yield Difference(path, before, after)

    return list(compare("", content_of(before, "the space"), content_of(after, "the space")))


def describe_differences(differences: Sequence[Difference]) -> str:
    """Return the first few differences in a line."""
    return list_some([str(difference) for difference in differences])


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    return shorten(value if isinstance(value, str) else canonical_json(value))
