"""The usual way: one model, whose weights descend its training loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor
from torch.func import grad_and_value

from workers.data.tasks import Batch, Task
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter
from workers.numerics.randomness import Purpose, Streams
from workers.training.learning import EvaluateModel, Learning, Loss
from workers.training.optimizers import Descent, Moments, Optimizer


@final
@dataclass(frozen=True, kw_only=True)
class Weights(Learning):
    """One model: all that it learns, its non-linearities included, descends the training loss."""

    @property
    def is_plain(self) -> bool:
        return True

    def parameters(self, model: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
        return model

    def training(self, task: Task, seeds: Tensor, batch: int, step: Tensor) -> Batch:
        return task.training(Streams.of(seeds, Purpose.TRAINING_DATA, step), batch, step)

    def gradient(self, layout: Layout, flat: Tensor, batch: Batch, loss: Loss) -> tuple[Tensor, Tensor]:
        named, value = grad_and_value(lambda named: loss(named, batch))(layout.split(flat))
        return layout.join(named), value

    def start(self, optimizer: Optimizer, layout: Layout, flat: Tensor) -> Moments:
        return optimizer.start(flat, layout)

    def update(self, optimizer: Optimizer, layout: Layout, descent: Descent) -> tuple[Tensor, Moments]:
        return optimizer.descend(descent, layout)

    def evaluate(self, layout: Layout, flat: Tensor, evaluate_model: EvaluateModel) -> dict[str, Tensor]:
        return evaluate_model(layout.split(flat))
