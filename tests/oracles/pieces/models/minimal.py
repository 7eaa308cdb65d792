"""The minimal transformer of paper 003: one layer, one head, attention alone, no positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tests.oracles.pieces.models.model import Model, Site, drop
from tests.oracles.pieces.parameters import Batch, Parameter, Values, start_constant, under, within
from tests.oracles.pieces.parts import build


@dataclass(kw_only=True)
class MinimalModel(Model):
    """E[t_s] U + sum_i w(t_s, t_i) E'[t_i] W_V W_O U, E' = RMSNorm(E) (equation 3)."""

    width: int
    key_width: int
    value_width: int
    scorer: Any
    norm_epsilon: float
    embedding_dropout: float
    residual_dropout: float
    dropout_unit: str

    def __post_init__(self) -> None:
        self.scorer = build("scorer", self.scorer)

    def parameters(self, task: Any) -> dict[str, Parameter]:
        return {
            "embedding": Parameter((task.tokens, self.width), decays=False),
            "norm": Parameter((self.width,), start_constant(1.0), decays=False),
            "query": Parameter((self.width, self.key_width), matrices=1),
            "key": Parameter((self.width, self.key_width), matrices=1),
            "value": Parameter((self.width, self.value_width), matrices=1),
            "output": Parameter((self.value_width, self.width), matrices=1),
            "unembedding": Parameter((self.width, task.tokens)),
            **under("scorer", self.scorer.parameters(1)),
        }

    def sites(self, task: Any, count: int, length: int) -> dict[str, Site]:
        rows = (task.tokens,) if self.dropout_unit == "token" else (count, length)
        shape = (*rows, self.width)
        return {"embedding": (shape, self.embedding_dropout), "residual": (shape, self.residual_dropout)}

    def outputs(self, values: Values, batch: Batch, keep: Values) -> Tensor:
        tokens = batch["inputs"]
        if self.dropout_unit == "token":
            keep = {name: mask[tokens] for name, mask in keep.items()}
        stream = drop(values["embedding"][tokens], "embedding", self.embedding_dropout, keep)
        normed = functional.rms_norm(stream, (self.width,), values["norm"], self.norm_epsilon)
        rows = drop(normed @ values["value"] @ values["output"], "residual", self.residual_dropout, keep)
        visible = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
        query, key = ((normed @ values[name])[:, None] for name in ("query", "key"))
        weights = self.scorer.weights(query, key, None, visible, within("scorer", values))[:, 0]
        return (stream + weights @ rows) @ values["unembedding"]
