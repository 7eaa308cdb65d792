"""The objective over a size of the model in which targets differ (paper 002, Figures 4, 7, 13 and 14)."""

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
"""What a line goes over; where both differ, over the first, with a panel for each of the second."""
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

        Of the kinds, `score` is the objective, `gain` the difference to the baseline of the same
        pair, in the direction of the objective, and `training`, of objectives that are
        perplexities, exp(loss) over the steps since the last validation, with the gain of that in
        `training_gain` (paper 002, Figures 13 and 14).
        """
        by_data: dict[str, list[str]] = {}
        for target in self.targets:
            by_data.setdefault(self.data_of(target), []).append(target)
        places = [
            {"target": target, "title": title, "across": path.partition(".")[2], "x": float(self.size_of(target, path))}
            for targets in by_data.values()
            for path, groups in self._sweeps(targets).items()
            for title, own in groups.items()
            for target in own
        ]
        schema = {"target": pl.String, "title": pl.String, "across": pl.String, "x": pl.Float64}
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
        series = pl.col("source").cast(pl.Enum(self.sources)).alias("series")
        by = ("kind", "title", "across", "series", "x")
        return pl.concat(every).with_columns(series).group_by(by).agg(**mean_with_interval()).sort(by)

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

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        metrics = {self.data.transfer_tasks[target].objective.metric for target in self.targets}
        objective = "objective" if len(metrics) > 1 else metrics.pop()
        for number, (kind, caption) in enumerate(_CAPTIONS.items(), figures.own):
            lines = self.lines.filter(pl.col("kind") == kind)
            metric = "perplexity of training" if "training" in kind else objective
            label = f"gain in {metric}" if "gain" in kind else metric
            if lines.height:
                yield self.picture(number, lines, f"{caption}, with Student's 95 % intervals as bands.", label)

    def draw(self, axes: Axes, lines: pl.DataFrame, looks: Looks) -> None:
        super().draw(axes, lines, looks)
        if "gain" in lines["kind"][0]:
            axes.axhline(0, color=arm_colour(0), linewidth=1.2)
