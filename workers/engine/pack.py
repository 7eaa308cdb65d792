"""A pack: the stacked training of many trials on one device, one step (`workers.engine.step`) for all of them.

Legend: L lanes, P parameters.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spaces import plugins
from spaces.records import Ancestor, Metric, Report, Trial
from workers.data.tasks import Batch, Task
from workers.engine.checkpoints import Archive, SavedLane, SavedState, Snapshot
from workers.engine.evaluation import Judging
from workers.engine.step import step_of
from workers.networks.architectures import architectures
from workers.numerics.layout import Layout
from workers.numerics.parameters import under
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe, State, begin, judged_on, layout_of

NARROWEST = 2
"""A pack never has fewer lanes: matrix products of one lane take another kernel, with other rounding."""

CHECK_STEPS = 50
"""Steps between looks at the clock and at diverged lanes."""

Rows = slice | Tensor
"""Which of some lanes."""
Read = Callable[[str, str], Snapshot | None]
"""A file's states, by its path and its SHA-256; None if it is not whole."""


@dataclass(kw_only=True)
class Lane:
    """A trial's place in a pack, and how far it is."""

    number: int
    fence: int
    """Of the start of the trial that brought it here."""
    steps: int
    layout: Layout
    """How the trial's parameters lie without padding."""
    recipe: Recipe
    """Of what trains here now."""
    step: int = 0
    reported_step: int = 0
    placed_step: int = 0
    """Where it stood when it was placed."""
    ahead: list[tuple[int, Trial | Ancestor]] = field(default_factory=list[tuple[int, Trial | Ancestor]])
    """While an ancestor of the trial trains here: who takes the lane over next, and at which step; itself last."""

    def until_report(self, every: int) -> int:
        """Steps to the next validation (every `every` steps, and after the last one), or to the next of its line."""
        if self.ahead:
            return self.ahead[0][0] - self.step
        if self.due(every):
            return 0  # memory ran out before it was validated
        return min(every - self.step % every, self.steps - self.step)

    def due(self, every: int) -> bool:
        """Whether it is to be validated where it stands."""
        at_step = self.step % every == 0 or self.step == self.steps
        return at_step and self.step > self.reported_step and not self.ahead


class Pack:
    """Trials of one structure, training together.

    A lane's numbers depend on its trial alone: data, dropout and initial parameters come from counter-based streams of
    the trial's seed at the trial's own step, and no operation mixes lanes. So what a lane's `State` holds is all that a
    checkpoint has to: there is no generator, and no place in the data, to be kept.
    """

    def __init__(self, trial: Trial, *, width: int, device: str = "cpu", archive: Archive | None = None) -> None:
        """A pack for trials of this one's structure; `archive`: where checkpoints of trials to be placed are read."""
        self.structure = trial.structure
        self.lanes: list[Lane | None] = [None] * max(width, NARROWEST)
        self._archive = archive
        self._steps = self._room = 0
        self._device = torch.device(device)
        recipe = Recipe.of(trial.config)
        self._recipe = recipe.padded()
        self._layout = layout_of(self._recipe, self._device)
        self._knobs = {path: self._filled(value) for path, value in recipe.knobs().items()}
        self._seeds = torch.full((self.width,), trial.seed, device=self._device)
        self._state = self._stacked_start(trial)
        self._step = step_of(self._recipe, self.structure, self._device)
        self._judging = Judging(self._recipe, self._layout, device)

    @property
    def width(self) -> int:
        return len(self.lanes)

    @property
    def width_seconds(self) -> float:
        """What the last new width cost, in seconds."""
        return self._step.width_seconds

    @property
    def running(self) -> dict[int, int]:
        """Number of each trial in a lane -> the lane."""
        return {lane.number: place for place, lane in enumerate(self.lanes) if lane}

    @property
    def free(self) -> int:
        return self.lanes.count(None)

    def place(self, trials: Iterable[Trial]) -> None:
        """Start trials of this pack's structure in free lanes.

        A trial with a checkpoint that is whole goes on from the newest. One that goes on from another's state gets it
        from that one's lane, if it stands at that very step, and else by training its ancestors first. The numbers are
        the same.
        """
        read = functools.cache(self._read)  # a file has the states of many trials
        for trial in trials:
            assert trial.structure == self.structure, "a pack trains one structure"
            place, parent, saved = self.lanes.index(None), self._lane_of_parent(trial), self._saved(trial, read)
            if saved:
                lane = self._restore(place, trial, saved)
            elif parent is None:
                lane = self._begin(place, trial)
            else:
                lane = self._copy(place, trial, parent)
            lane.placed_step = lane.step
            self.lanes[place] = lane

    def release(self, numbers: Iterable[int]) -> None:
        """Free the lanes of these trials; numbers that are not here are ignored."""
        running = self.running
        for number in numbers:
            if number in running:
                self.lanes[running[number]] = None

    def resize(self, width: int) -> None:
        """Change the number of lanes, moving running trials to the front; their numbers do not change."""
        width = max(width, NARROWEST)
        if width == self.width:
            return
        running = [place for place, lane in enumerate(self.lanes) if lane]
        assert len(running) <= width, "running trials must fit"
        places = torch.tensor((running + [0] * width)[:width], device=self._device)
        state = tree_map(lambda t: t[places], self._state)  # memory may run out: all is new, or all as it was
        knobs = {path: values[places] for path, values in self._knobs.items()}
        self._state, self._knobs, self._seeds = state, knobs, self._seeds[places]
        kept = [self.lanes[place] for place in running]
        self.lanes = kept + [None] * (width - len(kept))

    def train(self, most: int) -> list[Report]:
        """Train every lane up to the next report of any lane, at most `most` steps; release the trials that end.

        Returns the reports due at the step reached, and those of trials found to have diverged on the way. An error, as
        when memory runs out, leaves every lane after its last whole step; what was due then is due at the next call.
        """
        live = [lane for lane in self.lanes if lane]
        every = self._recipe.training.validate_every
        count = min([most, *(lane.until_report(every) for lane in live)])
        made = 0
        try:
            while made < count:
                self._renew(made)
                self._state = self._advance()
                made += 1
        finally:
            self._steps += made * len(live)
            self._room += made * self.width
            for lane in live:
                lane.step += made
        diverged = self._diverged()
        due = self._due({report.number for report in diverged})
        self.release(report.number for report in (*diverged, *due) if report.state != "running")
        self._pass_on()
        return diverged + due

    def take_counts(self) -> tuple[int, int]:
        """Training steps made since the last call by trials, and by all lanes, idle ones included."""
        counts = self._steps, self._room
        self._steps = self._room = 0
        return counts

    def snapshot(self) -> Snapshot | None:
        """The states of the trials that have trained here, for `Archive.write`; None if there is none.

        A lane that still trains an ancestor is left out, and one that has made no step: to go on from there saves none.
        """
        places = [
            place for place, lane in enumerate(self.lanes) if lane and not lane.ahead and lane.step > lane.placed_step
        ]
        if not places:
            return None
        lanes = [self.lanes[place] for place in places]
        return Snapshot(
            structure=self.structure,
            lanes=[SavedLane(lane.number, lane.fence, lane.step, lane.reported_step) for lane in lanes if lane],
            tensors={name: stacked.cpu()[places] for name, stacked in _named(self._state).items()},
        )

    def parameters(self, number: int) -> dict[str, Tensor]:
        """The current parameters of a running trial, by name; without padding."""
        place = self.running[number]
        return self._layout.cropped(self._own_layout(number), self._state.parameters[place])

    def weights(self, place: int, trial: Trial) -> dict[str, dict[str, Tensor]]:
        """Variant (`raw`, `bema kappa=0.3 eta=0.1`) -> parameters by name, of the trial that this lane trained last."""
        own = layout_of(Recipe.of(trial.config))
        knobs, state, _ = self._gathered(_padded([place]))
        return {one.label: self._layout.cropped(own, flat[0]) for one, flat in self._judging.variants(knobs, state)}

    def set_parameters(self, number: int, named: Mapping[str, Tensor]) -> None:
        """Replace a running trial's parameters, for example by weights built by hand."""
        place = self.running[number]
        own = self._own_layout(number)
        self._state.parameters[place] = self._layout.padded(own, own.join(named)).to(self._state.parameters)

    def evaluate(self, numbers: Iterable[int]) -> dict[int, tuple[Metric, ...]]:
        """Validate these running trials now."""
        running = self.running
        places = {number: running[number] for number in numbers}
        return dict(zip(places, self._metrics(list(places.values())), strict=True))

    def _own_layout(self, number: int) -> Layout:
        lane = self.lanes[self.running[number]]
        assert lane, "a running trial has a lane"
        return lane.layout

    # -- lanes -------------------------------------------------------------------------------------------------------

    def _filled(self, value: float) -> Tensor:
        return torch.full((self.width,), float(value), dtype=torch.float64, device=self._device)

    def _initial(self, trial: Trial | Ancestor) -> Tensor:
        """[P] initial parameters; from the trial's own knobs and computed alone: they never depend on neighbours."""
        layout = layout_of(Recipe.of(trial.config))
        drawn = self._layout.padded(layout, layout.initial(torch.tensor([trial.seed]))[0])
        return drawn.to(self._device, self._recipe.dtype)

    def _stacked_start(self, trial: Trial) -> State:
        start = begin(self._recipe, self._layout, self._initial(trial))
        return tree_map(lambda t: t.expand(self.width, *t.shape).clone(), start)

    def _lane(self, trial: Trial) -> Lane:
        recipe = Recipe.of(trial.config)
        return Lane(
            number=trial.number,
            fence=trial.fence,
            steps=int(recipe.training.steps),
            layout=layout_of(recipe),
            recipe=recipe,
        )

    def _begin(self, place: int, trial: Trial) -> Lane:
        """From step 0, of the first of the trial's line."""
        lane, starts = self._lane(trial), (0, *(ancestor.until for ancestor in trial.lineage))
        (_, first), *lane.ahead = zip(starts, (*trial.lineage, trial), strict=True)
        lane.recipe = self._take_over(place, first)
        self._write(place, begin(lane.recipe, self._layout, self._initial(first)))
        return lane

    def _copy(self, place: int, trial: Trial, parent: int) -> Lane:
        """From the state of the trial in the lane `parent`."""
        lane = self._lane(trial)
        self._write(place, tree_map(operator.itemgetter(parent), self._state))
        self._take_over(place, trial)
        lane.step = lane.reported_step = trial.parent_step
        return lane

    def _restore(self, place: int, trial: Trial, saved: SavedState) -> Lane:
        """From a checkpoint."""
        lane = self._lane(trial)
        self._take_over(place, trial)
        for name, stacked in _named(self._state).items():
            stacked[place] = saved.tensors[name]
        lane.step, lane.reported_step = saved.lane.step, saved.lane.reported_step
        return lane

    def _read(self, path: str, sha256: str) -> Snapshot | None:
        return self._archive.read(path, sha256) if self._archive else None

    def _saved(self, trial: Trial, read: Read) -> SavedState | None:
        """The newest state of the trial that is whole and has the form of a lane of this pack."""
        own = {name: (stacked.shape[1:], stacked.dtype) for name, stacked in _named(self._state).items()}
        for checkpoint in trial.checkpoints:
            snapshot = read(checkpoint.path, checkpoint.sha256)
            if snapshot and snapshot.structure == self.structure and checkpoint.number == trial.number:
                state = snapshot.state(checkpoint)
                if state and {name: (tensor.shape, tensor.dtype) for name, tensor in state.tensors.items()} == own:
                    return state
        return None

    def _lane_of_parent(self, trial: Trial) -> int | None:
        place = self.running.get(trial.parent) if trial.parent is not None else None
        lane = self.lanes[place] if place is not None else None
        return place if lane and lane.step == trial.parent_step and not lane.ahead else None

    def _take_over(self, place: int, trial: Trial | Ancestor) -> Recipe:
        """From now on the lane trains with the knobs and the random numbers of this trial, whose recipe this is."""
        recipe = Recipe.of(trial.config)
        for path, value in recipe.knobs().items():
            self._knobs[path][place] = value
        self._seeds[place] = trial.seed
        self._state.loss_sum[place] = 0
        return recipe

    def _pass_on(self) -> None:
        """Give lanes in which an ancestor has come to its end to the next of its line."""
        for place, lane in enumerate(self.lanes):
            if lane and lane.ahead and lane.ahead[0][0] == lane.step:
                lane.recipe = self._take_over(place, lane.ahead.pop(0)[1])
                lane.reported_step = lane.step

    def _write(self, place: int, fresh: State) -> None:
        def write(stacked: Tensor, fresh: Tensor) -> None:
            stacked[place] = fresh

        tree_map(write, self._state, fresh)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _renew(self, made: int) -> None:
        """Start anew in each lane what its way of learning says, `made` steps after those that its lane knows of."""
        for place, lane in enumerate(self.lanes):
            if lane is None or not lane.recipe.learning.renews(lane.step + made):
                continue
            own, seed = tree_map(operator.itemgetter(place), self._state), int(self._seeds[place])
            parameters, moments = lane.recipe.learning.renewed(
                lane.recipe.optimizer, lane.layout, own.parameters, own.moments, seed, lane.step + made
            )
            self._write(place, own._replace(parameters=parameters, moments=moments))

    def _advance(self) -> State:
        count = self._recipe.training.batch

        def drawn(task: Task, rows: Rows) -> Batch:
            knobs = {path: values[rows] for path, values in self._knobs.items()}
            learning, own = plugins.bind(self._recipe.learning, knobs, "learning"), plugins.bind(task, knobs, "task")
            return learning.training(own, self._seeds[rows], count, self._state.step[rows])

        batch = self._of_each_task(range(self.width), drawn)
        return self._step(self._knobs, self._seeds, self._state, batch)

    def _of_each_task(self, places: Sequence[int], draw: Callable[[Task, Rows], Any]) -> Any:
        """What `draw` gives for these lanes by their own tasks: nested tensors [len(places), ...].

        `draw` gets a task and which of the places have it. Lanes of one structure may have tasks of equal kin.
        """
        kinds: dict[str, tuple[Task, list[int]]] = {}
        for row, place in enumerate(places if self._recipe.task.kin() else ()):
            lane = self.lanes[place]
            task = lane.recipe.task if lane else self._recipe.task
            kinds.setdefault(plugins.name_of(task), (task, []))[1].append(row)
        if len(kinds) < 2:
            return draw(next(iter(kinds.values()))[0] if kinds else self._recipe.task, slice(None))
        rows = [torch.tensor(own, device=self._device) for _, own in kinds.values()]
        parts = [draw(task, own) for (task, _), own in zip(kinds.values(), rows, strict=True)]
        order = torch.cat(rows).argsort()
        return tree_map(lambda *tensors: torch.cat(tensors)[order], *parts)

    # -- reports -----------------------------------------------------------------------------------------------------

    def _diverged(self) -> list[Report]:
        bad: list[int] = self._state.diverged_at.tolist()
        return [
            _diverged_report(lane, step, "the training loss")
            for lane, step in zip(self.lanes, bad, strict=True)
            if lane and step
        ]

    def _due(self, diverged: Collection[int]) -> list[Report]:
        every = self._recipe.training.validate_every
        due = [
            (place, lane)
            for place, lane in enumerate(self.lanes)
            if lane and lane.number not in diverged and lane.due(every)
        ]
        if not due:
            return []
        metrics = self._metrics([place for place, _ in due])
        losses: list[float] = self._state.loss_sum.tolist()
        return [
            self._report(place, lane, found, losses[place]) for (place, lane), found in zip(due, metrics, strict=True)
        ]

    def _report(self, place: int, lane: Lane, metrics: tuple[Metric, ...], loss_sum: float) -> Report:
        mean_loss, ends = loss_sum / (lane.step - lane.reported_step), lane.step == lane.steps
        lane.reported_step = lane.step
        self._state.loss_sum[place] = 0
        if not all(math.isfinite(metric.value) for metric in metrics):
            return _diverged_report(lane, lane.step, "a validation metric", metrics)
        return Report(
            number=lane.number,
            fence=lane.fence,
            step=lane.step,
            metrics=(*metrics, Metric("loss", "raw", "", mean_loss)),
            state="finished" if ends else "running",
            architectures=architectures(lane.recipe.model, self.parameters(lane.number)) if ends else (),
        )

    def _metrics(self, places: list[int]) -> list[tuple[Metric, ...]]:
        """Metrics of these lanes on each one's validation set, and on the task's shifted sets."""
        padded = _padded(places)
        knobs, state, seeds = self._gathered(padded)
        count = self._recipe.training.validation_batch

        def drawn(task: Task, rows: Rows) -> dict[str, Batch]:
            own = plugins.bind(task, {path: values[rows] for path, values in knobs.items()}, "task")
            return judged_on(own, seeds[rows], count)

        sets: dict[str, Batch] = self._of_each_task(padded, drawn)
        return self._judging.metrics(knobs, state, sets)[: len(places)]

    def _gathered(self, places: list[int]) -> tuple[Batch, State, Tensor]:
        """Knobs, state and seeds of these lanes."""
        index = torch.tensor(places, device=self._device)
        knobs = {path: values[index] for path, values in self._knobs.items()}
        return knobs, tree_map(lambda tensor: tensor[index], self._state), self._seeds[index]


def _padded(places: list[int]) -> list[int]:
    """The places, and the first of them again up to a power of two, so that few widths are recorded."""
    width = max(NARROWEST, 1 << (len(places) - 1).bit_length())
    return (places + places[:1] * width)[:width]


def _named(state: State) -> dict[str, Tensor]:
    """The tensors of a state by the names that they have in a checkpoint."""
    return {
        "parameters": state.parameters,
        "step": state.step,
        "loss_sum": state.loss_sum,
        "diverged_at": state.diverged_at,
        **under("moments", state.moments),
        **under("shadow", state.shadow),
    }


def _diverged_report(lane: Lane, step: int, what: str, metrics: tuple[Metric, ...] = ()) -> Report:
    error = f"{what} was not finite at step {step}"
    return Report(number=lane.number, fence=lane.fence, step=step, metrics=metrics, state="diverged", error=error)
