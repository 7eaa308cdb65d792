"""The minimal transformer of paper 003: one layer, one head, attention only, no positions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spaces.plugins import Examples, actual, name_of, replace
from spaces.plugins.fields import knob, option, part, size
from workers.data.tasks import Batch, Task, TokenTask
from workers.networks.models import (
    HIGHEST_RATE,
    Affine,
    Attention,
    Model,
    Site,
    check_causality,
    drop,
    dropout_scale,
    require_task,
)
from workers.networks.scorers import LogitScorer, Scorer, scaled_logits
from workers.numerics.parameters import Constant, Parameter, Parameters, under, within
from workers.numerics.tensors import inverse_root, one_hot


@dataclass(frozen=True, kw_only=True)
class Minimal(Model):
    """f(t) = E[t_s] U + sum_i w(t_s, t_i) E'[t_i] W_V W_O U, E' = RMSNorm(E) (paper 003, eq. 3).

    Queries and keys are E' W_Q and E' W_K, logits are scaled by 1 / sqrt(key_width). Embedding
    dropout acts on the embedding of each occurrence of a token, before the norm and on the residual
    stream alike; residual dropout acts on the row E'[t_i] W_V W_O of each occurrence, before
    attention mixes the rows and before U (3.2). There is no dropout on attention weights, no bias,
    and no norm before U. Embedding and norm are exempt from weight decay (5.4).

    The paper's wording also allows dropout of entries of the per-token matrices E and E' W_V W_O,
    with one mask for all occurrences of a token in a minibatch, at no cost: `dropout_unit: token`.

    Without embedding dropout per occurrence all depends on tokens only, so queries, keys and
    displacements are computed once per token: v x v tables, exactly the same function.

    Padding with zeros changes nothing: it gets no gradient and stays zero, the norm divides by the
    actual width, the logits by the root of the actual key width.

    Legend: N sequences, s positions, v tokens, d width.
    """

    EXAMPLES: ClassVar[Examples] = ({"width": 6, "key_width": 3, "value_width": 5},)

    width: int = size(padded=8)
    key_width: int = size(padded=32)
    value_width: int = size(padded=32)
    scorer: Scorer = part(Scorer, "softmax")
    norm_epsilon: float = knob(1e-6, low=0)
    embedding_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    residual_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    dropout_unit: str = option("occurrence", ("occurrence", "token"))

    @property
    def padding_obstacle(self) -> str | None:
        if isinstance(self.scorer, LogitScorer) and self.scorer.may_pad:
            return None
        scorer = name_of(self.scorer)
        return (
            f"its scorer {scorer} counts all keys, averages over all positions, or sees how wide queries and keys are"
        )

    @property
    def causal(self) -> bool:
        return True

    def check(self, task: Task) -> None:
        """Accept any causal task over tokens: there are no positions and so no longest input."""
        check_causality(require_task(TokenTask, task, self), self, causal=True)

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        tokens = require_task(TokenTask, task, self).tokens
        return {
            "embedding": Parameter(shape=(tokens, self.width), decay=False),
            "norm": Parameter(shape=(self.width,), start=Constant(value=1), decay=False),
            "query": Parameter(shape=(self.width, self.key_width), matrices=1),
            "key": Parameter(shape=(self.width, self.key_width), matrices=1),
            "value": Parameter(shape=(self.width, self.value_width), matrices=1),
            "output": Parameter(shape=(self.value_width, self.width), matrices=1),
            "unembedding": Parameter(shape=(self.width, tokens)),
            **under("scorer", self.scorer.parameters(heads=1)),
        }

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        task = require_task(TokenTask, task, self)
        rates = {"embedding": self.embedding_dropout, "residual": self.residual_dropout}
        per_token, width = self.dropout_unit == "token", actual(self, "width")
        shape = (*((task.tokens,) if per_token else (batch, length)), self.width)
        actual_shape = (*((task.actual_tokens,) if per_token else (batch, task.actual_context)), width)
        actual_shape = actual_shape if isinstance(width, Tensor) else ()
        return {name: Site(shape=shape, rate=rate, actual=actual_shape) for name, rate in rates.items()}

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        embedding, unembedding = parameters["embedding"], parameters["unembedding"]
        tokens = one_hot(batch["inputs"], embedding.shape[0], embedding.dtype)  # [N, s, v]
        per_token = self.dropout_unit == "token"
        if not isinstance(self.scorer, LogitScorer):
            masks = {name: tokens @ mask.to(tokens.dtype) for name, mask in keep.items()} if per_token else keep
            return self._per_occurrence(parameters, tokens, masks)
        if "embedding" in keep and not per_token:
            return self._per_occurrence(parameters, tokens, keep)
        if "embedding" in keep:  # dropout of whole tokens
            embedding = drop(embedding * dropout_scale(self.embedding_dropout, embedding), keep["embedding"])
        normed = self._normalize(embedding)  # [v, d]
        table = scaled_logits(*self._queries_keys(normed, parameters))  # [v, v]
        logits = ((tokens @ table) @ tokens.mT)[:, None]  # [N, 1, s, s]
        visible = _causal(tokens.shape[-2], tokens)
        weights = self.scorer.of_logits(logits, visible, within("scorer", parameters))[:, 0]
        rows = normed @ self._row_matrix(parameters, keep)  # [v, d]
        if "residual" in keep and not per_token:
            displacement = (weights @ drop(tokens @ rows, keep["residual"])) @ unembedding
        else:
            rows = drop(rows, keep["residual"]) if "residual" in keep else rows
            displacement = (weights @ tokens) @ (rows @ unembedding)
        return tokens @ (embedding @ unembedding) + displacement

    def attention(self, parameters: Parameters, batch: Batch) -> Sequence[Attention]:
        embedding = parameters["embedding"]
        normed = self._normalize(one_hot(batch["inputs"], embedding.shape[0], embedding.dtype) @ embedding)
        gain, visible = parameters["norm"][:, None], _causal(normed.shape[-2], normed)
        query_from, key_from = (
            Affine(normed, (gain * parameters[name])[None], embedding.new_zeros(1, self.key_width))
            for name in ("query", "key")
        )
        query, key = (vectors[:, None] for vectors in self._queries_keys(normed, parameters))
        weights = self.scorer.weights(query, key, visible, within("scorer", parameters))
        return (Attention(query, key, weights, visible, query_from, key_from),)

    def evaluations(self) -> Mapping[str, Model]:
        off = {"embedding_dropout": 0.0, "residual_dropout": 0.0}
        return {label: replace(model, off) for label, model in super().evaluations().items()}

    def _per_occurrence(self, parameters: Parameters, tokens: Tensor, keep: Mapping[str, Tensor]) -> Tensor:
        if "embedding" in keep:
            scaled = parameters["embedding"] * dropout_scale(self.embedding_dropout, tokens)
            stream = drop(tokens @ scaled, keep["embedding"])  # [N, s, d]
        else:
            stream = tokens @ parameters["embedding"]
        normed = self._normalize(stream)
        query, key = (vectors[:, None] for vectors in self._queries_keys(normed, parameters))
        visible = _causal(tokens.shape[-2], tokens)
        weights = self.scorer.weights(query, key, visible, within("scorer", parameters))[:, 0]
        rows = normed @ self._row_matrix(parameters, keep)
        if "residual" in keep:
            rows = drop(rows, keep["residual"])
        return (stream + weights @ rows) @ parameters["unembedding"]

    def _normalize(self, vectors: Tensor) -> Tensor:
        """Apply RMSNorm (Zhang and Sennrich 2019) without its gain, which readers multiply in."""
        width = actual(self, "width")
        if isinstance(width, int):
            squares = vectors.square().mean(-1, keepdim=True) + self.norm_epsilon
            return vectors * inverse_root(squares)
        # The mean is taken of the lane's own channels; beyond its width there are only zeros.
        squares = vectors.square().sum(-1, keepdim=True) / width.to(vectors.dtype) + self.norm_epsilon
        return vectors * inverse_root(squares.masked_fill(squares == 0, 1.0))  # padded tokens

    def _queries_keys(self, normed: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor]:
        gain, key_width = parameters["norm"][:, None], actual(self, "key_width")
        key = normed @ (gain * parameters["key"])
        if not isinstance(key_width, int):  # the scorer divides by the root of the padded key width
            gain = gain * (math.sqrt(self.key_width) / key_width.sqrt()).to(gain.dtype)
        return normed @ (gain * parameters["query"]), key

    def _row_matrix(self, parameters: Parameters, keep: Mapping[str, Tensor]) -> Tensor:
        """Return the map [d, d] to the rows that attention mixes, with dropout's scale."""
        gain = parameters["norm"][:, None]
        matrix = (gain * parameters["value"]) @ parameters["output"]
        return matrix * dropout_scale(self.residual_dropout, matrix) if "residual" in keep else matrix


def _causal(length: int, like: Tensor) -> Tensor:
    """Return the mask [s, s] by which position q sees the positions up to itself."""
    return torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
