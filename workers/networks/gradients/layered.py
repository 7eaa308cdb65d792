"""Loss, gradient and outputs of the layered transformers in C++ on a CPU (layered.hpp).

The same function as `workers.networks.models._layers` differentiated by torch, to 1e-10 in float64,
from the same random bytes (tests/workers/engine/test_native_layered.py). It covers most plug-ins;
`find_obstacle` has the exceptions.

Legend: L lanes, P parameters, N sequences, s positions, d width, h heads, c channels of a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spaces import plugins
from spaces.plugins import name_of
from workers.data.tasks import Batch, Task, VectorTask
from workers.networks.activations import Activation
from workers.networks.gradients import activating, plans, scoring
from workers.networks.gradients.row_function_cache import Number
from workers.networks.models._layers import Layered
from workers.networks.positions import Position
from workers.networks.positions.alibi import Alibi, slopes
from workers.networks.positions.learned import Learned
from workers.networks.positions.none import NoPosition
from workers.networks.positions.rotary import Rotary
from workers.networks.positions.sinusoidal import Sinusoidal
from workers.numerics.randomness import NativeSites, SiteStreams
from workers.numerics.tensors import Versions, are_of, versions_of

# Parameters in the order of plan.hpp, which gets the start of each in the flat vector, else -1.
_LAYER_PARAMETERS = (
    *("attention_norm", "attention_norm_bias", "canon_A", "query_key_value"),
    *("query_key_value_bias", "canon_B", "output", "output_bias", "mlp_norm", "mlp_norm_bias"),
    *("canon_C", "mlp_in", "mlp_in_bias", "canon_D", "mlp_out", "mlp_out_bias"),
)
_END_PARAMETERS = (
    *(("embedding", "read_in"), ("read_in_bias",), ("position.table",), ("norm",), ("norm_bias",)),
    *(("unembedding", "read_out"), ("read_out_bias",)),
)
_SIZES = (
    *("lanes", "batch", "length", "width", "heads", "depth", "hidden", "gates", "outputs"),
    *("features", "total", "causal", "pre_norm", "centred", "query_key_norm", "canon", "tied"),
    *("capped", "loss", "own_knobs", "own_offsets", "dropout"),
)
_TENSORS = (
    *("layers", "ends", "scorers", "phi", "activation", "learned", "parameters", "gradient"),
    *("loss_values", "inputs", "targets", "weights", "lengths", "placed", "cosines", "sines"),
    *("slopes", "placing", "knobs", "states", "thresholds", "outputs_values"),
)


def find_obstacle(model: Layered, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Compile the scorer and activation; return why the gradient is not native, or None."""
    if device.type == "cpu":
        scoring.begin_compiling(model.scorer, dtype)
        activating.begin_compiling(_activation_of(model), dtype)
    if reason := plans.find_library_obstacle("layered", dtype, device):
        return reason
    if task.position_loss is None:
        return plans.unknown_loss(task)
    if type(model.position) not in _POSITIONS:
        return f"positions of {name_of(model.position)} are not in the native step"
    obstacle = activating.find_obstacle(_activation_of(model), dtype)
    return obstacle or scoring.find_obstacle(model.scorer, dtype)


def _activation_of(model: Layered) -> Activation | None:
    return model.activation if model.mlp_multiple else None


_POSITIONS: tuple[type[Position], ...] = (Learned, NoPosition, Rotary, Sinusoidal, Alibi)


# -- the gradient ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tables:
    """The tensors of a set of lanes that depend on knobs and lengths alone."""

    model: Layered
    seen: Versions
    """The model's knobs, with versions: a trial that takes a lane writes into them."""
    lanes: int
    length: int
    rates: Tensor  # [k, L] float64, of the dropout sites in use
    tensors: Mapping[str, Tensor | None]
    """`knobs`, `placed`, `cosines`, `sines` and `placing` of plan.hpp."""

    def serve(self, model: Layered, lanes: int, length: int) -> bool:
        """Return whether these are the tables of this model's knobs."""
        if (lanes, length) != (self.lanes, self.length):
            return False
        # The same model has the same tensors; another one may have them too.
        return are_of(self.seen, (tensor for tensor, _ in self.seen) if model is self.model else _tensors_of(model))


class NativeLayered(plans.PlannedModel):
    """A layered transformer by `Plan` of plan.hpp."""

    def __init__(self, model: Layered, task: Task, dtype: torch.dtype) -> None:
        super().__init__("layered", dtype, _SIZES, _TENSORS)
        self._tables: _Tables | None = None
        parameters = model.parameters(task)
        offsets, total = plans.starts_of(parameters)
        layers = range(model.depth)
        phi, activation = scoring.features_of(model.scorer), _activation_of(model)
        learned = [pair for names in scoring.learned_by(model.scorer, model.heads) for pair in names]
        learned += activating.learned_by(phi, "scorer.phi")
        learned += activating.learned_by(activation, "activation")
        indices = [[_of_layer(offsets, n, name) + head for name, head in learned] for n in layers]
        ends = [max(offsets.get(name, -1) for name in names) for names in _END_PARAMETERS]
        starts = [[_of_layer(offsets, n, name) for name in _LAYER_PARAMETERS] for n in layers]
        has_slopes = isinstance(model.position, Alibi)
        self._tensors = {
            "layers": torch.tensor(starts),
            "ends": torch.tensor(ends),
            "scorers": scoring.described(scoring.scorers_of_heads(model.scorer, model.heads), dtype),
            "phi": activating.described(phi, dtype),
            "activation": activating.described(activation, dtype),
            "learned": torch.tensor(indices, dtype=torch.int64),
            "slopes": torch.tensor(slopes(model.heads), dtype=dtype) if has_slopes else None,
        }
        on = [bool(rate) for rate in _rates_of(model)]
        on[2] = on[2] and model.mlp_multiple > 0
        sites = _sites(model, task, on)
        self._families = [site.family for site in sites]
        self._sites = NativeSites([site.stream for site in sites], [site.number for site in sites], 1 + 3 * model.depth)
        self._sizes = {
            **_structure_of(model, task),
            "total": total,
            "own_knobs": len(_own_knobs(model)),
            "own_offsets": len(learned),
        }
        self._dropout = sum(1 << bit for bit, used in enumerate(on) if used)

    def _shape_of_outputs(self, inputs: Tensor) -> tuple[int, ...]:
        return (*inputs.shape[:3], self._sizes["outputs"])

    def _describe(
        self, model: Layered, batch: Batch, streams: SiteStreams | None
    ) -> tuple[Mapping[str, int], Mapping[str, Tensor | None]]:
        lanes, _, length = batch["inputs"].shape[:3]
        if self._tables is None or not self._tables.serve(model, lanes, length):
            self._tables = _tables_of(model, lanes, length, self._dtype, self._families)
        tables, states, thresholds = self._tables, None, None
        if streams is not None and self._families:
            states, thresholds = self._sites.draw(streams, tables.rates)
        sizes = {"length": length, "dropout": 0 if streams is None else self._dropout}
        return sizes, {**self._tensors, **tables.tensors, "states": states, "thresholds": thresholds}


class _Site(NamedTuple):
    stream: int
    """The site's number in the model."""
    number: int
    """The site's number in plan.hpp."""
    family: int
    """The number of its rate: embedding, attention, mlp, weights."""


def _sites(model: Layered, task: Task, on: Sequence[bool]) -> list[_Site]:
    """Return the dropout sites in use; `on`: by family."""
    numbers = {"embedding": (0, 0)}
    for family, name in enumerate(("attention", "mlp", "weights"), 1):
        first = 1 + (family - 1) * model.depth
        numbers |= {f"layers.{layer}.{name}": (first + layer, family) for layer in range(model.depth)}
    names = model.dropout_sites(task, batch=1, length=1)
    return [_Site(stream, *numbers[name]) for stream, name in enumerate(names) if on[numbers[name][1]]]


def _structure_of(model: Layered, task: Task) -> dict[str, int]:
    """Return the sizes and choices of plan.hpp."""
    parameters, has_mlp = model.parameters(task), model.mlp_multiple > 0
    unembedding = parameters.get("unembedding") or parameters.get("read_out")
    assert task.position_loss, "find_obstacle() knows all others"
    return {
        "width": model.width,
        "heads": model.heads,
        "depth": model.depth,
        "hidden": parameters["layers.0.mlp_out"].shape[0] if has_mlp else 0,
        "gates": model.activation.inputs if has_mlp else 1,
        "outputs": unembedding.shape[1] if unembedding else parameters["embedding"].shape[0],
        "features": task.features if isinstance(task, VectorTask) else 0,
        "causal": int(model.causal),
        "pre_norm": int(model.pre_norm),
        "centred": int(model.norm == "layer_norm"),
        "query_key_norm": int(model.query_key_norm),
        "canon": sum(1 << "ABCD".index(letter) for letter in set(model.canon) & set("ABCD")),
        "tied": int(unembedding is None),
        "capped": int(bool(getattr(model, "logit_cap", 0.0))),
        "loss": plans.LOSSES.index(task.position_loss),
    }


def _of_layer(offsets: Mapping[str, int], layer: int, name: str) -> int:
    """Return where a layer's own parameter, or a shared one, starts; -1 if there is none."""
    return offsets.get(f"layers.{layer}.{name}", offsets.get(name, -1))


# -- what knobs give -------------------------------------------------------------------------------


def _tensors_of(model: Layered) -> list[Tensor]:
    """Return all knobs [L] of the model and its parts."""
    values: list[Number] = [value for _, value in plugins.knobs(model)]
    return [value for value in values if isinstance(value, Tensor)]


def _rates_of(model: Layered) -> list[Number]:
    return [model.embedding_dropout, model.attention_dropout, model.mlp_dropout, model.weight_dropout]


def _own_knobs(model: Layered) -> list[Number]:
    """Return the knobs of the scorers, of their features and of the activation."""
    return scoring.knobs_of_heads(model.scorer, model.heads) + activating.knobs_of(_activation_of(model))


def _tables_of(model: Layered, lanes: int, length: int, dtype: torch.dtype, families: list[int]) -> _Tables:
    rates = _rates_of(model)
    cap: Number = getattr(model, "logit_cap", 0.0)
    columns: list[Number] = [model.norm_epsilon, cap, *(1 / (1 - rate) for rate in rates)]
    columns += _own_knobs(model)
    tensors = {
        "knobs": torch.stack([plans.per_lane(number, lanes) for number in columns], -1).to(dtype),
        "placing": scoring.placing_of(model.scorer, length, length, dtype),
        **_positions(model, lanes, length, dtype),
    }
    rates_of_lanes = torch.stack([plans.per_lane(rate, lanes) for rate in rates])[families]
    return _Tables(model, versions_of(_tensors_of(model)), lanes, length, rates_of_lanes, tensors)


def _positions(model: Layered, lanes: int, length: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return positions added to the stream [L, s, d], or cosines and sines [L, s, c / 2]."""
    position, half = model.position, model.width // model.heads // 2
    if isinstance(position, Sinusoidal):
        nothing = torch.zeros(1, length, model.width, dtype=dtype)
        return {"placed": torch.cat([encoding.add_to(nothing, {}) for encoding in _of_each_lane(position, lanes)])}
    if isinstance(position, Rotary):
        along = torch.cat([torch.ones(length, half), torch.zeros(length, half)], -1)[None, None].to(dtype)
        turned = torch.cat([encoding.rotate(along)[0] for encoding in _of_each_lane(position, lanes)])
        first, second = turned.split(half, dim=-1)
        return {"cosines": first.contiguous(), "sines": second.contiguous()}
    return {}


def _of_each_lane(position: Position, lanes: int) -> list[Any]:
    """Return the position with each lane's own knobs."""
    knobs = {name: plans.per_lane(value, lanes).tolist() for name, value in plugins.knobs(position)}
    by_lane = [{name: values[lane] for name, values in knobs.items()} for lane in range(lanes)]
    return [plugins.replace(position, settings) for settings in by_lane]
