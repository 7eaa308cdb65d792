"""Appendix J of paper 004 with a calibrated factor: temperatures estimated from the moments of logits.

    python -m benchmarks.papers.calibrated --database papers.db

Trains the plan's study `calibrated` where it is not in the database, and each of its trials again for its
weights. The appendix says that the temperature is proportional to the second moment of the logits over their
mean. Here each head has a factor of its own, by which its estimate is 1 like in training. Under a shift it is a
number for each prompt, or one for all prompts. Moments are taken at temperature 1. docs/experiments/paper-004.md
has what was planned and what came out.

Legend: h heads, N prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

import graft
from benchmarks.papers.trials import trained_study
from search.analysis.statistics.corrections import adjust_p
from search.analysis.statistics.paired import summarize_differences
from spaces.plugins import replace
from workers.engine.trained_model import TrainedModel
from workers.networks.scorers import LogitScorer, masked_softmax, scaled_logits
from workers.networks.scorers._estimated import moments, positive_or_one
from workers.numerics.parameters import Parameters

STUDY = "calibrated"
SHIFTS = ("", "input_scale=3", "input_scale=9", "noise=1")


@dataclass(frozen=True, kw_only=True)
class GivenSoftmax(LogitScorer):
    """Softmax at the temperatures [N, h, 1, 1] that it is given as if they were learned."""

    def weigh(self, logits: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(logits / learned["temperature"], visible)


Moments = Sequence[tuple[Tensor, Tensor]]
"""Mean and second moment of logits, [N, h] each, of each layer."""


def read_moments(model: TrainedModel, condition: str) -> Moments:
    """Return the moments of the logits by which the model attends under a condition at temperature 1."""
    parameters, evaluated = dict(model.named_parameters()), model.recipe.model.evaluations()[""]
    layers = evaluated.attention(parameters, model.batch(condition))
    pairs = (moments(scaled_logits(layer.query, layer.key), layer.visible) for layer in layers)
    return [(first[..., 0, 0], second[..., 0, 0]) for first, second in pairs]


def estimate_by_prompt(training: Moments, shifted: Moments) -> list[Tensor]:
    """Return each layer's temperatures [N, h]: a prompt's ratio over the median of the ratios like in training."""
    temperatures = list[Tensor]()
    for (first, second), (mean, square) in zip(training, shifted, strict=True):
        ratio = second / first
        usual = torch.where((ratio > 0) & ratio.isfinite(), ratio, torch.nan).nanmedian(0).values
        temperatures.append(positive_or_one(square / mean / usual))
    return temperatures


def estimate_by_shift(training: Moments, shifted: Moments) -> list[Tensor]:
    """Return each layer's temperatures [1, h]: the ratio of all prompts' moments over the one like in training."""
    return [
        positive_or_one((square.mean(0) / mean.mean(0)) / (second.mean(0) / first.mean(0)))[None]
        for (first, second), (mean, square) in zip(training, shifted, strict=True)
    ]


@torch.no_grad()
def errors(model: TrainedModel) -> Mapping[tuple[str, str], float]:
    """Return the error by shift and by way: at temperature `1`, at temperatures `by prompt` and `by shift`."""
    parameters, task = dict(model.named_parameters()), model.recipe.task
    plain = model.recipe.model.evaluations()[""]
    given, training = replace(plain, {"scorer": GivenSoftmax()}), read_moments(model, "")
    means = dict[tuple[str, str], float]()
    for shift in SHIFTS:
        batch, shifted = model.batch(shift), read_moments(model, shift)
        ways = {"by prompt": estimate_by_prompt(training, shifted), "by shift": estimate_by_shift(training, shifted)}
        outputs = {"1": plain.outputs(parameters, batch, {})}
        for way, temperatures in ways.items():
            scales = {
                f"layers.{at}.scorer.temperature": temperature[..., None, None]
                for at, temperature in enumerate(temperatures)
            }
            outputs[way] = given.outputs(parameters | scales, batch, {})
        means |= {(shift, way): float(task.metrics(output, batch)["error"].mean()) for way, output in outputs.items()}
    return means


def measure_study(study: graft.Study) -> pl.DataFrame:
    """Train each trial again and return its errors: columns number, shift, way, error.

    The way `best` is the least error of the trial's grid of temperatures.
    """
    grid = study.metrics().filter((pl.col("name") == "error") & (pl.col("step") == pl.col("step").max()))
    rows = list[dict[str, object]]()
    for number in sorted(grid["number"].unique()):
        model = study.model(number)
        for (shift, way), error in errors(model).items():
            rows.append({"number": number, "shift": shift, "way": way, "error": error})
        values = grid.filter(pl.col("number") == number)
        for shift in SHIFTS:
            tried = values.filter(_at_temperature(shift))
            rows.append({"number": number, "shift": shift, "way": "best", "error": tried["value"].min()})
    return pl.DataFrame(rows)


def _at_temperature(shift: str) -> pl.Expr:
    """Select the conditions of a shift at 1 and at the temperatures of the grid."""
    words = pl.col("condition").str.split(" ").list
    others = words.set_difference(shift.split()).list.eval(pl.element().filter(pl.element() != "")).list
    there = pl.all_horizontal(pl.lit(value=True), *(words.contains(word) for word in shift.split()))
    is_number = others.join(" ").str.contains(r"^temperature=[0-9.]+$")
    return there & ((others.len() == 0) | is_number)


def describe(trials: pl.DataFrame) -> str:
    """Return the table: means, differences from temperature 1 with 95 % intervals, p adjusted by Holm."""
    values = {key: rows.sort("number")["error"].to_numpy() for key, rows in trials.group_by("shift", "way")}
    ways = ("by prompt", "by shift")
    pairs = [(shift, way) for shift in SHIFTS for way in ways if shift or way == "by prompt"]
    differences = [summarize_differences(values[pair] - values[pair[0], "1"]) for pair in pairs]
    adjusted = adjust_p(np.array([gap.p for gap in differences]))
    lines = [
        "| shift | at 1 | best of the grid | estimated | error | difference from 1 (95 %) | adjusted p |",
        "|---|---|---|---|---|---|---|",
    ]
    for (shift, way), gap, p in zip(pairs, differences, adjusted, strict=True):
        at_one, best, error = (f"{values[shift, name].mean():.3g}" for name in ("1", "best", way))
        difference = f"{gap.mean:+.3g} ({gap.low:.3g} to {gap.high:.3g})"
        lines.append(f"| {' | '.join([shift or 'none', at_one, best, way, error, difference, f'{p:.2g}'])} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    print(describe(measure_study(trained_study(STUDY, __doc__))))


if __name__ == "__main__":
    main()
