"""The parts of a transformer's layers: linear maps, norms, Canon layers, attention, MLP.

Each part is a frozen description. `parameters()` lists what it learns, in the order of the flat
vector; calling the part computes it from the layer's own parameters, of the same names.

Legend: N sequences, s positions, d width, h heads, c = d / h channels of a head, f
hidden channels of the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from workers.networks.activations import Activation
from workers.networks.attention import fused_causal_attention
from workers.networks.models import Affine, Attention, drop, dropout_scale
from workers.networks.positions import Position
from workers.networks.scorers import LogitScorer, Scorer, scaled_logits
from workers.networks.scorers.softmax import Softmax
from workers.numerics.parameters import Constant, Parameter, Parameters, Start, Uniform, under, within
from workers.numerics.tensors import inverse_root

CANON_KERNEL = 4
_ZERO = Constant(value=0)


@final
@dataclass(frozen=True, kw_only=True)
class Linear:
    """x W, or x W + b."""

    name: str
    inputs: int
    outputs: int
    bias: bool
    matrices: int = 1
    """The number of maps side by side in W."""
    start: Start
    bias_start: Start = _ZERO

    def parameters(self) -> dict[str, Parameter]:
        weight = Parameter(shape=(self.inputs, self.outputs), start=self.start, matrices=self.matrices)
        bias = Parameter(shape=(self.outputs,), start=self.bias_start, decay=False)
        return {self.name: weight, f"{self.name}_bias": bias} if self.bias else {self.name: weight}

    def __call__(self, vectors: Tensor, parameters: Parameters) -> Tensor:
        image = vectors @ parameters[self.name]
        return image + parameters[f"{self.name}_bias"] if self.bias else image


@final
@dataclass(frozen=True, kw_only=True)
class Norm:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019).

    Written out, since torch's own is slower under vmap and for short rows.
    """

    name: str
    width: int
    kind: str  # `layer_norm` or `rms_norm`
    epsilon: float | Tensor
    bias: bool
    """True for a bias of LayerNorm; RMSNorm has none."""

    def parameters(self) -> dict[str, Parameter]:
        gain = {self.name: Parameter(shape=(self.width,), start=Constant(value=1), decay=False)}
        bias = Parameter(shape=(self.width,), start=_ZERO, decay=False)
        return gain | {f"{self.name}_bias": bias} if self.bias and self.kind == "layer_norm" else gain

    def __call__(self, vectors: Tensor, parameters: Parameters) -> Tensor:
        if self.kind == "layer_norm":
            vectors = vectors - vectors.mean(-1, keepdim=True)
        scaled = divide_by_root_mean_square(vectors, self.epsilon) * parameters[self.name]
        return scaled + parameters[f"{self.name}_bias"] if f"{self.name}_bias" in parameters else scaled


@final
@dataclass(frozen=True, kw_only=True)
class Canon:
    """A Canon layer: x plus its causal convolution, by channel; x itself if it is not `present`.

    Kernels start as torch.nn.Conv1d's, uniform on +-1 / sqrt(kernel). Source: Allen-Zhu 2025,
    "Physics of Language Models: Part 4.1", and its code.
    """

    name: str
    channels: int
    present: bool

    def parameters(self) -> dict[str, Parameter]:
        start = Uniform(bound=CANON_KERNEL**-0.5)
        kernel = {self.name: Parameter(shape=(self.channels, CANON_KERNEL), start=start)}
        return kernel if self.present else {}

    def __call__(self, vectors: Tensor, parameters: Parameters) -> Tensor:  # [N, s, channels]
        if not self.present:
            return vectors
        kernel, length = parameters[self.name], vectors.shape[-2]
        padded = nn.functional.pad(vectors, (0, 0, CANON_KERNEL - 1, 0))
        taps = [padded[..., tap : tap + length, :] * kernel[:, tap] for tap in range(CANON_KERNEL)]
        return vectors + taps[0] + taps[1] + taps[2] + taps[3]


@final
@dataclass(frozen=True, kw_only=True)
class SelfAttention:
    """Multi-head attention of a sequence to itself, with a scorer and positions of choice."""

    heads: int
    canon_input: Canon
    query_key_value: Linear
    query_key_norm: bool
    norm_epsilon: float | Tensor
    canon_heads: Canon
    """The Canon layer of queries, keys and values."""
    position: Position
    scorer: Scorer
    causal: bool
    weight_dropout: float | Tensor
    output: Linear

    def parameters(self) -> dict[str, Parameter]:
        return {
            **self.canon_input.parameters(),
            **self.query_key_value.parameters(),
            **self.canon_heads.parameters(),
            **({} if self.scorer.one_for_all else self.scorer_parameters()),
            **self.output.parameters(),
        }

    def scorer_parameters(self) -> dict[str, Parameter]:
        """Return the scorer's learned parameters: in each layer, or in one place for all layers."""
        return under("scorer", self.scorer.parameters(self.heads))

    def __call__(self, stream: Tensor, visible: Tensor, parameters: Parameters, keep: Mapping[str, Tensor]) -> Tensor:
        query, key, value = self._queries_keys_values(stream, parameters)
        plain = type(self.scorer) is Softmax and self.position.bias(self.heads, value) is None
        if "weights" in keep:
            weights = self._weights(query, key, value, visible, parameters)
            mixed = dropout(weights, "weights", self.weight_dropout, keep) @ value
        elif plain and self.causal and value.device.type == "cpu":
            # torch's fused kernel is faster, but knows softmax of unbiased logits only. It approximates
            # nothing; its last bits may differ. Causality masks enough, since padding comes last.
            assert isinstance(self.scorer, Softmax)
            mixed = fused_causal_attention(query / self.scorer.temperature, key, value)
        else:
            mixed = self._weights(query, key, value, visible, parameters) @ value  # [N, h, s, c]
        return self.output(mixed.transpose(-3, -2).flatten(-2), parameters)  # [N, s, d]

    def show(self, stream: Tensor, visible: Tensor, parameters: Parameters) -> Attention:
        """Return attention's intermediate values for a stream [N, s, d], for diagnostics."""
        query, key, value = self._queries_keys_values(stream, parameters)
        weights = self._weights(query, key, value, visible, parameters)
        query_from, key_from = self._sources(stream, parameters)
        bias = self.position.bias(self.heads, value)
        return Attention(query, key, weights, visible, query_from, key_from, bias)

    def _queries_keys_values(self, stream: Tensor, parameters: Parameters) -> tuple[Tensor, Tensor, Tensor]:
        """Return [N, h, s, c] each, positions rotated into queries and keys."""
        packed = self.query_key_value(self.canon_input(stream, parameters), parameters)  # [N, s, 3 d]
        if self.query_key_norm:
            both, value = packed.split([packed.shape[-1] // 3 * 2, packed.shape[-1] // 3], dim=-1)
            both = both.unflatten(-1, (2 * self.heads, -1))  # [N, s, 2 h, c]
            both = divide_by_root_mean_square(both, self.norm_epsilon).flatten(-2)
            packed = torch.cat([both, value], dim=-1)
        packed = self.canon_heads(packed, parameters)
        query, key, value = (self._split_heads(part) for part in packed.chunk(3, dim=-1))
        return self.position.rotate(query), self.position.rotate(key), value

    def _weights(self, query: Tensor, key: Tensor, like: Tensor, visible: Tensor, parameters: Parameters) -> Tensor:
        """Return [N, h, s, s]; `like` is any tensor [..., s, n] of their dtype and device."""
        learned, bias = within("scorer", parameters), self.position.bias(self.heads, like)
        if bias is None or not isinstance(self.scorer, LogitScorer):
            return self.scorer.weights(query, key, visible, learned)
        return self.scorer.of_logits(scaled_logits(query, key) + bias, visible, learned)

    def _sources(self, stream: Tensor, parameters: Parameters) -> Sequence[Affine | None]:
        """Return the affine maps that queries and keys are; None where a norm or Canon layer follows."""
        if self.query_key_norm or self.canon_heads.present:
            return None, None
        vectors, weight = self.canon_input(stream, parameters), parameters["query_key_value"]
        has_bias = self.query_key_value.bias
        bias = parameters["query_key_value_bias"] if has_bias else weight.new_zeros(weight.shape[-1])
        parts = zip(weight.chunk(3, dim=-1), bias.chunk(3), strict=True)
        query, key, _ = (Affine(vectors, self._split_heads(matrix), b.view(self.heads, -1)) for matrix, b in parts)
        return query, key

    def _split_heads(self, vectors: Tensor) -> Tensor:
        """Return [N, h, s, c] from [N, s, d]."""
        return vectors.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


@final
@dataclass(frozen=True, kw_only=True)
class Mlp:
    """A map to f channels (twice as many for a gated activation), the activation, a map back."""

    canon_input: Canon
    mlp_in: Linear
    canon_hidden: Canon
    activation: Activation
    activation_per_layer: bool
    mlp_out: Linear

    def parameters(self) -> dict[str, Parameter]:
        return {
            **self.canon_input.parameters(),
            **self.mlp_in.parameters(),
            **self.canon_hidden.parameters(),
            **(self.activation_parameters() if self.activation_per_layer else {}),
            **self.mlp_out.parameters(),
        }

    def activation_parameters(self) -> dict[str, Parameter]:
        """Return the activation's learned parameters: in each layer, or once for all layers."""
        return under("activation", self.activation.parameters())

    def __call__(self, stream: Tensor, parameters: Parameters) -> Tensor:
        hidden = self.mlp_in(self.canon_input(stream, parameters), parameters)  # [N, s, f], or [N, s, 2 f]
        hidden = self.canon_hidden(hidden, parameters)
        return self.mlp_out(self.activation.apply(hidden, within("activation", parameters)), parameters)


def divide_by_root_mean_square(vectors: Tensor, epsilon: float | Tensor) -> Tensor:
    """Return vectors [..., n] over their root mean square."""
    return vectors * inverse_root(vectors.square().mean(-1, keepdim=True) + epsilon)


def dropout(values: Tensor, name: str, rate: float | Tensor, keep: Mapping[str, Tensor]) -> Tensor:
    """Apply inverted dropout at a site, if it is in use."""
    return drop(values * dropout_scale(rate, values), keep[name]) if name in keep else values
