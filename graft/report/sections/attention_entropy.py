"""Entropy of attention by layer and head as inputs grow (paper 001, sections 3 and 4)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.lines import draw_panels, draw_series, panels_of, series_keys
from graft.report.rendering.document import Block, Picture
from graft.report.sections import FigureNumbers, Part, Section, say_shown
from search.analysis.study.condition_lines import longest_lines, trace_lines

_HEAD = re.compile(r"attention_entropy layer=(\d+) head=(\d+)")
_MOST_PANELS = 3


@final
class AttentionEntropy(Section):
    """A line for each layer and head over the size of the inputs, for studies with
    `training.diagnostics`.

    Entropy that grows as the logarithm of the size is attention that disperses.
    """

    part = Part.FIGURES
    order = 68
    figures = 1

    @cached_property
    def lines(self) -> pl.DataFrame:
        """The lines of all heads (search.analysis.study.condition_lines)."""
        heads = sorted({name for name, _, _ in self.data.summaries if _HEAD.fullmatch(name)}, key=_place)
        parts = [pl.DataFrame()]
        for name in heads:
            scores = self.data.scores.of_name(name)
            layer, head = _place(name)
            series = scores.select("number").unique().with_columns(series=pl.lit(f"layer {layer}, head {head}"))
            parts.append(trace_lines(scores, series))
        found = pl.concat(parts, how="diagonal")
        return found if found.is_empty() else longest_lines(found, self.data.condition, _MOST_PANELS)

    @property
    def applies(self) -> bool:
        return not self.lines.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        caption = (
            "Entropy of attention in nats, by layer and head: means over trials, raw parameters, each with its last "
            "validation, with Student's 95 % intervals. Attention that is even over n items has log n."
        )
        caption += say_shown(self.lines["panel"].n_unique(), self.lines["panels"][0], "numbers of conditions")
        order: list[str] = self.lines["series"].unique(maintain_order=True).to_list()

        def draw(axes: Axes, frame: pl.DataFrame) -> None:
            draw_series(axes, frame, order)
            axes.set_ylabel("entropy")

        svg = draw_panels(panels_of(self.lines), draw, series_keys(order), f"figure{figures.own}")
        yield Picture(number=figures.own, caption=caption, svg=svg)


def _place(name: str) -> tuple[int, int]:
    found = _HEAD.fullmatch(name)
    assert found
    return int(found[1]), int(found[2])
