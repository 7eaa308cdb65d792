"""Optional abilities of plug-ins and families: each protocol is one, known by its methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from spaces.plugins.files import FilePath
from spaces.records import LearnedSpline, Params


@runtime_checkable
class HasFacts(Protocol):
    """A plug-in with facts that follow from its fields, as a task's generalisation gap."""

    def facts(self) -> Params:
        """Return the facts, name -> value."""
        ...


@runtime_checkable
class HasKin(Protocol):
    """A plug-in whose trials may share packs with others', as tasks that differ only in data."""

    def kin(self) -> Mapping[str, Any] | None:
        """Return the base class of all members; None if there is none."""
        ...


@runtime_checkable
class HasContents(Protocol):
    """A plug-in that reads data without a place on a disk, as texts of a hub."""

    def contents(self) -> Iterator[FilePath]:
        """Return the files that stand for the data."""
        ...


@runtime_checkable
class KnowsPadding(Protocol):
    """A plug-in that says if trials of different sizes may share a pack, as a model does."""

    @property
    def padding_obstacle(self) -> str | None:
        """The effect of zero padding on it, in a few words; None if there is none."""
        ...


@runtime_checkable
class NamesVariants(Protocol):
    """A family whose members make variants of a trial's parameters, as averages do."""

    VARIANTS: Sequence[str]
    """The names that a variant may have; first that of the parameters themselves."""


@runtime_checkable
class HoldsSplines(Protocol):
    """A family whose members hold what trials learn for other trials, as models their splines."""

    spline_forms: Sequence[str]
    """The names of the forms in which a learned part can be used; the first is as learned."""

    def with_splines(self, config: Mapping[str, Any], learned: Sequence[LearnedSpline], form: str) -> Mapping[str, Any]:
        """Return a configuration with learned parts, frozen; PluginError if a part is missing."""
        ...
