"""A space for a notebook, from a file, a text or a dictionary, and changes of its values."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import polars as pl
import yaml

from graft.api.plugins import Plugin, collect_plugins
from graft.plugins.collecting import plugins_of_text
from graft.plugins.families import families
from spaces import parse
from spaces.errors import SpaceError
from spaces.plugins.active import using
from spaces.plugins.bundles import check_distinct
from spaces.reading import catalogue

if TYPE_CHECKING:
    import spaces

_TEXT = "the space"
"""The name in errors of a space that is no file."""


@dataclass(frozen=True, init=False)
class Space:
    """A space as text; it is read, and its plug-ins are loaded, when it is used.

        graft.Space("quick/set_complement")                   a packaged space, or a file
        graft.Space({"study": "mine", "task": {...}, ...})    a dictionary, as YAML would give it
        graft.Space(text)                                     YAML text, of more than one line

    A space does not change: `set` gives another one.
    """

    origin: str
    """The file, or the name in errors."""
    text: str
    """YAML, without the changes of `set`."""
    changes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Dotted path -> YAML value."""
    plugins: tuple[str | Path | Plugin | type, ...] = ()

    def __init__(
        self, source: str | Path | Mapping[str, Any], plugins: Sequence[str | Path | Plugin | type] = ()
    ) -> None:
        """Make a space; `plugins` adds files, modules, `graft.Plugin` or a notebook's classes.

        Raises SpaceError if there is no such file and no packaged space of this name.
        """
        if isinstance(source, Mapping):
            origin, text = _TEXT, _to_yaml(source, flow=False)
        elif isinstance(source, str) and "\n" in source:
            origin, text = _TEXT, source
        else:
            origin, text = str(source), catalogue.read_text(str(source))
        vars(self).update(origin=origin, text=text, changes={}, plugins=tuple(plugins))

    def set(self, path: str, value: Any) -> Self:
        """Return the same space with another value at a dotted path, as with `--set`.

        A text is read as YAML: `"uniform(0, 1)"` draws, `"softmax"` names a plug-in.
        """
        text = value if isinstance(value, str) else _to_yaml(value, flow=True)
        kept = {other: old for other, old in self.changes.items() if not f"{other}.".startswith(f"{path}.")}
        return self._copy(changes=kept | {path: text})

    def using(self, *plugins: str | Path | Plugin | type) -> Self:
        """Return the same space with more plug-ins."""
        return self._copy(plugins=(*self.plugins, *plugins))

    def _copy(self, **values: Any) -> Self:
        other = copy(self)
        vars(other).update(values)
        return other

    @contextmanager
    def load(self) -> Generator[spaces.Space]:
        """Yield the space, read, while its plug-ins are in use; raises SpaceError, one line."""
        plugins, more = plugins_of_text(self.text, self.origin, self.changes), collect_plugins(self.plugins)
        members = [member for outside in (plugins, more) for bundle in outside.bundles for member in bundle.members]
        check_distinct(list(dict.fromkeys(members)), {})
        with using(plugins | more):
            yield parse(self.text, self.origin, families(), self.changes)

    def check(self, samples: int = 200) -> None:
        """Try draws of the space; raises SpaceError for an error, and warns of likely mistakes."""
        from graft.launching.planning.review import review

        with self.load() as space:
            space.check(samples)
            for note in review(space):
                warnings.warn(f"{space.name}: {note}", stacklevel=2)

    def describe(self) -> pl.DataFrame:
        """Return a row per value: path, value, level of its draw, range and condition."""
        from graft.launching.planning.preview import describe_space

        with self.load() as space:
            return describe_space(space)

    def sample(self, count: int = 5) -> pl.DataFrame:
        """Return trials as a launch would start them: number, group, seed and params."""
        from graft.launching.planning.preview import sample_trials

        with self.load() as space:
            trials = sample_trials(space, count)
        rows = [{"number": trial.number, "group": trial.group, "seed": trial.seed, **trial.params} for trial in trials]
        return pl.DataFrame(rows, infer_schema_length=None, strict=False)

    @property
    def yaml(self) -> str:
        """The whole space as YAML, with the changes of `set`."""
        from spaces.grammar.nodes import compose
        from spaces.grammar.overrides import override, to_yaml

        if not self.changes:
            return self.text
        return to_yaml(override(compose(self.text, self.origin), self.changes))

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.yaml)}</pre>"


def _to_yaml(value: Any, *, flow: bool) -> str:
    try:
        text = yaml.safe_dump(value, default_flow_style=flow, sort_keys=False, width=10_000, allow_unicode=True)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise SpaceError(f"a space is made of texts, numbers, truth values, lists and dictionaries: {reason}") from None
    return text.removesuffix("\n...\n").rstrip("\n") if flow else text
