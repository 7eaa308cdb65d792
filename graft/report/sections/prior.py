"""The prior of a search: where the winners lay, and the cost of a cold search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import number
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.prior_use import BY_HAND, UNRESTRICTED, ColdCost, PriorUse

_NAMES = {
    UNRESTRICTED: "drawn at random",
    "proposed": "proposed",
    "candidates": "of the candidates",
    "box": "of the box",
    BY_HAND: "added by hand",
}


@final
class PriorSection(Section):
    """The account of a prior, for studies with the sampler `learned` or a warm start."""

    part = Part.RESULTS
    after = "pareto_front"
    subject = "trials"
    heading = "What the prior did"
    notes = (
        "Of a prior: unrestricted trials are random draws of the whole space. The interval of the probability that a "
        "proposed trial is better is Newcombe's (2006, method 5), as of independent trials. The trials that random "
        "search needs are the inverse of the share of unrestricted trials as good as the best, with Clopper and "
        "Pearson's 95 % interval of the share; a trial that was stopped early counts with the result it had, and "
        "one that is not feasible as the worst.",
    )

    @property
    def applies(self) -> bool:
        return self.data.prior is not None

    @property
    def _use(self) -> PriorUse:
        assert self.data.prior, "the section applies to a study with a prior"
        return self.data.prior

    def findings(self) -> Iterable[str]:
        use = self._use
        cold, here = use.cold, f"this search had it within {number(use.best_number + 1)}"
        if not isinstance(cold, ColdCost):
            cost = f"What a cold search would have cost cannot be known: {cold}."
        else:
            low, among = number(round(cold.low)), f"by {number(cold.among)} unrestricted trials"
            most = f"at least {low} trials on average to be as good (95 %, {among})"
            if cold.trials is not None:
                high = "no upper end" if cold.high is None else number(round(cold.high))
                mean = number(round(cold.trials))
                most = f"{mean} trials on average to be as good ({low} to {high}, {among})"
            cost = f"Random search needs {most}; {here}."
        yield f"The best trial is one of those {_NAMES[use.best_origin]}. {cost}"

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        use = self._use
        yield Paragraph(text=" ".join(use.said))
        rows = [
            [_NAMES[origin.name], *map(number, (origin.trials, origin.best, origin.median_rank, origin.winners))]
            for origin in use.origins
        ]
        header = ["Trials", "Ended", f"Best {self.data.study['objective']}", "Median rank", "Among the best tenth"]
        words = "Trials by their origin; ranks are of all that ended, 1 the best"
        yield Table(caption=words, header=header, rows=rows)
        if use.better is None:
            yield Paragraph(text="Proposed and unrestricted trials are too few to be compared.")
            return
        chance, low, high = (f"{100 * value:.0f}" for value in use.better)
        verdict = "better" if use.better[1] > 0.5 else "worse" if use.better[2] < 0.5 else "not told apart"
        yield Paragraph(
            text=f"A proposed trial is better than an unrestricted one with a probability of {chance} % "
            f"({low} to {high}): {verdict}."
        )
