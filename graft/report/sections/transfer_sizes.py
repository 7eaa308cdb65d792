"""The objective over a size of the model in which targets differ (paper 002, Figures 4, 7, 13 and 14)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.lines import draw_line, draw_panels, scale_numbers
from graft.report.rendering.document import Block, Picture
from graft.report.rendering.drawing import arm_colour, fit_scale
from graft.report.sections import FigureNumbers, Part, say_shown
from graft.report.sections._transfers import TransferSection
from search.analysis.statistics.intervals import mean_with_interval
from spaces.transfer import BASELINE

_SIZES = ("model.width", "model.depth")
"""What a line goes over; where both differ, over the first, with a panel for each of the second."""
_FEWEST = 2
_MOST_PANELS = 9


@final
class TransferSizes(TransferSection):
    """A panel for each task and depth, a line over widths (or over depths) for each source."""

    part = Part.FIGURES
    order = 84
    figures = 4

    @cached_property
    def lines(self) -> pl.DataFrame:
        """Lines of targets on equal data: kind, panel, across, source, x, trials, mean, low, high.

        Of the kinds, `score` is the objective, `gain` the difference to the baseline of the same
        pair, in the direction of the objective, and `training`, of objectives that are
        perplexities, exp(loss) over the steps since the last validation, with the gain of that in
        `training_gain` (paper 002, Figures 13 and 14).
        """
        by_data: dict[str, list[str]] = {}
        for target in self.targets:
            by_data.setdefault(self.data_of(target), []).append(target)
        places = [
            {"target": target, "panel": panel, "across": across, "x": float(self.size_of(target, across))}
            for targets in by_data.values()
            for across, groups in self._sweeps(targets).items()
            for panel, own in groups.items()
            for target in own
        ]
        schema = {"target": pl.String, "panel": pl.String, "across": pl.String, "x": pl.Float64}
        scores = self.stage_two.join(self.data.ended.select("number", value="objective"), on="number")
        placed = scores.join(pl.DataFrame(places, schema=schema), on="target")
        # The perplexity of training, on tasks whose objective is a perplexity.
        tasks = self.data.transfer_tasks
        asked = [name for name in self.targets if tasks[name].objective.metric == "perplexity"]
        losses = self.data.scores.of_name("loss", "^$").filter(pl.col("variant") == "raw")
        perplexity = losses.select("number", value=pl.col("last").exp())
        training = placed.filter(pl.col("target").is_in(asked)).drop("value").join(perplexity, on="number")
        kinds = {
            "score": placed, "gain": self._gains(placed), "training": training, "training_gain": self._gains(training),
        }  # fmt: skip
        every = [frame.select(placed.columns).with_columns(kind=pl.lit(kind)) for kind, frame in kinds.items()]
        by = ("kind", "panel", "across", "source", "x")
        return pl.concat(every).group_by(by).agg(**mean_with_interval()).sort(by)

    def _gains(self, values: pl.DataFrame) -> pl.DataFrame:
        """Return each value less the baseline's of the same target and pair, above 0 better."""
        maximized = [name for name, one in self.data.transfer_tasks.items() if one.objective.direction == "maximize"]
        baseline = values.filter(pl.col("source") == BASELINE).select("target", "pair", baseline="value")
        others = values.filter(pl.col("source") != BASELINE).join(baseline, on=["target", "pair"])
        sign = pl.when(pl.col("target").is_in(maximized)).then(1.0).otherwise(-1.0)
        return others.with_columns(value=sign * (pl.col("value") - pl.col("baseline"))).drop("baseline")

    def _sweeps(self, targets: list[str]) -> dict[str, dict[str, list[str]]]:
        """Return the size over which lines go -> title of a panel -> its targets; empty where none differs."""
        differing = [path for path in _SIZES if len({self.size_of(target, path) for target in targets}) >= _FEWEST]
        if not differing or any(self.size_of(target, path) is None for target in targets for path in differing):
            return {}
        across, *others = differing
        groups: dict[str, list[str]] = {}
        for target in targets:
            fixed = [f"{path.partition('.')[2]} {self.size_of(target, path)}" for path in others]
            parts = (self.size_of(target, f"task.{path}") for path in ("name", "corpus.name", "tokenizer.name"))
            title = " ".join(str(part) for part in parts if part)
            groups.setdefault("\n".join([title, *fixed]), []).append(target)
        return {across: groups}

    @property
    def applies(self) -> bool:
        return super().applies and not self.lines.is_empty()

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        captions = {
            "score": "The objective of targets of several sizes: means over pairs",
            "gain": "The gain over the baseline of the same size and pair, above 0 better: means over pairs",
            "training": "The perplexity of training, exp(loss) before the last validation: means over pairs",
            "training_gain": "The gain in perplexity of training over the baseline of the same size and pair, above 0 "
            "better: means over pairs",
        }
        for place, (kind, caption) in enumerate(captions.items(), figures.own):
            lines = self.lines.filter(pl.col("kind") == kind)
            panels = [(str(title), own) for (title,), own in lines.group_by("panel", maintain_order=True)]
            keys = self.keys_of(lines["source"].unique().to_list())
            if panels:
                svg = draw_panels(panels[:_MOST_PANELS], self._draw, keys, f"figure{place}")
                caption += ", with Student's 95 % intervals as bands."
                caption += say_shown(min(len(panels), _MOST_PANELS), len(panels), "tasks and sizes")
                yield Picture(number=place, caption=caption, svg=svg)

    def _draw(self, axes: Axes, frame: pl.DataFrame) -> None:
        for source in self.sources:
            own = frame.filter(pl.col("source") == source)
            if not own.is_empty():
                draw_line(axes, own, arm_colour(self.sources.index(source)))
        kind: str = frame["kind"][0]
        metrics = {self.data.transfer_tasks[target].objective.metric for target in self.targets}
        metric = "perplexity of training" if "training" in kind else "objective" if len(metrics) > 1 else metrics.pop()
        axes.set_ylabel(f"gain in {metric}" if "gain" in kind else metric)
        if "gain" in kind:
            axes.axhline(0, color=arm_colour(0), linewidth=1.2)
        scale_numbers(axes, frame["x"].to_list())
        fit_scale(axes, frame["mean"].to_list())
        axes.set_xlabel(frame["across"][0].partition(".")[2])
