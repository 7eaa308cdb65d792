"""The sections of a study's report: one file each, which says what it needs, when it applies and what it shows.

A section asks its StudyData for the frames that it needs, and has its numbers computed by functions of search.analysis.
What it knows of a task, a model or a paper stands in its file alone: the report collects the sections that apply, in
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
from search.analysis.study.scores import Claim


class Part(IntEnum):
    """The parts of a report, in their order."""

    RESULTS = 0
    """What the study found, in tables."""
    FIGURES = 1
    DETAILS = 2
    """Long tables."""


@dataclass(frozen=True, kw_only=True)
class FigureNumbers:
    """The numbers of a report's figures."""

    own: int
    """Of the section's first figure; the next ones follow it."""
    sections: Mapping[str, int]
    """Name of a section that applies -> the number of its first figure, so that a text may refer to it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Section(ABC):
    """One section of the report of one study."""

    data: StudyData

    part: ClassVar[Part]
    after: ClassVar[str] = ""
    """The section that it follows. A section from outside that names none is the last of its part."""
    figures: ClassVar[int] = 0
    """Figures that it draws of most studies."""
    claim: ClassVar[Claim | None] = None
    """Metrics that are this section's alone, and are in no other table or figure."""
    subject: ClassVar[Literal["trials", "arms", "any"]] = "any"
    """What it treats: all trials alike, which says nothing of an experiment; an experiment's arms; or any study."""
    needs_results: ClassVar[bool] = True
    """Whether it has nothing to say of a study in which no trial has a result."""
    notes: ClassVar[Sequence[str]] = ()
    """How its numbers are made, for the end of the report."""

    @property
    def fits(self) -> bool:
        """Whether the study is of the kind that it treats."""
        return self.subject == "any" or (self.subject == "arms") == (self.data.experiment is not None)

    @property
    def applies(self) -> bool:
        """Whether a study that `fits` has what it needs; where no trial has a result, only what needs none is asked."""
        return True

    @property
    def figure_count(self) -> int:
        """Figure numbers that it takes, whether or not it applies or draws them all: the figures of most studies have
        the same numbers.
        """
        return self.figures

    @property
    def title(self) -> str | None:
        """Its heading, if it has one of its own."""
        return None

    def findings(self) -> Iterable[str]:
        """Return the section's findings, as sentences for the beginning of the report."""
        return ()

    @abstractmethod
    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        """Return the content below the section's heading."""


@dataclass(frozen=True, kw_only=True)
class Omission(Paragraph):
    """A paragraph in place of figures that cannot be drawn, which a report has after those that can."""


def left_out(figures: str, reason: str) -> Omission:
    """Return the paragraph in place of figures that cannot be drawn."""
    return Omission(text=f"Left out: {figures}. {reason}")


def say_shown(shown: int, every: int, what: str) -> str:
    """Return the sentence of a caption that says how many of `what` a figure shows; empty where it shows all."""
    return "" if shown >= every else f" Shown are {shown} of {every} {what}."
