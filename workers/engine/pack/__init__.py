"""A pack: the stacked training of many trials on one device, one step (`workers.engine.step`) for all of them.

What it is made of: `lanes` says which trial is at which lane index and how far it is, `lane_tensors` holds the stacked
tensors, `lane_data` draws the data, `stepping` makes the steps, `lineage` says how copies get their state,
`saved_states` writes and finds checkpoints, `evaluation` computes metrics, `reporting` says which trials report, and
what.
"""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from spaces.records import Ancestor, Metric, Report, Trial
from workers.engine.checkpoints import Archive, Snapshot
from workers.engine.fingerprints import check_data
from workers.engine.machine.process import flush_subnormals, use_device
from workers.engine.pack.lane_tensors import LaneTensors, initial_parameters
from workers.engine.pack.lanes import NARROWEST, Lanes, LaneTrial
from workers.engine.pack.lineage import line_of_descent
from workers.engine.pack.reporting import Reporting, pad_to_power_of_two
from workers.engine.pack.saved_states import find_saved_state, take_snapshot
from workers.engine.pack.stepping import stepper_of
from workers.engine.step import step_of
from workers.training.recipe import Recipe, initial_state, layout_of

CHECK_STEPS = 50
"""Steps between looks at the clock and at diverged lanes."""


class Pack:
    """Trials of one structure, training together.

    A lane's numbers depend on its trial alone: data, dropout and initial parameters come from counter-based streams of
    the trial's seed at the trial's own step, and no operation mixes lanes. So a checkpoint has to hold a lane's `State`
    and nothing else: there is no random generator and no position in the data to be kept. And so several studies may
    have lanes in one pack: a lane knows whose its trial is, as numbers of trials are each study's own. What has a
    `study` is about that study's lanes; where there is one study, it is 0.
    """

    def __init__(self, trial: Trial, *, width: int, device: str = "cpu", archive: Archive | None = None) -> None:
        """Make a pack for trials with the structure of this one.

        `archive`: where checkpoints of trials are read, unless `fill` is told another one.
        """
        self.structure = trial.structure
        self._device = torch.device(device)
        use_device(self._device)
        self._archive = archive
        self._recipe = Recipe.of(trial.config).pad()
        self._layout = layout_of(self._recipe, self._device)
        self._lanes = Lanes(max(width, NARROWEST))
        self._make_step()  # first: on a GPU two steps may be timed for it, which need the pack's memory
        self._tensors = LaneTensors.of_copies(trial, self._recipe, self._layout, self.width, self._device)

    def _make_step(self) -> None:
        self._step = step_of(self._recipe, self.structure, self._device, self.width)
        self._stepper = stepper_of(self._recipe, self._step, self._device)
        self._reporting = Reporting(self._recipe, self._layout, self._step.kind, self._device)
        self._model_steps, self._room = Counter[int](), Counter[int]()

    @property
    def lanes(self) -> Sequence[LaneTrial | None]:
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
        """Number of each trial in training -> its lane index; of study 0."""
        return self._lanes.indices(0)

    def trials_of(self, study: int) -> list[LaneTrial]:
        """Return the trials of a study in training."""
        return [running for _, running in self._lanes.occupied if running.study == study]

    @property
    def free(self) -> int:
        """How many lanes are free."""
        return self._lanes.slots.count(None)

    def fill(self, trials: Iterable[Trial], study: int = 0, archive: Archive | None = None) -> None:
        """Start trials of this pack's structure in free lanes; `archive`: where their checkpoints are read.

        A trial with a checkpoint that is whole resumes from the newest. A copy of another trial takes its parent's
        state from the parent's lane, or trains its ancestors first. The numbers are the same in all three cases.
        """
        archive = archive or self._archive
        # A file has the states of many trials of the pack; it is read once for all of them.
        read_snapshot = functools.cache(lambda path, sha256: archive and archive.read(path, sha256))
        for trial in trials:
            assert trial.structure == self.structure, "a pack trains one structure"
            index, running = self._lanes.first_free, LaneTrial.of(trial, study)
            check_data(running.recipe)
            if saved := find_saved_state(trial, self.structure, self._tensors, read_snapshot):
                self._tensors.assign(index, trial, running.recipe)
                for name, stacked in self._tensors.named_state().items():
                    stacked[index] = saved.tensors[name]
                running.step, running.reported_step = saved.trial.step, saved.trial.reported_step
            elif (parent := self._lanes.find_parent(trial, study)) is not None:
                self._tensors.set_state(index, self._tensors.state_of(parent))
                self._take_over(index, running, trial)
                running.step = running.reported_step = trial.parent_step
            else:
                (_, first), *running.takeovers = line_of_descent(trial)
                self._take_over(index, running, first)
                start = initial_parameters(first, self._recipe, self._layout, self._device)
                self._tensors.set_state(index, initial_state(running.recipe, self._layout, start))
            running.start_step = running.step
            self._lanes.slots[index] = running

    def release(self, numbers: Iterable[int], study: int = 0) -> None:
        """Free the lanes of these trials; numbers that are not here are ignored."""
        self._lanes.release(numbers, study)

    def split_off(self, study: int) -> Pack:
        """Return a pack of this study's lanes alone, which leave this one; their numbers do not change."""
        own = [(index, running) for index, running in self._lanes.occupied if running.study == study]
        other = copy.copy(self)
        other._lanes = Lanes(max(len(own), NARROWEST))
        other._lanes.slots[: len(own)] = [running for _, running in own]
        other._tensors = self._tensors.select(([index for index, _ in own] + [0] * NARROWEST)[: other.width])
        other._make_step()
        self.release([running.number for _, running in own], study)
        return other

    def resize(self, width: int) -> None:
        """Change the number of lanes, moving running trials to the front; their numbers do not change."""
        width = max(width, NARROWEST)
        if width == self.width:
            return
        running = [index for index, _ in self._lanes.occupied]
        assert len(running) <= width, "running trials must fit"
        # All new tensors are made before one is replaced: should memory run out, the pack is as it was.
        self._tensors = self._tensors.select((running + [0] * width)[:width])
        self._lanes.resize(width)

    def train(self, most: int) -> list[Report]:
        """Train every lane up to the next report of any lane, at most `most` steps; release the trials that end.

        Returns the reports due at the step reached, and those of trials found to have diverged on the way. An error, as
        when memory runs out, leaves every lane after its last whole step; what was due then is due at the next call.
        """
        return [report for _, report in self.train_studies(most)]

    @flush_subnormals()
    def train_studies(self, most: int) -> list[tuple[int, Report]]:
        """As `train`: each report with the study whose trial it is of."""
        lanes = self._lanes.occupied
        every = self._recipe.training.validate_every
        count = min([most, *(running.steps_until_report(every) for _, running in lanes)])
        made = 0
        advance = self._stepper.of(self.lanes, self._tensors)
        try:
            while made < count:
                self._reset_parts(lanes, made)
                made += advance(count - made)
        finally:
            self._count(made)
            for _, running in lanes:
                running.step += made
        diverged = self._reporting.report_diverged(self._lanes, self._tensors)
        due = self._reporting.report_due(self._lanes, self._tensors, without=diverged)
        studies = {index: running.study for index, running in self._lanes.occupied}
        for index, report in (diverged | due).items():
            if report.state != "running":
                self._lanes.slots[index] = None
        for index, running in self._lanes.occupied:
            if running.takeovers and running.takeovers[0].step == running.step:
                self._take_over(index, running, running.takeovers.pop(0).trial)
                running.reported_step = running.step
        return [(studies[index], report) for index, report in (diverged | due).items()]

    def take_counts(self, study: int = 0) -> tuple[int, int]:
        """Model-steps made since the last call, and the room for them: what they would be with no lane free.

        Of the free lanes of a pack each study has the part that it has of the others.
        """
        return self._model_steps.pop(study, 0), self._room.pop(study, 0)

    def snapshot(self, study: int = 0) -> Snapshot | None:
        """Return the states of the trials that have trained here, for `Archive.write`; None if there is none."""
        return take_snapshot(self.structure, self._lanes, self._tensors, study)

    def parameters(self, number: int) -> dict[str, Tensor]:
        """Return the current parameters of a running trial, by name; without padding."""
        index, running = self._lanes.find(number, 0)
        return self._layout.crop(running.layout, self._tensors.state.parameters[index])

    @flush_subnormals()
    def weights(self, index: int, trial: Trial) -> dict[str, dict[str, Tensor]]:
        """Variant (`raw`, `bema kappa=0.3 eta=0.1`) -> parameters by name, of the trial that this lane trained last."""
        own = layout_of(Recipe.of(trial.config))
        variants = self._reporting.evaluation.variants(self._tensors.select(pad_to_power_of_two([index])))
        return {variant.label: self._layout.crop(own, flat[0]) for variant, flat in variants}

    @flush_subnormals()
    def evaluate(self, numbers: Iterable[int]) -> dict[int, tuple[Metric, ...]]:
        """Validate these running trials now."""
        indices = {number: self.running[number] for number in numbers}
        metrics = self._reporting.evaluate(self._lanes, self._tensors, list(indices.values()))
        return dict(zip(indices, metrics, strict=True))

    def _count(self, steps: int) -> None:
        """Count so many steps of all lanes."""
        lanes = Counter(running.study for _, running in self._lanes.occupied)
        before = 0
        for study, count in lanes.items():
            self._model_steps[study] += steps * count
            # Differences of what is rounded: the parts of all studies add up to the whole.
            whole = steps * self.width
            self._room[study] += whole * (before + count) // lanes.total() - whole * before // lanes.total()
            before += count

    def _take_over(self, index: int, running: LaneTrial, trial: Trial | Ancestor) -> None:
        """Train with the knobs and the random numbers of this trial from now on, and count its training loss anew."""
        running.recipe = Recipe.of(trial.config)
        self._tensors.assign(index, trial, running.recipe)
        self._tensors.state.loss_sum[index] = 0

    def _reset_parts(self, lanes: Iterable[tuple[int, LaneTrial]], made: int) -> None:
        """Reset in each lane what its way of learning resets, `made` steps after the step that the lane knows of."""
        for index, running in lanes:
            learning, step = running.recipe.learning, running.step + made
            if not learning.resets_at(step):
                continue
            own, seed = self._tensors.state_of(index), int(self._tensors.seeds[index])
            parameters, moments = learning.reset(
                running.recipe.optimizer, running.layout, own.parameters, own.moments, seed, step
            )
            self._tensors.set_state(index, own._replace(parameters=parameters, moments=moments))
