"""The reports of a pack's trials: metrics when they are due, and divergence."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import final

import torch

from spaces.records import Fingerprint, Metric, Report
from workers.engine.fingerprints import check_data, fingerprint_of
from workers.engine.pack.evaluation import Evaluation
from workers.engine.pack.lane_data import draw_evaluation_sets
from workers.engine.pack.lane_tensors import LaneTensors
from workers.engine.pack.lanes import NARROWEST, Lanes, LaneTrial
from workers.networks.learned_splines import learned_splines
from workers.numerics.layout import Layout
from workers.numerics.randomness import Purpose
from workers.training.recipe import Recipe


@final
class Reporting:
    """Evaluates lanes of one structure and writes their reports."""

    def __init__(self, recipe: Recipe, layout: Layout, step_kind: str, device: torch.device) -> None:
        """`recipe` and `layout` are those of the pack; `step_kind` is `Step.kind`."""
        self.evaluation = Evaluation(recipe, layout, device)
        self._recipe = recipe
        self._layout = layout
        self._step_kind = step_kind
        self._device = device

    def evaluate(
        self,
        lanes: Lanes,
        tensors: LaneTensors,
        indices: list[int],
        purpose: Purpose = Purpose.VALIDATION_DATA,
    ) -> list[tuple[Metric, ...]]:
        """Return metrics of these lanes on validation or test sets, and on shifted sets."""
        padded = pad_to_power_of_two(indices)
        tensors = tensors.select(padded)
        running = [lanes.trials[index] for index in padded]
        sets = draw_evaluation_sets(self._recipe, running, tensors, purpose)
        recipes = [trial.recipe for trial in running[: len(indices)] if trial]
        return self.evaluation.metrics(tensors, sets, recipes)

    def report_due(self, lanes: Lanes, tensors: LaneTensors, *, without: Collection[int]) -> dict[int, Report]:
        """Return lane index -> due report, validated now, without lanes that diverged."""
        every = self._recipe.training.validate_every
        due = [(at, running) for at, running in lanes.occupied if at not in without and running.report_due(every)]
        if not due:
            return {}
        loss_sums: list[float] = tensors.state.loss_sum.tolist()
        validations = self.evaluate(lanes, tensors, [index for index, _ in due])
        tested = [index for index, running in due if running.tested]
        sealed = self.evaluate(lanes, tensors, tested, Purpose.TEST_DATA) if tested else []
        on_test = dict(zip(tested, sealed, strict=True))
        reports: dict[int, Report] = {}
        for (index, running), metrics in zip(due, validations, strict=True):
            mean_loss = loss_sums[index] / (running.step - running.reported_step)
            if not all(math.isfinite(metric.value) for metric in metrics):
                reports[index] = self._diverged(running, running.step, "a validation metric", metrics)
                continue
            ends = running.step == running.steps
            parameters = self._layout.crop(running.layout, tensors.state.parameters[index]) if ends else {}
            report = Report(
                number=running.number,
                fence=running.fence,
                step=running.step,
                metrics=(*metrics, Metric("loss", "raw", "", mean_loss)),
                state="finished" if ends else "running",
                splines=learned_splines(running.recipe.model, parameters) if ends else (),
                fingerprint=self._fingerprint_of(running),
                sealed=on_test.get(index, ()),
            )
            reports[index] = report
        for index, running in due:  # only now: a report that was not given is due again
            running.reported_step = running.step
            tensors.state.loss_sum[index] = 0
        return reports

    def report_diverged(self, lanes: Lanes, tensors: LaneTensors) -> dict[int, Report]:
        """Return lane index -> report of trials whose training loss was not finite."""
        diverged_at: list[int] = tensors.state.diverged_at.tolist()
        bad = [(at, running) for at, running in lanes.occupied if diverged_at[at]]
        return {at: self._diverged(running, diverged_at[at], "the training loss") for at, running in bad}

    def _diverged(self, running: LaneTrial, step: int, what: str, metrics: tuple[Metric, ...] = ()) -> Report:
        return Report(
            number=running.number,
            fence=running.fence,
            step=step,
            metrics=metrics,
            state="diverged",
            error=f"{what} was not finite at step {step}",
            fingerprint=self._fingerprint_of(running),
        )

    def _fingerprint_of(self, running: LaneTrial) -> Fingerprint:
        check_data(running.recipe)
        if running.fingerprint is None:
            running.fingerprint = fingerprint_of(running.recipe, self._step_kind, self._device)
        return running.fingerprint


def pad_to_power_of_two(indices: list[int]) -> list[int]:
    """Return the indices, and the first of them again up to a power of two.

    A recording of a width (`workers.numerics.tracing`) costs as much as many validations, and the
    number of lanes that are due together changes from one call to the next.
    """
    width = max(NARROWEST, 1 << (len(indices) - 1).bit_length())
    return (indices + indices[:1] * width)[:width]
