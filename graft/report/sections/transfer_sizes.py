"""The objective over a size of the model in which targets differ (002, Figures 4, 7, 13, 14)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import polars as pl
from matplotlib.axes import Axes

from graft.report.rendering.document import Block
from graft.report.rendering.drawing import arm_colour
from graft.report.sections import FigureNumbers
from graft.report.sections._lines import Looks
from graft.report.sections._transfers import TransferFigure
from search.analysis.statistics.intervals import mean_with_interval
from spaces.transfer import BASELINE

_SIZES = ("model.width", "model.depth")
"""Sizes that a line goes over; where both differ, the first, with a panel for each second."""
_FEWEST = 2
_CAPTIONS = {
    "score": "The objective of targets of several sizes: means over pairs",
    "gain": "The gain over the baseline of the same size and pair, above 0 better: means over pairs",
    "training": "The perplexity of training, exp(loss) before the last validation: means over pairs",
    "training_gain": "The gain in perplexity of training over the baseline of the same size and pair, above 0 better: "
    "means over pairs",
}


@final
class TransferSizes(TransferFigure):
    """A panel for each task and depth, a line over widths (or over depths) for each source."""

    after = "transfer_curves"
    figures = len(_CAPTIONS)
    most = 9
    panels_are = "tasks and sizes"
    label_all = True

    def read_lines(self) -> pl.DataFrame:
        """Return lines of targets on equal data, with `kind`, one of _CAPTIONS.

        `score` is the objective, `gain` its difference to the baseline of the same pair, above 0
        better, `training`, of perplexities, exp(loss) over the steps since the last validation, and
        `training_gain` the gain of that (paper 002, Figures 13 and 14).
        """
        by_data: dict[str, list[str]] = {}
        for target in self.targets:
            by_data.setdefault(self.data_of(target), []).append(target)
        places = [
            (target, title, path.partition(".")[2], float(self.size_of(target, path)))
            for targets in by_data.values()
            for path, groups in self._sweeps(targets).items()
            for title, members in groups.items()
            for target in members
        ]
        schema = {"target": pl.String, "title": pl.String, "across": pl.String, "x": pl.Float64}
        objectives = self.data.ended.select("number", value="objective")
        sizes = pl.DataFrame(places, schema=schema, orient="row")
        placed = self.stage_two.join(objectives, on="number").join(sizes, on="target")
        # The perplexity of training, on tasks whose objective is a perplexity.
        tasks = self.data.transfer_tasks
        asked = [name for name in self.targets if tasks[name].objective.metric == "perplexity"]
        losses = self.data.scores.of_name("loss", "^$").filter(pl.col("variant") == "raw")
        perplexity = losses.select("number", value=pl.col("last").exp())
        values = placed.filter(pl.col("target").is_in(asked)).drop("value")
        training = values.join(perplexity, on="number")
        kinds = {"score": placed, "gain": self._gains(placed)}
        kinds |= {"training": training, "training_gain": self._gains(training)}
        every = [frame.select(placed.columns).with_columns(kind=pl.lit(kind)) for kind, frame in kinds.items()]
        series = pl.col("source").cast(pl.Enum(self.sources)).alias("series")
        by = ("kind", "title", "across", "series", "x")
        points = pl.concat(every).with_columns(series).group_by(by)
        return points.agg(**mean_with_interval()).sort(by)

    def _gains(self, values: pl.DataFrame) -> pl.DataFrame:
        """Return each value less the baseline's of the same target and pair, above 0 better."""
        tasks = self.data.transfer_tasks.items()
        maximized = [name for name, task in tasks if task.objective.direction == "maximize"]
        is_baseline = pl.col("source") == BASELINE
        baseline = values.filter(is_baseline).select("target", "pair", baseline="value")
        others = values.filter(~is_baseline).join(baseline, on=["target", "pair"])
        change = pl.col("value") - pl.col("baseline")
        gain = pl.when(pl.col("target").is_in(maximized)).then(change).otherwise(-change)
        return others.with_columns(value=gain).drop("baseline")

    def _sweeps(self, targets: list[str]) -> dict[str, dict[str, list[str]]]:
        """Return the size that lines go over -> panel's title -> targets; {} if none differs."""
        sizes = {path: [self.size_of(target, path) for target in targets] for path in _SIZES}
        differing = [path for path, numbers in sizes.items() if len(set(numbers)) >= _FEWEST]
        if not differing or any(None in sizes[path] for path in differing):
            return {}
        across, *others = differing
        groups: dict[str, list[str]] = {}
        for target in targets:
            fixed = [f"{path.partition('.')[2]} {self.size_of(target, path)}" for path in others]
            facts = ("task.name", "task.corpus.name", "task.tokenizer.name")
            title = " ".join(str(part) for fact in facts if (part := self.size_of(target, fact)))
            groups.setdefault("\n".join([title, *fixed]), []).append(target)
        return {across: groups}

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        metrics = {self.data.transfer_tasks[target].objective.metric for target in self.targets}
        objective = "objective" if len(metrics) > 1 else metrics.pop()
        for number, (kind, caption) in enumerate(_CAPTIONS.items(), figures.own):
            lines = self.lines.filter(pl.col("kind") == kind)
            metric = "perplexity of training" if "training" in kind else objective
            label = f"gain in {metric}" if "gain" in kind else metric
            if lines.height:
                text = f"{caption}, with Student's 95 % intervals as bands."
                yield self.picture(number, lines, text, label)

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        super().draw(axes, lines, looks)
        if "gain" in lines["kind"][0]:
            axes.axhline(0, color=arm_colour(0), linewidth=1.2)
