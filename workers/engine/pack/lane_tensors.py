"""The tensors of a pack's lanes, stacked. Legend: L lanes, P parameters."""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.records import Ancestor, Trial
from workers.data.tasks import Batch
from workers.numerics.layout import Layout
from workers.numerics.parameters import under
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe, State, initial_state, layout_of


@dataclass(kw_only=True)
class LaneTensors:
    """Knobs, seeds and training states of L lanes."""

    knobs: Batch
    """Dotted path -> one value [L] per lane, float64."""
    seeds: Tensor
    """int64 [L]."""
    evaluation_seeds: Tensor
    """int64 [L], the seeds of the sets that the lanes' trials are evaluated on."""
    state: State
    """The state, each tensor with a first axis [L]."""

    @classmethod
    def of_copies(cls, trial: Trial, recipe: Recipe, layout: Layout, width: int, device: torch.device) -> LaneTensors:
        """Return `width` lanes at this trial's start; `recipe` and `layout` are the pack's."""

        def fill(value: float) -> Tensor:
            return torch.full((width,), float(value), dtype=torch.float64, device=device)

        start = initial_state(recipe, layout, initial_parameters(trial, recipe, layout, device))
        return cls(
            knobs={path: fill(value) for path, value in recipe.knobs().items()},
            seeds=torch.full((width,), trial.seed, device=device),
            evaluation_seeds=torch.full((width,), evaluation_seed_of(trial), device=device),
            state=tree_map(lambda tensor: tensor.expand(width, *tensor.shape).clone(), start),
        )

    def select(self, indices: list[int]) -> LaneTensors:
        """Return a copy of these lanes, in this order; a lane may come more than once."""
        index = torch.tensor(indices, device=self.seeds.device)
        state = tree_map(lambda tensor: tensor[index], self.state)
        knobs = {path: values[index] for path, values in self.knobs.items()}
        seeds, others = self.seeds[index], self.evaluation_seeds[index]
        return LaneTensors(knobs=knobs, seeds=seeds, evaluation_seeds=others, state=state)

    def assign(self, index: int, trial: Trial | Ancestor, recipe: Recipe) -> None:
        """Give a lane the knobs and seeds of a trial, whose recipe this is; its state stays."""
        for path, value in recipe.knobs().items():
            self.knobs[path][index] = value
        self.seeds[index] = trial.seed
        self.evaluation_seeds[index] = evaluation_seed_of(trial)

    def state_of(self, index: int) -> State:
        """Return views of one lane's state."""
        return tree_map(operator.itemgetter(index), self.state)

    def set_state(self, index: int, state: State) -> None:
        """Replace one lane's state."""

        def write(stacked: Tensor, tensor: Tensor) -> None:
            stacked[index] = tensor

        tree_map(write, self.state, state)

    def named_state(self) -> dict[str, Tensor]:
        """Return the tensors of the states by the names that they have in a checkpoint."""
        return {
            "parameters": self.state.parameters,
            "step": self.state.step,
            "loss_sum": self.state.loss_sum,
            "diverged_at": self.state.diverged_at,
            **under("moments", self.state.moments),
            **under("shadow", self.state.shadow),
        }


def evaluation_seed_of(trial: Trial | Ancestor) -> int:
    """Return the seed of a trial's evaluation sets; ancestors are not evaluated any more."""
    if isinstance(trial, Trial) and trial.evaluation_seed is not None:
        return trial.evaluation_seed
    return trial.seed


def initial_parameters(trial: Trial | Ancestor, recipe: Recipe, layout: Layout, device: torch.device) -> Tensor:
    """Return parameters [P] in the pack's layout, drawn in the trial's own, whatever is beside it.

    Random numbers follow the true sizes; padding goes in between them afterwards.
    """
    unpadded = layout_of(Recipe.of(trial.config))
    return layout.pad(unpadded, unpadded.initial(torch.tensor([trial.seed]))[0]).to(device, recipe.dtype)
