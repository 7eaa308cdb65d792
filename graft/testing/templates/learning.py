"""A way of learning: what of a model is trained, on which data, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad_and_value

from spaces.plugins.fields import knob
from workers.data.tasks import Batch, Task
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter, Parameters
from workers.numerics.randomness import Purpose, Streams
from workers.training.learning import EvaluateModel, Learning, Loss
from workers.training.optimizers import Descent, Moments, Optimizer


@dataclass(frozen=True, kw_only=True)
class Example(Learning):
    """All weights descend the loss plus `penalty` times their squared norm."""

    penalty: float = knob(1e-3, low=0)

    def parameters(self, model: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
        return model

    def training(self, task: Task, seeds: Tensor, batch: int, step: Tensor) -> Batch:
        return task.training(Streams.of(seeds, Purpose.TRAINING_DATA, step), batch, step)

    def gradient(self, layout: Layout, flat: Tensor, batch: Batch, loss: Loss) -> tuple[Tensor, Tensor]:
        penalty = torch.as_tensor(self.penalty, dtype=torch.float64).to(flat.dtype)

        def add_penalty(named: Parameters) -> Tensor:
            return loss(named, batch) + penalty * layout.join(named).square().sum()

        named, value = grad_and_value(add_penalty)(layout.split(flat))
        return layout.join(named), value

    def start(self, optimizer: Optimizer, layout: Layout, flat: Tensor) -> Moments:
        return optimizer.start(flat, layout)

    def update(self, optimizer: Optimizer, layout: Layout, descent: Descent) -> tuple[Tensor, Moments]:
        return optimizer.descend(descent, layout)

    def evaluate(self, layout: Layout, flat: Tensor, evaluate_model: EvaluateModel) -> dict[str, Tensor]:
        return evaluate_model(layout.split(flat))
