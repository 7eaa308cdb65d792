"""The arms of an experiment under each condition, compared with the baseline seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

import polars as pl

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import MISSING, number, with_interval
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.arms.comparison import ArmComparison
from search.analysis.arms.experiment import Choice, ComparedTrials, confirmations
from search.analysis.metrics import UNBOUNDED, range_of
from search.analysis.statistics.paired import FEWEST_OF_VERDICT
from search.analysis.statistics.verdicts import UNDECIDED

_CHOICES: Mapping[Choice, str] = {
    "best": "with the best of its configurations, chosen by these very seeds, so that its scores are flattered; "
    "`confirm:` in the space trains the chosen ones from fresh seeds",
    "confirmed": "with the best of its configurations, trained again from fresh seeds",
}
_SCORES = ("Condition", "Arm", "Finished", "Diverged", "Mean", "Middle half", "Least to most")


@final
class Arms(Section):
    """The table of arms, its findings, and the part of the best scores left on fresh seeds."""

    part = Part.RESULTS
    after = ""
    subject = "arms"
    heading = "Arms"
    notes = (
        "Arms: a difference is an arm minus the baseline over the seeds that both finished, with Student's paired 95 % "
        "interval. A seed that diverged loses to one that finished. P(better) is the probability that a trial of the "
        "arm is better than one of the baseline. p (t) is the paired t-test; p (signs) flips the signs of the "
        "differences, assumes no normality, and cannot be below 2 / 2^n with n seeds. The adjusted p is Holm's over "
        "all rows of the table that can have a verdict: of p (t); of the larger of both where at most half of the "
        "differences are distinct; and with three or four seeds of the larger of p (t) and that by the spread of all "
        "arms. Two seeds give no verdict, and three none on a share of right answers, nor where values are equal. "
        "Without any effect, at most one table in twenty has a verdict; that was tested with 2 to 8 seeds, 2 to 6 arms "
        "and three conditions, on normal and on skewed numbers, on accuracies of 16, 32 and 256 answers, and on models "
        "of which each finds a trick or does not (`python -m benchmarks.statistics`).",
    )

    def findings(self) -> Iterable[str]:
        experiment = self.data.require_experiment()
        is_other = pl.col("arm") != experiment.comparison.baseline
        rows = experiment.comparison.table.filter(pl.col("condition") == experiment.condition, is_other)
        for row in rows.iter_rows(named=True):
            yield describe(row, experiment.comparison, self.data.study["objective"])

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        experiment = self.data.require_experiment()
        comparison, objective = experiment.comparison, self.data.study["objective"]
        table = comparison.table.with_columns(shown=pl.col("condition").replace("", "validation"))
        scores = [_score(row) for row in table.iter_rows(named=True)]
        caption = f"{experiment.label} of each arm"
        yield Table(caption=caption, header=_SCORES, rows=scores, labels=2)
        compared = table.filter(pl.col("arm") != comparison.baseline)
        if compared.height:
            caption = f"Differences of {experiment.label} from {comparison.baseline}"
            differences = [_difference(row) for row in compared.iter_rows(named=True)]
            header = ["Condition", "Arm", "Difference", "Verdict", "Seeds won / even / lost"]
            header += ["P(better)", "p (t)", "p (signs)", "Adjusted p"]
            yield Table(caption=caption, header=header, rows=differences, labels=2)
        fewest = comparison.table["smallest_p"].max()
        text = f"Over {experiment.seeds} seeds.{_say_how_chosen(experiment.compared)}"
        if isinstance(fewest, float) and fewest > 1 - comparison.confidence and comparison.table["verdict"].count():
            text += f" So few seeds cannot have p (signs) below {number(fewest)}: the verdicts rest on normality."
        bounds = range_of(experiment.metric)
        if bounds != UNBOUNDED:
            text += f" Intervals of {experiment.metric}, which is between 0 and 1, are cut where they leave its range."
        yield Paragraph(text=text)
        if "confirmed" in experiment.compared.choices.values():
            confirmed = confirmations(experiment.arms, experiment.direction, bounds)
            rows = [
                [arm, number(rank + 1), number(chosen), with_interval(mean, low, high), number(trials)]
                for arm, rank, chosen, trials, mean, low, high in confirmed.rows()
            ]
            header = ["Arm", "Rank", "When chosen", "On fresh seeds", "Seeds"]
            caption = f"What is left of {objective} on fresh seeds"
            yield Table(caption=caption, header=header, rows=rows)


def _say_how_chosen(compared: ComparedTrials) -> str:
    """Return sentences on the arms that stand for one of several configurations."""
    sentences: list[str] = []
    for choice, words in _CHOICES.items():
        arms = [arm for arm, way in compared.choices.items() if way == choice]
        if arms:
            who = "Each arm" if len(arms) == len(compared.choices) else f"Each of {', '.join(arms)}"
            sentences.append(f" {who} stands here {words}.")
    return "".join(sentences)


def describe(row: Mapping[str, Any], comparison: ArmComparison, objective: str) -> str:
    """Return what a row of the comparison says of its arm, in a sentence."""
    if row["difference"] is None or row["pairs"] < 2:
        return f"{row['arm']} and {comparison.baseline} have too few seeds in common to be compared."
    low, high = row["difference_low"], row["difference_high"]
    interval = "each by the same, so that there is no interval" if low is None else f"{number(low)} to {number(high)}"
    numbers = f"{objective} differs by {number(row['difference'])} ({interval}, {row['pairs']} paired seeds"
    if row["verdict"] is None:
        return (
            f"{row['arm']} and {comparison.baseline} have too few seeds for a verdict: {numbers}; {FEWEST_OF_VERDICT} "
            "or more can give one)."
        )
    count = comparison.table["q"].count()
    adjusted = f"adjusted p {number(row['q'])}{f' of {count} comparisons' if count > 1 else ''}"
    verdict = "not told apart from" if row["verdict"] == UNDECIDED else f"{row['verdict']} than"
    return f"{row['arm']} is {verdict} {comparison.baseline}: {numbers}, {adjusted})."


def _score(row: Mapping[str, Any]) -> list[str]:
    return [
        row["shown"],
        row["arm"],
        number(row["finished"]),
        number(row["diverged"]),
        with_interval(row["mean"], row["low"], row["high"]),
        number(row["interquartile_mean"]),
        MISSING if row["least"] is None else f"{number(row['least'])} to {number(row['most'])}",
    ]


def _difference(row: Mapping[str, Any]) -> list[str]:
    return [
        row["shown"],
        row["arm"],
        with_interval(row["difference"], row["difference_low"], row["difference_high"]),
        row["verdict"] or MISSING,
        MISSING if row["wins"] is None else f"{row['wins']} / {row['ties']} / {row['losses']}",
        number(row["improvement"]),
        number(row["p"]),
        number(row["p_sign_flip"]),
        number(row["q"]),
    ]
