"""The minimal transformer of paper 003: one layer, one head, attention only, no positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces.fields import knob, part, size
from workers.models import HIGHEST_RATE, Model, Parameter, Parameters, Site, dropped, scale_of
from workers.scorers import Scorer
from workers.tasks import Task
from workers.tensors import one_hot


@dataclass(frozen=True, kw_only=True)
class Minimal(Model):
    """f(t) = E[t_s] U + sum_i w(t_s, t_i) E'[t_i] W_V W_O U, E' = RMSNorm(E) (paper 003, eq. 3).

    Queries and keys are E' W_Q and E' W_K, logits are scaled by 1 / sqrt(key_width). Embedding dropout acts on the
    embedding of each occurrence of a token, before the norm and on the residual stream alike; residual dropout acts on
    the row E'[t_i] W_V W_O of each occurrence, before attention mixes the rows and before U (3.2). There is no dropout
    on attention weights, no bias, and no norm before U. Embedding and norm are exempt from weight decay (5.4).

    Without embedding dropout everything depends on tokens only, so that queries, keys and displacements are computed
    once per token instead of once per occurrence: v x v tables, exactly the same function.

    Legend: N sequences, s positions, v tokens, d width.
    """

    width: int = size()
    key_width: int = size()
    value_width: int = size()
    scorer: Scorer = part(Scorer, "softmax")
    norm_epsilon: float = knob(1e-6, low=0)
    embedding_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    residual_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)

    def check(self, task: Task) -> None:
        """Any task over tokens fits: there are no positions and so no longest input."""

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        return {
            "embedding": Parameter(shape=(task.tokens, self.width), decay=False),
            "norm": Parameter(shape=(self.width,), start="ones", decay=False),
            "query": Parameter(shape=(self.width, self.key_width)),
            "key": Parameter(shape=(self.width, self.key_width)),
            "value": Parameter(shape=(self.width, self.value_width)),
            "output": Parameter(shape=(self.value_width, self.width)),
            "unembedding": Parameter(shape=(self.width, task.tokens)),
        }

    def dropout_sites(self, batch: int, length: int) -> Mapping[str, Site]:
        rates = {"embedding": self.embedding_dropout, "residual": self.residual_dropout}
        shape = (batch, length, self.width)
        return {name: Site(shape=shape, rate=rate) for name, rate in rates.items()}

    def logits(self, parameters: Parameters, inputs: Tensor, keep: Mapping[str, Tensor]) -> Tensor:
        embedding, unembedding = parameters["embedding"], parameters["unembedding"]
        tokens = one_hot(inputs, embedding.shape[0], embedding.dtype)  # [N, s, v]
        if "embedding" in keep:
            return self._per_occurrence(parameters, tokens, keep)
        normed = self._normed(embedding)  # [v, d]
        table = self._attention_logits(normed, parameters)  # [v, v]
        weights = self._weights((tokens @ table) @ tokens.mT)
        rows = normed @ self._row_matrix(parameters, keep)  # [v, d]
        if "residual" in keep:
            displacement = (weights @ dropped(tokens @ rows, keep["residual"])) @ unembedding
        else:
            displacement = (weights @ tokens) @ (rows @ unembedding)
        return tokens @ (embedding @ unembedding) + displacement

    def _per_occurrence(self, parameters: Parameters, tokens: Tensor, keep: Mapping[str, Tensor]) -> Tensor:
        scaled = parameters["embedding"] * scale_of(self.embedding_dropout, tokens)
        stream = dropped(tokens @ scaled, keep["embedding"])  # [N, s, d]
        normed = self._normed(stream)
        weights = self._weights(self._attention_logits(normed, parameters))
        rows = normed @ self._row_matrix(parameters, keep)
        if "residual" in keep:
            rows = dropped(rows, keep["residual"])
        return (stream + weights @ rows) @ parameters["unembedding"]

    def _normed(self, vectors: Tensor) -> Tensor:
        """RMSNorm (Zhang and Sennrich 2019) but for its learned scale, which is multiplied into what reads it."""
        return vectors * torch.rsqrt(vectors.square().mean(-1, keepdim=True) + self.norm_epsilon)

    def _attention_logits(self, normed: Tensor, parameters: Parameters) -> Tensor:
        gain = parameters["norm"][:, None]
        query, key = normed @ (gain * parameters["query"]), normed @ (gain * parameters["key"])
        return query @ key.mT / math.sqrt(self.key_width)

    def _row_matrix(self, parameters: Parameters, keep: Mapping[str, Tensor]) -> Tensor:
        """[d, d] that makes a normed embedding the row that attention mixes; with the scale of the dropout on rows."""
        gain = parameters["norm"][:, None]
        matrix = (gain * parameters["value"]) @ parameters["output"]
        return matrix * scale_of(self.residual_dropout, matrix) if "residual" in keep else matrix

    def _weights(self, logits: Tensor) -> Tensor:
        length = logits.shape[-1]
        visible = torch.ones(length, length, dtype=torch.bool, device=logits.device).tril()
        return self.scorer.weights(logits, visible)
