"""The sections of a study's report, a file each: what it needs, when it applies, what it shows.

A section asks its StudyData for frames, and search.analysis computes its numbers. What it knows of
a task, a model or a paper stands in its file alone: the report collects the sections that apply, in
their order, and numbers their figures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Literal

from graft.report.data import StudyData
from graft.report.rendering.document import Block, Paragraph
from search.analysis.study.scores import Reserved

PAIRED = (
    "a change is paired by trial, with Student's 95 % interval. p is that of the paired t-test, or where "
    "at most half of the changes are distinct the larger one of it and of sign flips; there is none for "
    "fewer than four trials. The adjusted p is Holm's over the rows of the table."
)
"""The note of a table of changes that are paired by trial."""


class Part(IntEnum):
    """The parts of a report, in their order."""

    RESULTS = 0
    """Tables of the findings."""
    FIGURES = 1
    DETAILS = 2
    """Long tables."""


@dataclass(frozen=True, kw_only=True)
class FigureNumbers:
    """The numbers of a report's figures."""

    own: int
    """Number of the section's first figure; the next ones follow it."""
    sections: Mapping[str, int]
    """Name of a section that applies -> the number of its first figure, for texts to refer to."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Section(ABC):
    """One section of the report of one study."""

    data: StudyData

    part: ClassVar[Part]
    after: ClassVar[str] = ""
    """The section that it follows; without one, a section from outside ends its part."""
    figures: ClassVar[int] = 0
    """Number of figures that it draws in most studies."""
    reserved: ClassVar[Reserved | None] = None
    """Metrics that are this section's alone, and are in no other table or figure."""
    subject: ClassVar[Literal["trials", "arms", "any"]] = "any"
    """All trials alike, which says nothing of an experiment; an experiment's arms; or any study."""
    needs_results: ClassVar[bool] = True
    """True if it has nothing to say of a study in which no trial has a result."""
    heading: ClassVar[str | None] = None
    """The section's own heading, if it has one."""
    notes: ClassVar[Sequence[str]] = ()
    """Sentences on how its numbers are made, for the end of the report."""

    @property
    def fits(self) -> bool:
        """True if the study is of the kind that it treats."""
        return self.subject == "any" or (self.subject == "arms") == (self.data.experiment is not None)

    @property
    def applies(self) -> bool:
        """True if a study that `fits` has what it needs; not asked if it lacks needed results."""
        return True

    @property
    def figure_count(self) -> int:
        """Figure numbers that it takes, drawn or not: figures of most studies have equal ones."""
        return self.figures

    @property
    def title(self) -> str | None:
        """The heading, for sections that have another one for some studies."""
        return self.heading

    def findings(self) -> Iterable[str]:
        """Return the section's findings, as sentences for the beginning of the report."""
        return ()

    @abstractmethod
    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        """Return the content below the section's heading."""


@dataclass(frozen=True, kw_only=True)
class Omission(Paragraph):
    """A paragraph in place of figures that cannot be drawn; it stands after those that can."""


def left_out(figures: str, reason: str) -> Omission:
    """Return the paragraph in place of figures that cannot be drawn."""
    return Omission(text=f"Left out: {figures}. {reason}")


def say_shown(shown: int, every: int, what: str) -> str:
    """Return a caption's sentence on how many of `what` a figure shows; empty for all."""
    return "" if shown >= every else f" Shown are {shown} of {every} {what}."
