"""The figures of a study one by one, as its report has them."""

from __future__ import annotations

from graft.report.compatibility import heatmap
from graft.report.compatibility.content import Transfer, caption
from graft.report.data import StudyData
from graft.report.rendering.document import Picture
from graft.report.sections import FigureNumbers
from graft.report.study import collect_sections, number_figures
from spaces import plugins
from spaces.errors import StudyError
from spaces.messages import no_such


def figure_kinds(data: StudyData) -> list[str]:
    """Return the sections of the study's report that draw figures."""
    sections = collect_sections(data) if data.ended.height else []
    drawing = (section for section in sections if section.figure_count and section.fits and section.applies)
    return [plugins.name_of(section) for section in drawing]


def draw_matrix(transfer: Transfer) -> Picture:
    """Return the picture of a compatibility matrix."""
    return Picture(number=1, caption=caption(transfer), svg=heatmap.svg(transfer))


def draw_figures(data: StudyData, kind: str) -> list[Picture]:
    """Return the figures of one section; raises StudyError for one that the study does not have."""
    known = figure_kinds(data)
    if kind not in known:
        reason = no_such("figure of this study", kind, known) if known else "no trial has ended with a result yet"
        raise StudyError(f"figure: {reason}")
    every = collect_sections(data)
    numbers = number_figures(every)
    section = next(section for section in every if plugins.name_of(section) == kind)
    blocks = section.blocks(FigureNumbers(own=numbers[kind], sections=numbers))
    return [block for block in blocks if isinstance(block, Picture)]
