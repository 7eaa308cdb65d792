"""The fused step of causal transformers with layers. Its data comes from the task's code, for several steps at once.

Legend: L lanes, N sequences, s positions, k steps of a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spaces.plugins import name_of
from workers.data.tasks import Batch
from workers.engine.fused.layered_plan import ARRAYS, LAYER_ARRAYS, MOST_LAYERS, LayeredPlan, Sizes, lay_out
from workers.engine.fused.memory import Limits, Workspace
from workers.engine.fused.step import FusedStep, Knobs, Launch, TrainingPlan, find_training_obstacle
from workers.networks.activations import Activation
from workers.networks.activations.geglu import Geglu
from workers.networks.activations.gelu import Gelu
from workers.networks.activations.glu import Glu
from workers.networks.activations.identity import Identity
from workers.networks.activations.reglu import Reglu
from workers.networks.activations.relu import Relu
from workers.networks.activations.relu_squared import ReluSquared
from workers.networks.activations.spline import Spline
from workers.networks.activations.swiglu import Swiglu
from workers.networks.activations.tanh import Tanh
from workers.networks.gradients import layered
from workers.networks.gradients.generated import Number
from workers.networks.gradients.plans import per_lane, starts_of
from workers.networks.gradients.scoring import learned_by
from workers.networks.models import in_use
from workers.networks.models.transformer import Transformer
from workers.networks.positions.alibi import Alibi, slopes
from workers.networks.scorers import Scorer
from workers.networks.scorers.average import Average
from workers.networks.scorers.softmax import Softmax
from workers.networks.scorers.ssa import SignedAveraging
from workers.networks.scorers.ssa_fixed import FixedSignedAveraging
from workers.training.native_update import AHEAD
from workers.training.recipe import Recipe, State, layout_of

_DATA_BYTES = 1 << 26
"""Of a launch's data, about."""
_POSITION_BYTES = 8 + 8 + 4
"""Of a position: token, target, weight."""
_WORK = 1 << 40
"""Multiplications of a launch, about: a second of a GPU's or less, after which a pack looks up."""
_BENT = SignedAveraging, FixedSignedAveraging
_LARGEST_PRODUCT = 1 << 32
"""Rows times columns squared of any array: beyond it the kernel's division by columns is not exact."""
_ACTIVATIONS: dict[type[Activation], int] = {
    kind: number
    for number, kind in enumerate((Identity, Relu, ReluSquared, Tanh, Gelu, None, Spline, Glu, Geglu, Swiglu, Reglu))
    if kind
}
"""Number of each in cuda/activations.hpp; after GELU's exact form comes that by tanh."""
_OF_KNOBS = 8
"""Knobs before those of the heads, as in plan.hpp."""


def find_obstacle(recipe: Recipe) -> str | None:
    """Why trials of this structure have no fused step; None: they have, where it fits into a GPU's shared memory."""
    model, task = recipe.model, recipe.task
    if not isinstance(model, Transformer):
        return f"the fused step knows no model {name_of(model)}"
    if task.position_loss != "cross_entropy" or task.kin():
        return f"the fused step of transformers does not know the data of {name_of(task)}"
    if type(model.scorer) not in (Softmax, Average, *_BENT):
        return "the fused step of transformers knows the scorers softmax, average, ssa and ssa_fixed alone"
    if not model.mlp_multiple or model.depth > MOST_LAYERS:
        return f"the fused step knows one to {MOST_LAYERS} layers, each with an MLP"
    if type(model.activation) not in _ACTIVATIONS:
        return f"the fused step knows no activation {name_of(model.activation)}"
    if type(model.position) not in layered.POSITIONS:
        return f"the fused step knows no positions of {name_of(model.position)}"
    left_out = {
        "model.query_key_norm": model.query_key_norm,
        "model.canon": model.canon != "none",
        "model.logit_cap": in_use(model.logit_cap),
        "model.weight_dropout": in_use(model.weight_dropout),
    }
    if used := [name for name, on in left_out.items() if on]:
        return f"the fused step of transformers knows no {used[0]}"
    sizes = sizes_of(recipe)
    if sizes.rows * max(sizes.outputs, sizes.gates * sizes.hidden) ** 2 >= _LARGEST_PRODUCT:
        return (
            f"the fused step of transformers knows no layer of {sizes.gates * sizes.hidden} channels, or "
            f"{sizes.outputs} tokens, for {sizes.rows} positions at once"
        )
    return find_training_obstacle(recipe)


def arrange(recipe: Recipe, limits: Limits) -> Workspace | None:
    """Where the kernel's arrays lie; None where the smallest do not fit. `recipe` has no obstacle."""
    return lay_out(sizes_of(recipe), limits)


def sizes_of(recipe: Recipe) -> Sizes:
    """Of a recipe without an obstacle."""
    model, task = recipe.model, recipe.task
    assert isinstance(model, Transformer)
    spline = isinstance(model.activation, Spline) and not model.activation.frozen
    structure, (_, parameters) = layered.structure_of(model, task), starts_of(model.parameters(task))
    rates = model.embedding_dropout, model.attention_dropout, model.mlp_dropout
    return Sizes(
        batch=recipe.training.batch,
        length=task.context,
        **{name: structure[name] for name in ("width", "heads", "hidden", "gates", "outputs")},
        knots=model.activation.knots if isinstance(model.activation, Spline) and model.mlp_multiple else 0,
        splines=(model.depth if model.activation_per_layer else 1) if spline else 0,
        depth=model.depth,
        parameters=parameters,
        dropped=sum(1 << bit for bit, rate in enumerate(rates) if rate),
        bent=int(type(model.scorer) in _BENT),
    )


def _numbers_of(scorer: Scorer) -> tuple[Number, Number, Number]:
    """Factor of the logits, b and n of a head; uniform attention is softmax of logits that are all zero."""
    if isinstance(scorer, FixedSignedAveraging):
        return 1.0, scorer.b, scorer.n
    factor = 1 / scorer.temperature if isinstance(scorer, Softmax) else 0.0 if isinstance(scorer, Average) else 1.0
    return factor, 1.0, 1.0


def _number_of(activation: Activation) -> int:
    return _ACTIVATIONS[type(activation)] + (isinstance(activation, Gelu) and activation.form == "tanh")


class LayeredStep(FusedStep):
    """Of transformers with layers."""

    def __init__(self, recipe: Recipe, device: torch.device, kind: str, workspace: Workspace, launch: Launch) -> None:
        super().__init__(recipe, device, kind, workspace, launch)
        model, task = recipe.model, recipe.task
        assert isinstance(model, Transformer), "there is no obstacle"
        sizes, structure = sizes_of(recipe), layered.structure_of(model, task)
        self._numbers = {
            **{name: getattr(sizes, name) for name in ("length", "depth", "dropped", "knots", "splines", "bent")},
            **{name: structure[name] for name in ("width", "heads", "hidden", "gates", "outputs")},
            **{name: structure[name] for name in ("pre_norm", "centred", "tied")},
            "activation": _number_of(model.activation),
            "sequences": workspace.sequences,
            "shared_floats": workspace.shared_bytes // 4,
        }
        places, _ = starts_of(model.parameters(task))
        learned = learned_by(model.scorer, model.heads)[0]  # those of the other heads follow
        self._arrays = {"ends": layered.end_places(places), "places": workspace.places[: len(ARRAYS)]}
        of_layers, count = workspace.places[len(ARRAYS) :], len(LAYER_ARRAYS)
        self._of_layers = {
            "layers": [layered.layer_places(places, layer) for layer in range(model.depth)],
            "learned": [[*layered.learned_places(places, layer, learned), -1, -1][:2] for layer in range(model.depth)],
            "layer_places": [of_layers[n : n + count] for n in range(0, len(of_layers), count)],
        }
        self._tables: layered.Tables | None = None
        self._decays = layout_of(recipe, device).decays
        alibi = isinstance(model.position, Alibi)
        self._slopes = torch.tensor(slopes(model.heads), device=device) if alibi else None

    def most_steps(self, lanes: int) -> int:
        positions, sizes = lanes * self.recipe.training.batch * self.recipe.task.context, sizes_of(self.recipe)
        by_data, by_work = _DATA_BYTES // (_POSITION_BYTES * positions), _WORK // (3 * sizes.parameters * positions)
        return max(1, min(AHEAD, by_data, by_work))

    def plan(
        self, knobs: Knobs, bound: Recipe, seeds: Tensor, state: State, steps: int
    ) -> tuple[TrainingPlan, Mapping[str, Any]]:
        assert isinstance(bound.model, Transformer), "there is no obstacle"
        plan = LayeredPlan(**self._numbers)
        for name, numbers in self._arrays.items():
            getattr(plan, name)[:] = numbers
        for name, rows in self._of_layers.items():
            for layer, numbers in enumerate(rows):
                getattr(plan, name)[layer][:] = numbers
        tables, batch = self._tables_of(bound.model, len(seeds)), self._draw(knobs, seeds, state, steps)
        targets, weights = bound.task.position_targets(batch, self.recipe.dtype)
        return plan, {
            "decays": self._decays,
            "knobs": tables.knobs,
            "rates": tables.rates,
            "inputs": batch["inputs"].contiguous(),
            "targets": targets.contiguous(),
            "weights": weights.contiguous(),
            "placed": tables.placed,
            "cosines": tables.cosines,
            "sines": tables.sines,
            "slopes": self._slopes,
        }

    def _draw(self, knobs: Knobs, seeds: Tensor, state: State, steps: int) -> Batch:
        """[k L, N, ...]: the data of all lanes at their next step, at the one after it, and so on, drawn at once."""
        bound = self.recipe.bind({path: values.repeat(steps) for path, values in knobs.items()})
        ahead = torch.arange(steps, device=seeds.device).repeat_interleave(len(seeds))
        step = state.step.repeat(steps) + ahead
        return bound.learning.training(bound.task, seeds.repeat(steps), self.recipe.training.batch, step)

    def _tables_of(self, model: Transformer, lanes: int) -> layered.Tables:
        length = self.recipe.task.context
        if self._tables is None or not self._tables.serve(model, lanes, length):
            tables = layered.tables_of(model, lanes, length, self.recipe.dtype, self.device)
            numbers = [per_lane(number, lanes, self.device) for number in _numbers_of(model.scorer)] * model.heads
            of_heads = torch.stack(numbers, -1).to(tables.knobs.dtype)
            self._tables = replace(tables, knobs=torch.cat([tables.knobs[:, :_OF_KNOBS], of_heads], -1))
        return self._tables
