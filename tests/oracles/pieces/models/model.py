"""What all models have in common."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from tests.oracles.pieces.parameters import Batch, Parameter, Values

Site = tuple[tuple[int, ...], float]
"""A place where dropout acts: the shape of its mask, and its rate."""


class Model:
    """A function of parameters, a batch and dropout masks."""

    scorer: Any

    def parameters(self, task: Any) -> dict[str, Parameter]:
        """Return what it learns, in the order in which the tensors take their random numbers."""
        raise NotImplementedError

    def sites(self, task: Any, count: int, length: int) -> dict[str, Site]:
        """Its places of dropout for inputs [count, length, ...]; the place in this order is the site of the stream."""
        return {}

    def outputs(self, values: Values, batch: Batch, keep: Values) -> Tensor:
        """Return what it says of a batch; `keep` has the masks of the sites in use, none where it is evaluated."""
        raise NotImplementedError

    def evaluations(self) -> dict[str, Model]:
        """Label -> the model that is evaluated, with the same parameters."""
        models: dict[str, Model] = {}
        for label, scorer in self.scorer.evaluations().items():
            models[label] = copy.copy(self)
            models[label].scorer = scorer
        return models


def is_given(batch: Batch) -> Tensor:
    """[N, s] which positions belong to a sequence, at least the first."""
    inputs = batch["inputs"]
    positions = torch.arange(inputs.shape[1])
    lengths = batch.get("lengths", torch.full((len(inputs),), inputs.shape[1]))
    return positions < lengths[:, None].clamp(min=1)


def drop(values: Tensor, name: str, rate: float, keep: Values) -> Tensor:
    """Inverted dropout (Srivastava et al. 2014), where the site is in use."""
    return values * keep[name] / (1 - rate) if name in keep else values
