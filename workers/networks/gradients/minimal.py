"""The minimal transformer's loss, gradient and outputs in C++, under next-token cross entropy.

The same function as the model `minimal` differentiated by torch, to 1e-10 in float64, from the same
random bytes (tests/workers/engine/test_native.py). minimal.hpp explains its layout.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spaces import plugins
from spaces.plugins import actual, name_of
from workers.data.tasks import Batch, NextToken, Task
from workers.networks.gradients import activating, plans, scoring
from workers.networks.models.minimal import Minimal
from workers.networks.scorers import KernelScorer
from workers.numerics.native import address
from workers.numerics.randomness import NativeSites, SiteStreams
from workers.numerics.tensors import Versions, are_of, versions_of

_SITES, _WHOLE_TOKENS = (1, 2), 4
"""Bits of an argument: the dropout sites in use, and whether they drop entries of whole tokens."""


def find_obstacle(model: Minimal, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Compile the model's scorer; return why its gradient is not native on this task, or None."""
    if device.type == "cpu":
        scoring.begin_compiling(model.scorer, dtype)
    if reason := plans.find_library_obstacle("minimal", dtype, device):
        return reason
    if not isinstance(task, NextToken):
        return f"the loss of {name_of(task)} is not known to the native step"
    return scoring.find_obstacle(model.scorer, dtype)


@dataclass(frozen=True)
class _Tables:
    """The tensors of a set of lanes that depend on knobs and actual sizes alone."""

    model: Minimal
    length: int
    seen: Versions
    """The knobs and actual sizes, with versions: a trial that takes a lane writes into them."""
    knobs: Tensor  # [L, 4 + knobs of the scorer and its features]
    sizes: Tensor  # [L, 5] int64
    rates: Tensor  # [k, L] float64, of the dropout sites in use
    placing: Tensor | None  # [s, s]

    def serve(self, model: Minimal, length: int) -> bool:
        """Return whether these are the tables of this bound model."""
        known = model is self.model and length == self.length
        return known and are_of(self.seen, (tensor for tensor, _ in self.seen))


class NativeMinimal:
    """One shape of the model, whose rates tell which dropout sites are in use.

    A lane of smaller actual sizes is computed at these, from parameters without padding.
    """

    def __init__(self, model: Minimal, task: Task, dtype: torch.dtype) -> None:
        assert isinstance(task, NextToken), "there is no obstacle"
        self._function = plans.function_of("minimal", dtype)
        self._outputs = plans.function_of("minimal", dtype, "minimal_outputs")
        self._dtype = dtype
        starts, self._total = plans.starts_of(model.parameters(task))
        phi, [learned] = scoring.features_of(model.scorer), scoring.learned_by(model.scorer, heads=1)
        offsets = [starts[name] for name, _ in learned + activating.learned_by(phi, "scorer.phi")]
        of_scorer = scoring.described([model.scorer], dtype)[0]
        features = activating.described(phi, dtype)
        self._scorer = torch.cat([of_scorer, features, torch.tensor(offsets).long()])
        self._sizes = task.tokens, model.width, model.key_width, model.value_width
        rates = model.embedding_dropout, model.residual_dropout
        self._on = [number for number, rate in enumerate(rates) if rate]
        self._dropped = NativeSites(self._on, self._on, len(rates))
        self._whole_tokens = _WHOLE_TOKENS if model.dropout_unit == "token" else 0
        self._tables: _Tables | None = None

    def gradient(
        self, model: Minimal, task: Task, parameters: Tensor, batch: Batch, streams: SiteStreams
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(task, NextToken)
        inputs, targets = batch["inputs"].contiguous(), batch["targets"].contiguous()
        parameters = parameters.contiguous()
        lanes, sequences, length = inputs.shape
        tables = self._tables_of(model, task, lanes, length, task.actual_context)
        states, thresholds = self._dropped.draw(streams, tables.rates)
        gradient, loss = torch.empty_like(parameters), parameters.new_empty(lanes)
        tensors = tables.sizes, parameters, gradient, loss, inputs, targets, tables.knobs, states, thresholds
        arguments = self._told(sequences, length, lanes, tables)
        dropout = sum(_SITES[site] for site in self._on) + self._whole_tokens
        if self._function(*arguments, *map(address, tensors), dropout):
            raise MemoryError("the native step")
        return gradient, loss

    def outputs(self, model: Minimal, task: Task, parameters: Tensor, batch: Batch) -> Tensor:
        assert isinstance(task, NextToken)
        parameters, inputs = parameters.contiguous(), batch["inputs"].contiguous()
        lanes, sequences, length = inputs.shape
        # Padding is computed, too: no position sees a later one, and no metric reads it.
        tables = self._tables_of(model, task, lanes, length, length)
        outputs = parameters.new_empty(*inputs.shape, task.tokens)
        tensors = tables.sizes, parameters, outputs, inputs, tables.knobs
        if self._outputs(*self._told(sequences, length, lanes, tables), *map(address, tensors)):
            raise MemoryError("the native step")
        return outputs

    def _told(self, sequences: int, length: int, lanes: int, tables: _Tables) -> list[Any]:
        """Return the first arguments of both functions."""
        placing = None if tables.placing is None else address(tables.placing)
        sizes = sequences, length, *self._sizes, lanes
        return [*sizes, ctypes.c_int64(self._total), address(self._scorer), placing]

    def _tables_of(
        self, model: Minimal, task: NextToken, lanes: int, length: int, actual_length: int | Tensor
    ) -> _Tables:
        """Return tables for `length` positions, of which a lane has `actual_length`."""
        if self._tables is None or not self._tables.serve(model, length):
            sizes = own_sizes(model, task, actual_length if isinstance(actual_length, Tensor) else length)
            rates, own_knobs = _rates_of(model, lanes), scoring.knobs_of_heads(model.scorer, 1)
            of_scorer = [plans.per_lane(knob, lanes)[:, None] for knob in own_knobs]
            seen: list[Any] = [*sizes, *(value for _, value in plugins.knobs(model))]
            self._tables = _Tables(
                model=model,
                length=length,
                seen=versions_of(number for number in seen if isinstance(number, Tensor)),
                knobs=torch.cat([stack_knobs(model, lanes), *of_scorer], -1).to(self._dtype),
                sizes=torch.stack([plans.per_lane(size, lanes) for size in sizes], -1).long(),
                rates=torch.stack(rates)[self._on],
                placing=scoring.placing_of(model.scorer, length, length, self._dtype),
            )
        return self._tables


def own_sizes(model: Minimal, task: NextToken, length: int | Tensor) -> list[int | Tensor]:
    """Return length, tokens, width, key and value width without padding, [L] where they differ."""
    widths = (actual(model, name) for name in ("width", "key_width", "value_width"))
    return [length, task.actual_tokens, *widths]


def stack_knobs(model: Minimal, lanes: int, device: torch.device | None = None) -> Tensor:
    """Return [L, 4] float64 of a model bound to lanes.

    Columns: scale of logits (1 for products of features), epsilon of the norm, dropouts' scales.
    """
    rates = _rates_of(model, lanes, device)
    unscaled = isinstance(model.scorer, KernelScorer)
    scale = 1 / plans.per_lane(1 if unscaled else actual(model, "key_width"), lanes, device).sqrt()
    epsilon = plans.per_lane(model.norm_epsilon, lanes, device)
    return torch.stack([scale, epsilon, *(1 / (1 - rate) for rate in rates)], -1)


def _rates_of(model: Minimal, lanes: int, device: torch.device | None = None) -> list[Tensor]:
    rates = model.embedding_dropout, model.residual_dropout
    return [plans.per_lane(rate, lanes, device) for rate in rates]
