"""The minimal transformer's loss and gradient in C++, for softmax and uniform attention under next-token cross entropy.

The same function as the model `minimal` differentiated by torch, to 1e-10 in float64, from the same random bytes
(tests/test_native.py). minimal.cpp says how it is laid out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from spaces.plugins import actual, name_of
from workers.data.tasks import Batch, NextToken, Task
from workers.networks.gradients import NativeGradient
from workers.networks.gradients.plans import find_obstacle, function_of, per_lane
from workers.networks.scorers import Scorer
from workers.networks.scorers.average import Average
from workers.networks.scorers.softmax import Softmax
from workers.numerics.native import address
from workers.numerics.randomness import Streams, drop_bytes

_SITES, _WHOLE_TOKENS = (1, 2), 4
"""Bits of the argument that says which dropout sites are on, and whether they drop entries of per-token matrices."""


class Minimal(Protocol):
    """What the gradient reads of `workers.networks.models.minimal.Minimal`, which imports this module."""

    @property
    def scorer(self) -> Scorer: ...
    @property
    def width(self) -> int: ...
    @property
    def key_width(self) -> int: ...
    @property
    def value_width(self) -> int: ...
    @property
    def norm_epsilon(self) -> float: ...
    @property
    def embedding_dropout(self) -> float: ...
    @property
    def residual_dropout(self) -> float: ...
    @property
    def dropout_unit(self) -> str: ...


def obstacle(model: Minimal, task: Task, dtype: torch.dtype, device: torch.device) -> str | None:
    """Why the model's gradient on this task is not computed here; None: it is."""
    if reason := find_obstacle(dtype, device):
        return reason
    if not isinstance(task, NextToken):
        return f"the loss of {name_of(task)} is not known to the native step"
    if not isinstance(model.scorer, Softmax | Average):
        return f"the scorer {name_of(model.scorer)} is not in the native step"
    return None


def native_gradient(model: Minimal, task: Task, dtype: torch.dtype, device: torch.device) -> NativeGradient | None:
    """The native gradient; None where there is an obstacle."""
    return None if obstacle(model, task, dtype, device) else _Gradient(model, task, dtype)


class _Gradient:
    """One shape of the model; `model` says by its rates which dropout sites are on.

    A lane whose actual sizes are smaller is computed at these, from a copy of its parameters without the padding.
    """

    def __init__(self, model: Minimal, task: Task, dtype: torch.dtype) -> None:
        assert isinstance(task, NextToken), "there is no obstacle"
        self._function = function_of("minimal", dtype)
        self._sizes = task.tokens, model.width, model.key_width, model.value_width
        on = model.embedding_dropout, model.residual_dropout
        self._sites = sum(bit for bit, rate in zip(_SITES, on, strict=True) if rate)
        self._sites += _WHOLE_TOKENS if model.dropout_unit == "token" else 0

    def __call__(
        self, model: Minimal, task: Task, parameters: Tensor, batch: Batch, streams: Sequence[Streams]
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(task, NextToken)
        inputs, targets = batch["inputs"].contiguous(), batch["targets"].contiguous()
        lanes, sequences, length = inputs.shape
        rates = [per_lane(rate, lanes) for rate in (model.embedding_dropout, model.residual_dropout)]
        scales = [1 / (1 - rate) for rate in rates]
        columns = [_logit_scale(model, lanes), per_lane(model.norm_epsilon, lanes), *scales]
        knobs = torch.stack(columns, -1).to(parameters.dtype)
        drawn = [drop_bytes(stream, rate) for stream, rate in zip(streams, rates, strict=True)]
        states = torch.stack([state for state, _ in drawn], -1)
        thresholds = torch.stack([threshold for _, threshold in drawn], -1)
        sizes, parameters = self._actual_sizes(model, task, lanes, length), parameters.contiguous()
        gradient, loss = torch.empty_like(parameters), parameters.new_empty(lanes)
        status = self._function(
            *map(ctypes.c_int, (sequences, length, *self._sizes, lanes)),
            *map(address, (sizes, parameters, gradient, loss, inputs, targets, knobs, states, thresholds)),
            ctypes.c_int(self._sites),
        )
        if status:
            raise MemoryError("the native step")
        return gradient, loss

    def _actual_sizes(self, model: Minimal, task: NextToken, lanes: int, length: int) -> Tensor:
        """[L, 5] int64."""
        widths = [actual(model, field) for field in ("width", "key_width", "value_width")]
        sizes = [task.actual_context, task.actual_tokens, *widths]
        if isinstance(widths[0], int):
            return torch.tensor([length, *self._sizes]).expand(lanes, -1).contiguous()
        return torch.stack([per_lane(size, lanes) for size in sizes], -1).long()


def _logit_scale(model: Minimal, lanes: int) -> Tensor:
    """[L] what queries times keys are multiplied by; with zero all keys weigh the same."""
    if isinstance(model.scorer, Average):
        return torch.zeros(lanes, dtype=torch.float64)
    assert isinstance(model.scorer, Softmax)
    return 1 / (per_lane(model.scorer.temperature, lanes) * per_lane(actual(model, "key_width"), lanes).sqrt())
