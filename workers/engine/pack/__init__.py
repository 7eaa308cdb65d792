"""A pack: the stacked training of many trials on one device, one step (`workers.engine.step`) for all of them.

What it is made of: `lanes` says which trial is at which lane index and how far it is, `lane_tensors` holds the stacked
tensors, `lane_data` draws the data, `lineage` says how copies get their state, `saved_states` writes and finds
checkpoints, `evaluation` computes metrics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from spaces.records import Ancestor, Fingerprint, Metric, Report, Trial
from workers.engine.checkpoints import Archive, Snapshot
from workers.engine.fingerprints import fingerprint_of
from workers.engine.pack.evaluation import Evaluation
from workers.engine.pack.lane_data import draw_evaluation_sets, draw_training_batch
from workers.engine.pack.lane_tensors import LaneTensors, initial_parameters
from workers.engine.pack.lanes import Lane, Lanes
from workers.engine.pack.lineage import line_of_descent
from workers.engine.pack.saved_states import find_saved_state, take_snapshot
from workers.engine.process import flush_subnormals
from workers.engine.step import step_of
from workers.networks.architectures import architectures
from workers.training.recipe import Recipe, initial_state, layout_of

NARROWEST = 2
"""A pack never has fewer lanes: matrix products of one lane take another kernel, with other rounding."""

CHECK_STEPS = 50
"""Steps between looks at the clock and at diverged lanes."""


class Pack:
    """Trials of one structure, training together.

    A lane's numbers depend on its trial alone: data, dropout and initial parameters come from counter-based streams of
    the trial's seed at the trial's own step, and no operation mixes lanes. So a checkpoint has to hold a lane's `State`
    and nothing else: there is no random generator and no position in the data to be kept.
    """

    def __init__(self, trial: Trial, *, width: int, device: str = "cpu", archive: Archive | None = None) -> None:
        """A pack for trials of this one's structure; `archive`: where checkpoints of trials are read."""
        self.structure = trial.structure
        self._device = torch.device(device)
        self._archive = archive
        self._recipe = Recipe.of(trial.config).padded()
        self._layout = layout_of(self._recipe, self._device)
        self._lanes = Lanes(max(width, NARROWEST))
        self._tensors = LaneTensors.of_copies(trial, self._recipe, self._layout, self.width, self._device)
        self._step = step_of(self._recipe, self.structure, self._device)
        self._evaluation = Evaluation(self._recipe, self._layout, self._device)
        self._model_steps = self._lane_steps = 0

    @property
    def lanes(self) -> Sequence[Lane | None]:
        """By lane index; None where a lane is free."""
        return self._lanes.slots

    @property
    def width(self) -> int:
        return len(self.lanes)

    @property
    def width_seconds(self) -> float:
        """What the last new width cost, in seconds."""
        return self._step.width_seconds

    @property
    def running(self) -> dict[int, int]:
        """Number of each trial in training -> its lane index."""
        return self._lanes.indices

    @property
    def free(self) -> int:
        """How many lanes are free."""
        return self._lanes.slots.count(None)

    def fill(self, trials: Iterable[Trial]) -> None:
        """Start trials of this pack's structure in free lanes.

        A trial with a checkpoint that is whole resumes from the newest. A copy of another trial takes its parent's
        state from the parent's lane, or trains its ancestors first. The numbers are the same in all three cases.
        """
        # A file has the states of many trials of the pack; it is read once for all of them.
        read_snapshot = functools.cache(lambda path, sha256: self._archive and self._archive.read(path, sha256))
        for trial in trials:
            assert trial.structure == self.structure, "a pack trains one structure"
            index, lane = self._lanes.first_free, Lane.of(trial)
            if saved := find_saved_state(trial, self.structure, self._tensors, read_snapshot):
                self._tensors.assign(index, trial, lane.recipe)
                for name, stacked in self._tensors.named_state().items():
                    stacked[index] = saved.tensors[name]
                lane.step, lane.reported_step = saved.lane.step, saved.lane.reported_step
            elif (parent := self._lanes.find_parent(trial)) is not None:
                self._tensors.set_state(index, self._tensors.state_of(parent))
                self._take_over(index, lane, trial)
                lane.step = lane.reported_step = trial.parent_step
            else:
                (_, first), *lane.takeovers = line_of_descent(trial)
                self._take_over(index, lane, first)
                start = initial_parameters(first, self._recipe, self._layout, self._device)
                self._tensors.set_state(index, initial_state(lane.recipe, self._layout, start))
            lane.start_step = lane.step
            self._lanes.slots[index] = lane

    def release(self, numbers: Iterable[int]) -> None:
        """Free the lanes of these trials; numbers that are not here are ignored."""
        self._lanes.release(numbers)

    def resize(self, width: int) -> None:
        """Change the number of lanes, moving running trials to the front; their numbers do not change."""
        width = max(width, NARROWEST)
        if width == self.width:
            return
        running = list(self.running.values())
        assert len(running) <= width, "running trials must fit"
        # All new tensors are made before one is replaced: should memory run out, the pack is as it was.
        self._tensors = self._tensors.select((running + [0] * width)[:width])
        self._lanes.resize(width)

    @flush_subnormals()
    def train(self, most: int) -> list[Report]:
        """Train every lane up to the next report of any lane, at most `most` steps; release the trials that end.

        Returns the reports due at the step reached, and those of trials found to have diverged on the way. An error, as
        when memory runs out, leaves every lane after its last whole step; what was due then is due at the next call.
        """
        lanes = self._lanes.occupied
        every = self._recipe.training.validate_every
        count = min([most, *(lane.steps_until_report(every) for _, lane in lanes)])
        made = 0
        try:
            while made < count:
                self._reset_parts(lanes, made)
                batch = draw_training_batch(self._recipe, self.lanes, self._tensors)
                tensors = self._tensors
                tensors.state = self._step(tensors.knobs, tensors.seeds, tensors.state, batch)
                made += 1
        finally:
            self._model_steps += made * len(lanes)
            self._lane_steps += made * self.width
            for _, lane in lanes:
                lane.step += made
        diverged_at: list[int] = self._tensors.state.diverged_at.tolist()
        diverged = [
            self._diverged_report(lane, diverged_at[index], "the training loss")
            for index, lane in lanes
            if diverged_at[index]
        ]
        due = self._due_reports(without={report.number for report in diverged})
        self.release(report.number for report in (*diverged, *due) if report.state != "running")
        for index, lane in self._lanes.occupied:
            if lane.takeovers and lane.takeovers[0].step == lane.step:
                self._take_over(index, lane, lane.takeovers.pop(0).trial)
                lane.reported_step = lane.step
        return diverged + due

    def take_counts(self) -> tuple[int, int]:
        """Model-steps made since the last call by trials, and by all lanes, idle ones included."""
        counts = self._model_steps, self._lane_steps
        self._model_steps = self._lane_steps = 0
        return counts

    def snapshot(self) -> Snapshot | None:
        """The states of the trials that have trained here, for `Archive.write`; None if there is none."""
        return take_snapshot(self.structure, self._lanes, self._tensors)

    def parameters(self, number: int) -> dict[str, Tensor]:
        """The current parameters of a running trial, by name; without padding."""
        index, lane = self._lanes.find(number)
        return self._layout.crop(lane.layout, self._tensors.state.parameters[index])

    def set_parameters(self, number: int, named: Mapping[str, Tensor]) -> None:
        """Replace a running trial's parameters, for example by weights built by hand."""
        index, lane = self._lanes.find(number)
        stacked = self._tensors.state.parameters
        stacked[index] = self._layout.pad(lane.layout, lane.layout.join(named)).to(stacked)

    @flush_subnormals()
    def weights(self, index: int, trial: Trial) -> dict[str, dict[str, Tensor]]:
        """Variant (`raw`, `bema kappa=0.3 eta=0.1`) -> parameters by name, of the trial that this lane trained last."""
        own = layout_of(Recipe.of(trial.config))
        tensors = self._tensors.select(_pad_to_power_of_two([index]))
        variants = self._evaluation.variants(tensors)
        return {variant.label: self._layout.crop(own, flat[0]) for variant, flat in variants}

    @flush_subnormals()
    def evaluate(self, numbers: Iterable[int]) -> dict[int, tuple[Metric, ...]]:
        """Validate these running trials now."""
        indices = {number: self.running[number] for number in numbers}
        return dict(zip(indices, self._evaluate_lanes(list(indices.values())), strict=True))

    def _take_over(self, index: int, lane: Lane, trial: Trial | Ancestor) -> None:
        """Train with the knobs and the random numbers of this trial from now on, and count its training loss anew."""
        lane.recipe = Recipe.of(trial.config)
        self._tensors.assign(index, trial, lane.recipe)
        self._tensors.state.loss_sum[index] = 0

    def _reset_parts(self, lanes: Iterable[tuple[int, Lane]], made: int) -> None:
        """Reset in each lane what its way of learning resets, `made` steps after the step that the lane knows of."""
        for index, lane in lanes:
            learning, step = lane.recipe.learning, lane.step + made
            if not learning.resets_at(step):
                continue
            own, seed = self._tensors.state_of(index), int(self._tensors.seeds[index])
            parameters, moments = learning.reset(
                lane.recipe.optimizer, lane.layout, own.parameters, own.moments, seed, step
            )
            self._tensors.set_state(index, own._replace(parameters=parameters, moments=moments))

    def _due_reports(self, *, without: Collection[int]) -> list[Report]:
        """Validate the trials whose report is due, but for those that diverged."""
        every = self._recipe.training.validate_every
        due = [
            (index, lane)
            for index, lane in self._lanes.occupied
            if lane.number not in without and lane.report_due(every)
        ]
        if not due:
            return []
        loss_sums: list[float] = self._tensors.state.loss_sum.tolist()
        reports: list[Report] = []
        for (index, lane), metrics in zip(due, self._evaluate_lanes([index for index, _ in due]), strict=True):
            mean_loss = loss_sums[index] / (lane.step - lane.reported_step)
            lane.reported_step = lane.step
            self._tensors.state.loss_sum[index] = 0
            if not all(math.isfinite(metric.value) for metric in metrics):
                reports.append(self._diverged_report(lane, lane.step, "a validation metric", metrics))
                continue
            ends = lane.step == lane.steps
            report = Report(
                number=lane.number,
                fence=lane.fence,
                step=lane.step,
                metrics=(*metrics, Metric("loss", "raw", "", mean_loss)),
                state="finished" if ends else "running",
                architectures=architectures(lane.recipe.model, self.parameters(lane.number)) if ends else (),
                fingerprint=self._fingerprint_of(lane),
            )
            reports.append(report)
        return reports

    def _diverged_report(self, lane: Lane, step: int, what: str, metrics: tuple[Metric, ...] = ()) -> Report:
        return Report(
            number=lane.number,
            fence=lane.fence,
            step=step,
            metrics=metrics,
            state="diverged",
            error=f"{what} was not finite at step {step}",
            fingerprint=self._fingerprint_of(lane),
        )

    def _fingerprint_of(self, lane: Lane) -> Fingerprint:
        if lane.fingerprint is None:
            lane.fingerprint = fingerprint_of(lane.recipe, self._step.kind, self._device)
        return lane.fingerprint

    def _evaluate_lanes(self, indices: list[int]) -> list[tuple[Metric, ...]]:
        """Metrics of these lanes on each one's validation set, and on the task's shifted sets."""
        padded = _pad_to_power_of_two(indices)
        tensors = self._tensors.select(padded)
        sets = draw_evaluation_sets(self._recipe, [self.lanes[index] for index in padded], tensors)
        return self._evaluation.metrics(tensors, sets)[: len(indices)]


def _pad_to_power_of_two(indices: list[int]) -> list[int]:
    """The indices, and the first of them again up to a power of two.

    Each width is recorded once (`workers.numerics.tracing`), which costs as much as many validations; how many lanes
    are due together changes from one call to the next.
    """
    width = max(NARROWEST, 1 << (len(indices) - 1).bit_length())
    return (indices + indices[:1] * width)[:width]
