"""One layer of attention whose softmax is linear, with merged matrices: the model of paper 004."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.oracles.pieces.models.model import Model
from tests.oracles.pieces.parameters import Batch, Parameter, Values, start_constant


@dataclass(kw_only=True)
class LinearisedAttentionModel(Model):
    """Mean u + (1 / temperature) mean (z - mean z) u over the other positions, z = (x, y) . M x_q and u = (x, y) V."""

    temperature: float
    estimated: bool
    temperatures: str
    centred: bool

    def parameters(self, task: Any) -> dict[str, Parameter]:
        inputs = task.features - 1
        return {
            "score_of_inputs": Parameter((inputs, inputs)),
            "score_of_label": Parameter((1, inputs), start_constant(0.0)),
            "value_of_inputs": Parameter((inputs, task.outputs), start_constant(0.0)),
            "value_of_label": Parameter((1, task.outputs), start_constant(1.0)),
        }

    def evaluations(self) -> dict[str, Model]:
        models: dict[str, Model] = {"": self}
        for label in (*self.temperatures.split(), "estimated"):
            other = copy.copy(self)
            other.estimated = label == "estimated"
            other.temperature = self.temperature if other.estimated else float(label)
            models[f"temperature={label}"] = other
        return models

    def outputs(self, values: Values, batch: Batch, keep: Values) -> Tensor:
        score, value = (
            torch.cat([values[f"{part}_of_inputs"], values[f"{part}_of_label"]]) for part in ("score", "value")
        )
        rows = batch["inputs"].to(score.dtype)  # [N, s, f]
        length = rows.shape[1]
        logits = rows[..., :-1] @ score.T @ rows.mT  # [N, q, k]
        others = 1 - torch.eye(length, dtype=rows.dtype)  # no position has a logit for itself
        if not self.centred:
            weights = others * logits / self._temperature(rows, values) / (length - 1)
            return weights @ (rows @ value)
        mean = (logits * others).sum(-1, keepdim=True) / (length - 1)
        weights = others * (1 + (logits - mean) / self._temperature(rows, values)) / (length - 1)
        return weights @ (rows @ value)

    def _temperature(self, rows: Tensor, values: Values) -> float | Tensor:
        """As it is, or [N, 1, 1] by the heuristic of Appendix J: from the logits between inputs."""
        if not self.estimated:
            return self.temperature
        inputs = rows[..., :-1]
        if self.centred:
            inputs = inputs - inputs.mean(1, keepdim=True)
        logits = inputs @ values["score_of_inputs"] @ inputs.mT
        diagonal = logits.diagonal(dim1=1, dim2=2)
        length = rows.shape[1]
        second = ((logits**2).sum((1, 2)) - (diagonal**2).sum(1)) / (length * (length - 1))
        ratio = second / diagonal.mean(1) * values["value_of_label"][0, 0]
        return self.temperature * torch.where((ratio > 0) & ratio.isfinite(), ratio, 1)[:, None, None]
