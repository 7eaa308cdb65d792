"""A pack: trials of one structure that train together on a device, each in its own lane.

All lanes make an optimizer step together (`workers.engine.step`). The modules: `lanes` knows which
trial is at which lane index and how far it is, `lane_tensors` holds the stacked tensors,
`lane_data` draws the data, `stepping` makes the steps, `lineage` lists what a copied trial has to
train first, `saved_states` takes snapshots and finds checkpoints, `evaluation` computes metrics,
`reporting` writes reports.
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
from workers.training.averaging import RAW
from workers.training.recipe import Recipe, initial_state, layout_of

CHECK_STEPS = 50
"""Most steps of a call: divergence is checked at its end, and the clock by the caller."""


class Pack:
    """Trials of one structure that train together, each in a lane of its own.

    A lane's results depend on its trial alone: data, dropout and initial parameters come from
    counter-based streams, addressed by seed and step, and no operation mixes lanes. So a checkpoint
    is a lane's `State`, without random generators or positions in the data.

    Several studies may have lanes in one pack. Trial numbers are unique within a study only:
    methods that take numbers and no `study` mean study 0, which is that of a pack that is not
    shared.
    """

    def __init__(self, trial: Trial, *, width: int, device: str = "cpu", archive: Archive | None = None) -> None:
        """Make a pack with two or more free lanes; `fill` reads checkpoints from `archive`."""
        self.structure = trial.structure
        self.device = torch.device(device)
        use_device(self.device)
        self._archive = archive
        self._recipe = Recipe.of(trial.config).pad()
        self._layout = layout_of(self._recipe, self.device)
        self._lanes = Lanes(max(width, NARROWEST))
        self._first_width = self.width
        self._make_step()  # before the tensors: on a GPU steps may be timed, which needs the memory
        self._tensors = LaneTensors.of_copies(trial, self._recipe, self._layout, self.width, self.device)

    def _make_step(self) -> None:
        """Make the step, the reporting and the counters, which no two packs share.

        The step is of the kind that was chosen for the first width, as lanes keep their numbers.
        """
        self._step = step_of(self._recipe, self.structure, self.device, self._first_width)
        self._stepper = stepper_of(self._recipe, self._step, self.device)
        self._reporting = Reporting(self._recipe, self._layout, self._step.kind, self.device)
        self._model_steps, self._capacity = Counter[int](), Counter[int]()

    @property
    def lanes(self) -> Sequence[LaneTrial | None]:
        """The trial in each lane, by lane index; None where a lane is free."""
        return self._lanes.trials

    @property
    def width(self) -> int:
        return len(self.lanes)

    @property
    def setup_seconds(self) -> float:
        """Seconds that the step took to adapt to the last new width; 0 if none."""
        return self._step.setup_seconds

    @property
    def running(self) -> dict[int, int]:
        """Number of each trial of study 0 in training -> its lane index."""
        return self._lanes.indices(0)

    def trials_of(self, study: int) -> list[LaneTrial]:
        """Return the trials of a study that are in training."""
        return [running for _, running in self._lanes.occupied if running.study == study]

    @property
    def free(self) -> int:
        """The number of free lanes."""
        return self._lanes.trials.count(None)

    def fill(self, trials: Iterable[Trial], study: int = 0, archive: Archive | None = None) -> None:
        """Start trials of this pack's structure in free lanes; `archive` has their checkpoints.

        A trial resumes from its newest intact checkpoint. Without one, a copy of another trial gets
        the parent's state if the parent's lane is at the step of the copy. Otherwise the lane
        starts at step 0 with the trial's first ancestor, or the trial itself. The results are the
        same in all three cases.
        """
        archive = archive or self._archive
        # A checkpoint file holds the states of many trials: read it once for all of them.
        read_snapshot = functools.cache(lambda path, sha256: archive and archive.read(path, sha256))
        for trial in trials:
            assert trial.structure == self.structure, "a pack trains one structure"
            index, running = self._lanes.first_free, LaneTrial.of(trial, study)
            check_data(running.recipe)
            if saved_state := find_saved_state(trial, self.structure, self._tensors, read_snapshot):
                self._tensors.assign(index, trial, running.recipe)
                for name, stacked in self._tensors.named_state().items():
                    stacked[index] = saved_state.tensors[name]
                running.step, running.reported_step = saved_state.trial.step, saved_state.trial.reported_step
            elif (parent_index := self._lanes.find_parent(trial, study)) is not None:
                self._tensors.set_state(index, self._tensors.state_of(parent_index))
                self._take_over(index, running, trial)
                running.step = running.reported_step = trial.parent_step
            else:
                (_, first), *running.takeovers = line_of_descent(trial)
                self._take_over(index, running, first)
                parameters = initial_parameters(first, self._recipe, self._layout, self.device)
                self._tensors.set_state(index, initial_state(running.recipe, self._layout, parameters))
            running.start_step = running.step
            self._lanes.trials[index] = running

    def release(self, numbers: Iterable[int], study: int = 0) -> None:
        """Free the lanes of these trials; numbers that are not in the pack are ignored."""
        self._lanes.release(numbers, study)

    def split_off(self, study: int) -> Pack:
        """Move this study's lanes into a new pack and return it; their results do not change."""
        moved = [(at, running) for at, running in self._lanes.occupied if running.study == study]
        pack = copy.copy(self)
        pack._lanes = Lanes(max(len(moved), NARROWEST))
        pack._lanes.trials[: len(moved)] = [running for _, running in moved]
        # Copies of lane 0 fill what would be too narrow.
        pack._tensors = self._tensors.select(([index for index, _ in moved] + [0] * NARROWEST)[: pack.width])
        pack._make_step()
        self.release([running.number for _, running in moved], study)
        return pack

    def resize(self, width: int) -> None:
        """Change the number of lanes; running trials move to the front, with the same results.

        The step stays the one that was chosen for the first width.
        """
        width = max(width, NARROWEST)
        if width == self.width:
            return
        occupied = [index for index, _ in self._lanes.occupied]
        assert len(occupied) <= width, "running trials must fit"
        # `select` makes all new tensors first: if memory runs out, the pack is unchanged.
        self._tensors = self._tensors.select((occupied + [0] * width)[:width])
        self._lanes.resize(width)

    def train(self, most: int) -> list[Report]:
        """Train until a report is due, at most `most` steps; release trials that end.

        Returns due reports, and those of trials that have diverged. After an error, as of memory,
        every lane is at the end of its last complete step, and reports that were due are due at the
        next call. After an interrupt a pack is not trained on: large moments, written in place, may
        be a step ahead.
        """
        return [report for _, report in self.train_studies(most)]

    @flush_subnormals()
    def train_studies(self, most: int) -> list[tuple[int, Report]]:
        """Train as `train` does, and return each report with the study of its trial."""
        lanes = self._lanes.occupied
        interval = self._recipe.training.validate_every
        steps = min([most, *(running.steps_until_report(interval) for _, running in lanes)])
        steps_made = 0
        advance = self._stepper.of(self.lanes, self._tensors)
        try:
            while steps_made < steps:
                self._reset_where_due(lanes, steps_made)
                steps_made += advance(steps - steps_made)
        finally:
            self._count(steps_made)
            for _, running in lanes:
                running.step += steps_made
        diverged = self._reporting.report_diverged(self._lanes, self._tensors)
        due = self._reporting.report_due(self._lanes, self._tensors, without=diverged)
        studies = {index: running.study for index, running in self._lanes.occupied}
        for index, report in (diverged | due).items():
            if report.state != "running":
                self._lanes.trials[index] = None
        for index, running in self._lanes.occupied:
            if running.takeovers and running.takeovers[0].step == running.step:
                self._take_over(index, running, running.takeovers.pop(0).trial)
                running.reported_step = running.step
        return [(studies[index], report) for index, report in (diverged | due).items()]

    def take_counts(self, study: int = 0) -> tuple[int, int]:
        """Return a study's model-steps since the last call, and those if no lane had been free.

        A model-step is a step of one lane. Free lanes are split among studies by their busy lanes.
        """
        return self._model_steps.pop(study, 0), self._capacity.pop(study, 0)

    def snapshot(self, study: int = 0) -> Snapshot | None:
        """Return the states of a study's trials that have trained here, or None."""
        return take_snapshot(self.structure, self._lanes, self._tensors, study)

    def parameters(self, number: int) -> dict[str, Tensor]:
        """Return a running trial's parameters (of study 0), by name and without padding."""
        index, running = self._lanes.find(number, 0)
        return self._layout.crop(running.layout, self._tensors.state.parameters[index])

    @flush_subnormals()
    def parameters_by_variant(self, index: int, trial: Trial) -> dict[str, dict[str, Tensor]]:
        """Return variant (`raw`, `bema kappa=0.3 eta=0.1`) -> name -> tensor.

        They are those of `trial`, which was trained last in lane `index`, even if it has ended.
        """
        recipe = Recipe.of(trial.config)
        layout, variants = layout_of(recipe), (RAW, *recipe.averaging.variants)
        every = self._reporting.evaluation.variants(self._tensors.select(pad_to_power_of_two([index])))
        return {
            variant.label: self._layout.crop(layout, flat[0]) for variant, flat in zip(variants, every, strict=True)
        }

    @flush_subnormals()
    def evaluate(self, numbers: Iterable[int]) -> dict[int, tuple[Metric, ...]]:
        """Validate these running trials of study 0 now; return their metrics by number."""
        indices = {number: self.running[number] for number in numbers}
        metrics = self._reporting.evaluate(self._lanes, self._tensors, list(indices.values()))
        return dict(zip(indices, metrics, strict=True))

    def _count(self, steps: int) -> None:
        """Add this many steps of every lane to the counters of its study."""
        lanes = Counter(running.study for _, running in self._lanes.occupied)
        counted = 0
        for study, count in lanes.items():
            self._model_steps[study] += steps * count
            # Rounded running totals are subtracted, so that the studies' parts add up exactly.
            capacity = steps * self.width
            before, after = capacity * counted // lanes.total(), capacity * (counted + count) // lanes.total()
            self._capacity[study] += after - before
            counted += count

    def _take_over(self, index: int, running: LaneTrial, trial: Trial | Ancestor) -> None:
        """Train a lane with this trial's knobs and streams from now on; its loss sum is 0 again."""
        running.recipe = Recipe.of(trial.config)
        self._tensors.assign(index, trial, running.recipe)
        self._tensors.state.loss_sum[index] = 0

    def _reset_where_due(self, lanes: Iterable[tuple[int, LaneTrial]], steps_made: int) -> None:
        """Reset each lane, as `Learning.reset` does, that is due to be after `steps_made` more steps.

        `LaneTrial.step` does not have these yet.
        """
        for index, running in lanes:
            learning, step = running.recipe.learning, running.step + steps_made
            if not learning.resets_at(step):
                continue
            state, seed = self._tensors.state_of(index), int(self._tensors.seeds[index])
            arguments = running.recipe.optimizer, running.layout, state.parameters, state.moments
            parameters, moments = learning.reset(*arguments, seed, step)
            self._tensors.set_state(index, state._replace(parameters=parameters, moments=moments))
