"""Transformers of several layers: over tokens, causal or not, and over vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from tests.oracles.pieces.models.model import Model, Site, drop, is_given
from tests.oracles.pieces.parameters import (
    Batch,
    Parameter,
    Values,
    start_constant,
    start_normal,
    start_uniform,
    under,
    within,
)
from tests.oracles.pieces.parts import build

Start = Callable[[Tensor], Tensor]


def make_linear(
    name: str, inputs: int, outputs: int, bias: bool, matrices: int, start: Start, bias_start: Start | None = None
) -> dict[str, Parameter]:
    """Return the map x W, or x W + b."""
    weight = {name: Parameter((inputs, outputs), start, matrices=matrices)}
    offset = Parameter((outputs,), bias_start or start_constant(0.0), decays=False)
    return weight | {f"{name}_bias": offset} if bias else weight


def apply_linear(vectors: Tensor, name: str, learned: Values) -> Tensor:
    """Return the map of this name; weights are [inputs, outputs]."""
    return functional.linear(vectors, learned[name].T, learned.get(f"{name}_bias"))


@dataclass(kw_only=True)
class Layered(Model):
    """Layers that add attention, then an MLP, to the residual stream; norms before each or after each sum."""

    causal: ClassVar[bool] = True

    depth: int
    heads: int
    width: int
    mlp_multiple: int
    scorer: Any
    activation: Any
    activation_per_layer: bool
    position: Any
    pre_norm: bool
    norm: str
    norm_epsilon: float
    query_key_norm: bool
    bias: bool
    canon: str
    initialisation: str
    embedding_dropout: float
    attention_dropout: float
    mlp_dropout: float
    weight_dropout: float

    def __post_init__(self) -> None:
        self.scorer = build("scorer", self.scorer)
        self.activation = build("activation", self.activation)
        self.position = build("position", self.position)

    def start(self, kind: str, inputs: int = 0) -> Start:
        """How a `map`, `residual` map, `embedding` or `unembedding` starts."""
        if self.initialisation == "modded_nanogpt":
            if kind == "map":
                return start_uniform(1 / sqrt(inputs))
            return start_normal(1.0, inf) if kind == "embedding" else start_constant(0.0)
        if self.initialisation == "gpt2" and kind == "residual":
            return start_normal(0.02 / sqrt(2 * self.depth), inf)
        return start_normal(0.02, 2.0 if self.initialisation == "truncated_normal" else inf)

    def read_parameters(self, task: Any) -> dict[str, Parameter]:
        """Of what turns inputs into the stream."""
        raise NotImplementedError

    def write_parameters(self, task: Any) -> dict[str, Parameter]:
        """Of what turns the stream into outputs."""
        raise NotImplementedError

    def read(self, values: Values, batch: Batch) -> Tensor:
        """Return the stream [N, s, d] before positions."""
        raise NotImplementedError

    def write(self, values: Values, stream: Tensor) -> Tensor:
        """Return outputs of the stream after the last layer."""
        raise NotImplementedError

    def parameters(self, task: Any) -> dict[str, Parameter]:
        parameters = self.read_parameters(task)
        positions = self.position.parameters(self.width, task.longest)
        parameters |= {
            f"position.{name}": parameter._replace(start=self.start("embedding"))
            for name, parameter in positions.items()
        }
        form = under("activation", self.activation.parameters()) if self.mlp_multiple else {}
        scorer = under("scorer", self.scorer.parameters(self.heads))
        for layer in range(self.depth):
            block = self._attention_parameters({} if self.scorer.one_for_all else scorer)
            if self.mlp_multiple:
                block |= self._mlp_parameters(form if self.activation_per_layer else {})
            parameters |= under(f"layers.{layer}", block)
        parameters |= {} if self.activation_per_layer else form
        parameters |= scorer if self.scorer.one_for_all else {}
        parameters |= self._norm_parameters("norm") if self.pre_norm else {}
        return parameters | self.write_parameters(task)

    def _attention_parameters(self, scorer: dict[str, Parameter]) -> dict[str, Parameter]:
        return {
            **self._norm_parameters("attention_norm"),
            **self._canon_parameters("A", self.width),
            **make_linear("query_key_value", self.width, 3 * self.width, self.bias, 3, self.start("map", self.width)),
            **self._canon_parameters("B", 3 * self.width),
            **scorer,
            **make_linear("output", self.width, self.width, self.bias, 1, self.start("residual")),
        }

    def _mlp_parameters(self, activation: dict[str, Parameter]) -> dict[str, Parameter]:
        gates = self.activation.inputs
        share = 2 / 3 if gates == 2 else 1  # a gated MLP has a third matrix
        hidden = round(share * self.mlp_multiple * self.width)
        return {
            **self._norm_parameters("mlp_norm"),
            **self._canon_parameters("C", self.width),
            **make_linear("mlp_in", self.width, gates * hidden, self.bias, gates, self.start("map", self.width)),
            **self._canon_parameters("D", gates * hidden),
            **activation,
            **make_linear("mlp_out", hidden, self.width, self.bias, 1, self.start("residual")),
        }

    def _norm_parameters(self, name: str) -> dict[str, Parameter]:
        parameters = {name: Parameter((self.width,), start_constant(1.0), decays=False)}
        if self.bias and self.norm == "layer_norm":
            parameters[f"{name}_bias"] = Parameter((self.width,), start_constant(0.0), decays=False)
        return parameters

    def _canon_parameters(self, letter: str, channels: int) -> dict[str, Parameter]:
        return {f"canon_{letter}": Parameter((channels, 4), start_uniform(0.5))} if letter in self.canon else {}

    def sites(self, task: Any, count: int, length: int) -> dict[str, Site]:
        shape = (count, length, self.width)
        sites: dict[str, Site] = {"embedding": (shape, self.embedding_dropout)}
        for layer in range(self.depth):
            sites[f"layers.{layer}.attention"] = (shape, self.attention_dropout)
            if self.mlp_multiple:
                sites[f"layers.{layer}.mlp"] = (shape, self.mlp_dropout)
        square = (count, self.heads, length, length)
        return sites | {f"layers.{layer}.weights": (square, self.weight_dropout) for layer in range(self.depth)}

    def outputs(self, values: Values, batch: Batch, keep: Values) -> Tensor:
        stream = self.position.add_to(self.read(values, batch), within("position", values))
        stream = drop(stream, "embedding", self.embedding_dropout, keep)
        visible = self._visible(batch)
        shared = {name: value for name, value in values.items() if name.startswith(("activation.", "scorer."))}
        for layer in range(self.depth):
            learned, masks = shared | within(f"layers.{layer}", values), within(f"layers.{layer}", keep)
            if self.pre_norm:
                stream = stream + self._attend(
                    self._normalize(stream, "attention_norm", learned), visible, learned, masks
                )
            else:
                attended = stream + self._attend(stream, visible, learned, masks)
                stream = self._normalize(attended, "attention_norm", learned)
            if self.mlp_multiple and self.pre_norm:
                stream = stream + self._think(self._normalize(stream, "mlp_norm", learned), learned, masks)
            elif self.mlp_multiple:
                stream = self._normalize(stream + self._think(stream, learned, masks), "mlp_norm", learned)
        return self.write(values, self._normalize(stream, "norm", values) if self.pre_norm else stream)

    def _visible(self, batch: Batch) -> Tensor:
        length = batch["inputs"].shape[1]
        square = torch.ones(length, length, dtype=torch.bool)
        return square.tril() if self.causal else square & is_given(batch)[:, None, None]

    def _attend(self, stream: Tensor, visible: Tensor, learned: Values, keep: Values) -> Tensor:
        count, length, _ = stream.shape
        packed = apply_linear(self._convolve(stream, "A", learned), "query_key_value", learned)
        if self.query_key_norm:
            both = packed[..., : 2 * self.width].reshape(count, length, 2 * self.heads, -1)
            both = functional.rms_norm(both, both.shape[-1:], eps=self.norm_epsilon)
            packed = torch.cat([both.flatten(-2), packed[..., 2 * self.width :]], -1)
        packed = self._convolve(packed, "B", learned).reshape(count, length, 3, self.heads, -1)
        query, key, value = packed.permute(2, 0, 3, 1, 4)  # [N, h, s, c] each
        query, key = self.position.rotate(query), self.position.rotate(key)
        bias = self.position.bias(self.heads, value)
        weights = self.scorer.weights(query, key, bias, visible, within("scorer", learned))
        mixed = drop(weights, "weights", self.weight_dropout, keep) @ value
        joined = mixed.transpose(1, 2).reshape(count, length, self.width)
        return drop(apply_linear(joined, "output", learned), "attention", self.attention_dropout, keep)

    def _think(self, stream: Tensor, learned: Values, keep: Values) -> Tensor:
        hidden = apply_linear(self._convolve(stream, "C", learned), "mlp_in", learned)
        hidden = self.activation.apply(self._convolve(hidden, "D", learned), within("activation", learned))
        return drop(apply_linear(hidden, "mlp_out", learned), "mlp", self.mlp_dropout, keep)

    def _normalize(self, stream: Tensor, name: str, learned: Values) -> Tensor:
        if self.norm == "rms_norm":
            return functional.rms_norm(stream, (self.width,), learned[name], self.norm_epsilon)
        return functional.layer_norm(
            stream, (self.width,), learned[name], learned.get(f"{name}_bias"), self.norm_epsilon
        )

    def _convolve(self, stream: Tensor, letter: str, learned: Values) -> Tensor:
        """Return the stream and its causal depthwise convolution over four positions (Allen-Zhu 2025), where there is
        one.
        """
        kernel = learned.get(f"canon_{letter}")
        if kernel is None:
            return stream
        padded = functional.pad(stream.mT, (3, 0))
        return stream + functional.conv1d(padded, kernel[:, None], groups=len(kernel)).mT


@dataclass(kw_only=True)
class TokenTransformer(Layered):
    """Embeddings in, products with the unembedding out."""

    tied: bool
    logit_cap: float

    def read_parameters(self, task: Any) -> dict[str, Parameter]:
        return {"embedding": Parameter((task.tokens, self.width), self.start("embedding"))}

    def write_parameters(self, task: Any) -> dict[str, Parameter]:
        unembedding = Parameter((self.width, task.tokens), self.start("unembedding"))
        return {} if self.tied else {"unembedding": unembedding}

    def read(self, values: Values, batch: Batch) -> Tensor:
        return values["embedding"][batch["inputs"]]

    def write(self, values: Values, stream: Tensor) -> Tensor:
        logits = stream @ (values["embedding"].T if self.tied else values["unembedding"])
        return self.logit_cap * torch.tanh(logits / self.logit_cap) if self.logit_cap else logits


@dataclass(kw_only=True)
class TransformerModel(TokenTransformer):
    """A position sees those up to itself."""


@dataclass(kw_only=True)
class EncoderModel(TokenTransformer):
    """A position sees all that are given."""

    causal: ClassVar[bool] = False


@dataclass(kw_only=True)
class RegressorModel(Layered):
    """Vectors in and numbers out, by linear maps."""

    def read_parameters(self, task: Any) -> dict[str, Parameter]:
        return self._make_end("read_in", task.features, self.width)

    def write_parameters(self, task: Any) -> dict[str, Parameter]:
        return self._make_end("read_out", self.width, task.outputs)

    def _make_end(self, name: str, inputs: int, outputs: int) -> dict[str, Parameter]:
        """As torch.nn.Linear starts, but where all weights start truncated."""
        if self.initialisation == "truncated_normal":
            return make_linear(name, inputs, outputs, True, 0, self.start("map"))
        start = start_uniform(1 / sqrt(inputs))
        return make_linear(name, inputs, outputs, True, 0, start, start)

    def read(self, values: Values, batch: Batch) -> Tensor:
        return apply_linear(batch["inputs"].to(values["read_in"].dtype), "read_in", values)

    def write(self, values: Values, stream: Tensor) -> Tensor:
        return apply_linear(stream, "read_out", values)
