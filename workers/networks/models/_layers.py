"""What all multi-layer transformers share: layers of attention and MLP, pre- or post-norm, with plug-ins as parts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import torch
from torch import Tensor, nn

from spaces.errors import PluginError
from spaces.plugins.fields import flag, knob, option, part, size
from spaces.records import Scalar
from workers.data.tasks import Batch, Task, is_given
from workers.networks.activations import Activation
from workers.networks.attention import fused_causal_attention
from workers.networks.models import HIGHEST_RATE, Affine, Attention, Model, Site, dropped, scale_of
from workers.networks.positions import Position
from workers.networks.scorers import LogitScorer, Scorer, scaled_logits
from workers.networks.scorers.softmax import Softmax
from workers.numerics.parameters import Constant, Parameter, Parameters, Uniform, under, within

CANON_KERNEL = 4
CANON_PLACES = ["".join(letters) for count in range(1, 5) for letters in combinations("ABCD", count)]


@dataclass(frozen=True, kw_only=True)
class Layered(Model):
    """Reads a batch into a stream, passes the stream through its layers, writes outputs from it.

    A layer adds attention, then an MLP, to the residual stream; the norm stands before each (and once after the last
    layer), or, post-norm, after each sum. Weights start normal, 0.02, truncated at two deviations; biases at 0, gains
    at 1. Weight decay spares biases, gains, and what the scorer and the activation exempt.

    Dropout: on the sum of what was read and position, and on what attention and MLP each add to the stream.
    Canon layers, h + a causal depthwise convolution of h over four positions, stand before attention (A), on the
    queries, keys and values (B), before the MLP (C) and before its activation (D). Source: Allen-Zhu 2025, "Physics of
    Language Models: Part 4.1", and its code.

    Legend: N sequences, s positions, d width, h heads, c = d / h channels of a head, f channels of the MLP.
    """

    depth: int = size(2)
    heads: int = size(2)
    width: int = size()
    mlp_multiple: int = size(4, low=0)
    """f / d; 0: no MLP. A gated activation gets two thirds of it, which keeps the number of weights (Shazeer 2020)."""
    scorer: Scorer = part(Scorer, "softmax")
    activation: Activation = part(Activation, "gelu")
    activation_per_layer: bool = flag(False)
    """Whether what the activation learns differs by layer; paper 002 has one non-linearity for all."""
    position: Position = part(Position, "learned")
    pre_norm: bool = flag(True)
    norm: str = option("layer_norm", ("layer_norm", "rms_norm"))
    norm_epsilon: float = knob(1e-5, low=0)
    query_key_norm: bool = flag(False)
    """RMSNorm without a gain over each head's channels (modded-nanogpt)."""
    bias: bool = flag(True)
    """Biases of all maps but the unembedding, and of LayerNorm, as in GPT-2."""
    canon: str = option("none", ("none", *CANON_PLACES))
    embedding_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    attention_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    mlp_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    weight_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    """Of single attention weights, after the scorer: what GPT-2's code calls attention dropout."""

    # -- what it needs -----------------------------------------------------------------------------------------------

    def check(self, task: Task) -> None:
        """Raise PluginError if sizes or parts do not fit each other or the task."""
        if self.width % self.heads:
            raise PluginError(f"model.width: {self.width} must be a multiple of model.heads {self.heads}")
        if not self.mlp_multiple and set(self.canon) & set("CD"):
            raise PluginError(
                f"model.canon: {self.canon!r} must be within AB: C and D stand in the MLP, and there is none"
            )
        self.position.check(task.longest, self.width // self.heads)
        biased = self.position.bias(self.heads, torch.zeros(1, 1, self.width)) is not None
        if biased and not isinstance(self.scorer, LogitScorer):
            raise PluginError("model.position: its bias is added to logits, and model.scorer looks at queries and keys")

    def facts(self) -> Mapping[str, Scalar]:
        """What its activation says of itself: `activation.approximation_error`."""
        return under("activation", self.activation.facts()) if self.mlp_multiple else {}

    @abstractmethod
    def reading(self, task: Task) -> Mapping[str, Parameter]:
        """What turns a batch into the stream."""

    @abstractmethod
    def writing(self, task: Task) -> Mapping[str, Parameter]:
        """What turns the stream into outputs."""

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        found = {**self.reading(task), **under("position", self.position.parameters(self.width, task.longest))}
        for layer in range(self.depth):
            found |= under(f"layers.{layer}", self._attention_parameters() | self._mlp_parameters())
        if not self.activation_per_layer:
            found |= self._activation_parameters()
        if self.scorer.one_for_all:
            found |= self._scorer_parameters()
        if self.pre_norm:
            found |= self._norm_parameters("norm")
        return {**found, **self.writing(task)}

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        shape = (batch, length, self.width)
        rates = {"embedding": self.embedding_dropout}
        for layer in range(self.depth):
            rates[f"layers.{layer}.attention"] = self.attention_dropout
            if self.mlp_multiple:
                rates[f"layers.{layer}.mlp"] = self.mlp_dropout
        sites = {name: Site(shape=shape, rate=rate) for name, rate in rates.items()}
        weights = Site(shape=(batch, self.heads, length, length), rate=self.weight_dropout)
        return sites | {f"layers.{layer}.weights": weights for layer in range(self.depth)}

    def _attention_parameters(self) -> dict[str, Parameter]:
        return {
            **self._norm_parameters("attention_norm"),
            **self._canon_parameters("A", self.width),
            **self._map_parameters("query_key_value", self.width, 3 * self.width, matrices=3),
            **self._canon_parameters("B", 3 * self.width),
            **({} if self.scorer.one_for_all else self._scorer_parameters()),
            **self._map_parameters("output", self.width, self.width),
        }

    def _mlp_parameters(self) -> dict[str, Parameter]:
        if not self.mlp_multiple:
            return {}
        hidden = self.mlp_multiple * self.width
        hidden = hidden if self.activation.inputs == 1 else round(2 * hidden / 3)
        return {
            **self._norm_parameters("mlp_norm"),
            **self._canon_parameters("C", self.width),
            **self._map_parameters("mlp_in", self.width, self.activation.inputs * hidden, self.activation.inputs),
            **self._canon_parameters("D", self.activation.inputs * hidden),
            **(self._activation_parameters() if self.activation_per_layer else {}),
            **self._map_parameters("mlp_out", hidden, self.width),
        }

    def _scorer_parameters(self) -> dict[str, Parameter]:
        return under("scorer", self.scorer.parameters(self.heads))

    def _activation_parameters(self) -> dict[str, Parameter]:
        return under("activation", self.activation.parameters()) if self.mlp_multiple else {}

    def _map_parameters(self, name: str, inputs: int, outputs: int, matrices: int = 1) -> dict[str, Parameter]:
        weight = {name: Parameter(shape=(inputs, outputs), matrices=matrices)}
        return weight | self._zeros(f"{name}_bias", outputs) if self.bias else weight

    def _norm_parameters(self, name: str) -> dict[str, Parameter]:
        gain = {name: Parameter(shape=(self.width,), start=Constant(value=1), decay=False)}
        return gain | self._zeros(f"{name}_bias", self.width) if self.bias and self.norm == "layer_norm" else gain

    def _canon_parameters(self, letter: str, channels: int) -> dict[str, Parameter]:
        """Start as torch.nn.Conv1d does, uniform on +-1 / sqrt(kernel)."""
        start = Uniform(bound=CANON_KERNEL**-0.5)
        kernel = {f"canon_{letter}": Parameter(shape=(channels, CANON_KERNEL), start=start)}
        return kernel if letter in self.canon else {}

    @staticmethod
    def _zeros(name: str, channels: int) -> dict[str, Parameter]:
        return {name: Parameter(shape=(channels,), start=Constant(value=0), decay=False)}

    # -- what it computes --------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, parameters: Parameters, batch: Batch) -> Tensor:
        """The stream [N, s, d] before positions are added."""

    @abstractmethod
    def written(self, parameters: Parameters, stream: Tensor) -> Tensor:
        """Outputs from the stream [N, s, d] after the last layer."""

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether a position sees those up to itself alone."""

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        stream, visible = self._begun(parameters, batch, keep), self._visible(batch)
        for layer in range(self.depth):
            own = self._own(parameters, layer)
            stream = self._layer(stream, visible, own, within(f"layers.{layer}", keep))
        return self.written(parameters, self._normed(stream, "norm", parameters) if self.pre_norm else stream)

    def attention(self, parameters: Parameters, batch: Batch) -> Sequence[Attention]:
        stream, visible = self._begun(parameters, batch, {}), self._visible(batch)
        seen: list[Attention] = []
        for layer in range(self.depth):
            own = self._own(parameters, layer)
            given = self._normed(stream, "attention_norm", own) if self.pre_norm else stream
            query, key, value = self._queries_keys_values(given, own)
            weights = self._weights(query, key, value, visible, own)
            query_from, key_from = self._sources(given, own)
            seen.append(Attention(query, key, weights, visible, query_from, key_from))
            stream = self._layer(stream, visible, own, {})
        return seen

    def _begun(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        """The stream [N, s, d] that the first layer gets."""
        stream = self.position.placed(self.read(parameters, batch), within("position", parameters))
        return _thinned(stream, "embedding", self.embedding_dropout, keep)

    def _own(self, parameters: Parameters, layer: int) -> Parameters:
        """A layer's own parameters and those that all layers share."""
        shared = {name: value for name, value in parameters.items() if name.startswith(("activation.", "scorer."))}
        return shared | within(f"layers.{layer}", parameters)

    def _visible(self, batch: Batch) -> Tensor:
        """Which positions each one sees: [s, s] bool, or [N, 1, s, s] where sequences are of different lengths."""
        length = batch["inputs"].shape[1]
        everything = torch.ones(length, length, dtype=torch.bool, device=batch["inputs"].device)
        if self.causal:
            return everything.tril()  # what follows a sequence is seen by nothing in it
        return everything & is_given(batch)[:, None, None] if "lengths" in batch else everything

    def _layer(self, stream: Tensor, visible: Tensor, own: Parameters, keep: Mapping[str, Tensor]) -> Tensor:
        attention = partial(self._attention, visible, keep)
        stream = self._added(stream, "attention", attention, self.attention_dropout, own, keep)
        if not self.mlp_multiple:
            return stream
        return self._added(stream, "mlp", self._mlp, self.mlp_dropout, own, keep)

    def _added(
        self,
        stream: Tensor,
        name: str,
        branch: Callable[[Tensor, Parameters], Tensor],
        rate: float | Tensor,
        own: Parameters,
        keep: Mapping[str, Tensor],
    ) -> Tensor:
        """The stream [N, s, d] after a branch was added to it, with the norm before the branch or after the sum."""
        if self.pre_norm:
            return stream + _thinned(branch(self._normed(stream, f"{name}_norm", own), own), name, rate, keep)
        return self._normed(stream + _thinned(branch(stream, own), name, rate, keep), f"{name}_norm", own)

    def _attention(self, visible: Tensor, keep: Mapping[str, Tensor], stream: Tensor, own: Parameters) -> Tensor:
        query, key, value = self._queries_keys_values(stream, own)
        if "weights" in keep:
            weights = self._weights(query, key, value, visible, own)
            mixed = _thinned(weights, "weights", self.weight_dropout, keep) @ value
        else:
            mixed = self._mixed(query, key, value, visible, own)
        return self._mapped(mixed.transpose(-3, -2).flatten(-2), "output", own)  # [N, s, d]

    def _queries_keys_values(self, stream: Tensor, own: Parameters) -> tuple[Tensor, Tensor, Tensor]:
        """[N, h, s, c] each, positions turned into queries and keys."""
        packed = self._mapped(self._convolved(stream, "A", own), "query_key_value", own)  # [N, s, 3 d]
        if self.query_key_norm:
            packed = self._query_key_normed(packed)
        packed = self._convolved(packed, "B", own)
        query, key, value = (self._split(part) for part in packed.chunk(3, dim=-1))
        return self.position.turned(query), self.position.turned(key), value

    def _sources(self, stream: Tensor, own: Parameters) -> Sequence[Affine | None]:
        """Of queries and of keys."""
        if self.query_key_norm or "B" in self.canon:
            return None, None
        vectors, weight = self._convolved(stream, "A", own), own["query_key_value"]
        bias = own["query_key_value_bias"] if self.bias else weight.new_zeros(weight.shape[-1])
        parts = zip(weight.chunk(3, dim=-1), bias.chunk(3), strict=True)
        query, key, _ = (Affine(vectors, self._split(part), biases.view(self.heads, -1)) for part, biases in parts)
        return query, key

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, visible: Tensor, own: Parameters) -> Tensor:
        """[N, h, s, c] values mixed by attention; plain softmax by torch's fused kernel, which is exact and faster."""
        scorer, unbiased = self.scorer, self.position.bias(self.heads, value) is None
        if self.causal and isinstance(scorer, Softmax) and unbiased and value.device.type == "cpu":
            return fused_causal_attention(query / scorer.temperature, key, value)
        return self._weights(query, key, value, visible, own) @ value

    def _weights(self, query: Tensor, key: Tensor, like: Tensor, visible: Tensor, own: Parameters) -> Tensor:
        """[N, h, s, s]."""
        learned, bias = within("scorer", own), self.position.bias(self.heads, like)
        if bias is None or not isinstance(self.scorer, LogitScorer):
            return self.scorer.weights(query, key, visible, learned)
        return self.scorer.of_logits(scaled_logits(query, key) + bias, visible, learned)

    def _mlp(self, stream: Tensor, own: Parameters) -> Tensor:
        hidden = self._mapped(self._convolved(stream, "C", own), "mlp_in", own)  # [N, s, f]
        hidden = self._convolved(hidden, "D", own)
        return self._mapped(self.activation.apply(hidden, within("activation", own)), "mlp_out", own)

    def _mapped(self, vectors: Tensor, name: str, own: Parameters) -> Tensor:
        image = vectors @ own[name]
        return image + own[f"{name}_bias"] if self.bias else image

    def _normed(self, vectors: Tensor, name: str, own: Parameters) -> Tensor:
        """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019), spelled out for vmap and short rows."""
        if self.norm == "layer_norm":
            vectors = vectors - vectors.mean(-1, keepdim=True)
        scaled = self._unit(vectors) * own[name]
        return scaled + own[f"{name}_bias"] if f"{name}_bias" in own else scaled

    def _unit(self, vectors: Tensor) -> Tensor:
        """Vectors [..., n] divided by their root mean square."""
        return vectors * torch.rsqrt(vectors.square().mean(-1, keepdim=True) + self.norm_epsilon)

    def _query_key_normed(self, packed: Tensor) -> Tensor:
        """Queries and keys [N, s, 2 d] of `packed` [N, s, 3 d] with a root mean square of 1 in each head."""
        both, value = packed.split([2 * self.width, self.width], dim=-1)
        normed = self._unit(both.unflatten(-1, (2 * self.heads, -1))).flatten(-2)
        return torch.cat([normed, value], dim=-1)

    def _convolved(self, vectors: Tensor, letter: str, own: Parameters) -> Tensor:
        """The Canon layer: vectors [N, s, n] plus their causal convolution, each channel with its own kernel."""
        if letter not in self.canon:
            return vectors
        kernel, length = own[f"canon_{letter}"], vectors.shape[-2]
        padded = nn.functional.pad(vectors, (0, 0, CANON_KERNEL - 1, 0))
        taps = [padded[..., tap : tap + length, :] * kernel[:, tap] for tap in range(CANON_KERNEL)]
        return vectors + taps[0] + taps[1] + taps[2] + taps[3]

    def _split(self, vectors: Tensor) -> Tensor:
        """[N, h, s, c] from [N, s, d]."""
        return vectors.unflatten(-1, (self.heads, -1)).transpose(-3, -2)


def _thinned(values: Tensor, name: str, rate: float | Tensor, keep: Mapping[str, Tensor]) -> Tensor:
    """Inverted dropout at a site, if it is in use."""
    return dropped(values * scale_of(rate, values), keep[name]) if name in keep else values
