"""The best trials and their sampled parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from graft.report.rendering.document import Block, Paragraph, Table
from graft.report.rendering.formatting import number, parameter
from graft.report.sections import FigureNumbers, Part, Section
from search.analysis.study.trials import best_trials, compare_parameters
from spaces.reading.transfer_section import has_one_objective


@final
class BestTrials(Section):
    """A column for each of the ten best trials, and the parameters that all of them share."""

    part = Part.RESULTS
    after = "constraints"
    subject = "trials"
    heading = "Best trials"

    @property
    def applies(self) -> bool:
        study = self.data.study
        return not study.get("second_objective") and has_one_objective(study.get("space") or "")

    def findings(self) -> Iterable[str]:
        best = best_trials(self.data.ended, self.data.study["direction"], 1).row(0, named=True)
        yield f"The best trial is {best['number']}, with {self.data.study['objective']} = {number(best['objective'])}."

    def blocks(self, figures: FigureNumbers) -> Iterable[Block]:
        study = self.data.study
        best = best_trials(self.data.ended, study["direction"])
        parameters = compare_parameters(best["params"])
        rows = [
            [study["objective"], *map(number, best["objective"])],
            ["group", *map(str, best["group_number"])],
            ["state", *best["state"]],
            ["steps", *map(number, best["steps"])],
            *([path, *map(parameter, values)] for path, values in parameters.varying.items()),
        ]
        several = f"The {best.height} best trials and their sampled parameters"
        caption = several if best.height > 1 else "The only trial"
        yield Table(caption=caption, header=["Trial", *map(str, best["number"])], rows=rows)
        if parameters.shared:
            pairs = ", ".join(f"{path} = {parameter(value)}" for path, value in parameters.shared.items())
            yield Paragraph(text=f"The same in all of them: {pairs}.")
