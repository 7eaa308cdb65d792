"""The base of multi-layer transformers: layers of attention and MLP, pre- or post-norm.

`_blocks` has the parts: linear maps, norms, Canon layers, attention and MLP.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins import Examples
from spaces.plugins.fields import flag, knob, option, part, size
from spaces.records import Params
from workers.data.tasks import Batch, Task, is_given
from workers.networks.activations import Activation
from workers.networks.models import HIGHEST_RATE, Attention, Model, Site
from workers.networks.models._blocks import Canon, Linear, Mlp, Norm, SelfAttention, dropout
from workers.networks.models._initialisation import INITIALISATIONS, Initialisation
from workers.networks.positions import Position
from workers.networks.scorers import LogitScorer, Scorer
from workers.numerics.parameters import Normal, Parameter, Parameters, Start, under, within

CANON_PLACES = ["".join(some) for count in range(1, 5) for some in combinations("ABCD", count)]


@dataclass(frozen=True, kw_only=True)
class Layered(Model):
    """A model that reads a batch into a stream, passes it through layers and writes outputs.

    Each layer adds attention, then an MLP, to the stream. With pre-norm a norm stands before each
    of the two, and one after the last layer; with post-norm one stands after each of the two sums.
    Weight decay exempts biases, gains, and what the scorer and the activation exempt.

    `initialisation` is how weights start; biases start at 0 and gains at 1. The default, the first
    of these, is also that of spaces older than the option.

    `truncated_normal`: deviation 0.02, truncated at two deviations (paper 002, B; paper 003, 5.4).
    `normal`: the same without truncation, as in BERT, Llama and minGPT.
    `gpt2`: `normal`, but the matrices that write to the residual stream, attention's output and the
    MLP's, have a deviation of 0.02 / sqrt(2 depth) (GPT-2 and nanoGPT).
    `modded_nanogpt`: linear maps as torch.nn.Linear, embeddings from N(0, 1); the unembedding and
    the matrices that write to the stream at 0 (NanoGPT Speedrun, paper 002, Appendix E).

    Dropout acts on the sum of input and position, on what attention and MLP each add to the stream,
    and on single attention weights. A Canon layer adds a causal depthwise convolution over four
    positions to its input x. Canon layers stand before attention (A), on queries, keys and values
    (B), before the MLP (C) and before its activation (D). Source: Allen-Zhu 2025, "Physics of
    Language Models: Part 4.1", and its code.

    Legend: N sequences, s positions, d width, h heads, c = d / h channels of a head.
    """

    EXAMPLES: ClassVar[Examples] = ({"width": 6, "mlp_multiple": 2},)

    depth: int = size(2)
    heads: int = size(2)
    width: int = size()
    mlp_multiple: int = size(4, low=0)
    """The MLP's hidden channels over `width`; 0: no MLP. Gated: two thirds of that, for as many
    weights (Shazeer 2020)."""
    scorer: Scorer = part(Scorer, "softmax")
    activation: Activation = part(Activation, "gelu")
    activation_per_layer: bool = flag(False)
    """True if each layer learns its own activation; else all layers share one, as in paper 002."""
    position: Position = part(Position, "learned")
    pre_norm: bool = flag(True)
    norm: str = option("layer_norm", ("layer_norm", "rms_norm"))
    norm_epsilon: float = knob(1e-5, low=0)
    query_key_norm: bool = flag(False)
    """True for an RMSNorm without a gain on queries and keys, by head (modded-nanogpt)."""
    bias: bool = flag(True)
    """True if LayerNorm and all linear maps but the unembedding have a bias, as in GPT-2.

    The maps that read and write numbers, of a regressor, always have one."""
    canon: str = option("none", ("none", *CANON_PLACES))
    initialisation: str = option("truncated_normal", tuple(INITIALISATIONS))
    embedding_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    attention_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    mlp_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    weight_dropout: float = knob(0.0, low=0, high=HIGHEST_RATE, switch=True)
    """Rate of single attention weights, after the scorer; attention dropout in GPT-2's code."""

    # -- checks, parameters and dropout sites ------------------------------------------------------

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

    def facts(self) -> Params:
        """Return the activation's facts (`activation.approximation_error`); none without an MLP."""
        return under("activation", self.activation.facts()) if self.mlp_multiple else {}

    @abstractmethod
    def input_parameters(self, task: Task) -> Mapping[str, Parameter]:
        """Return the parameters that `read` uses."""

    @abstractmethod
    def output_parameters(self, task: Task) -> Mapping[str, Parameter]:
        """Return the parameters that `write` uses."""

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        # Parameters of positions that keep the default start begin as embeddings do.
        positions = {
            name: replace(value, start=self.starts.embedding) if value.start == Normal() else value
            for name, value in self.position.parameters(self.width, task.longest).items()
        }
        parameters = {**self.input_parameters(task), **under("position", positions)}
        attention, mlp = self._attention, self._mlp
        for layer in range(self.depth):
            in_layer = {**self._norm("attention_norm").parameters(), **attention.parameters()}
            if mlp:
                in_layer |= {**self._norm("mlp_norm").parameters(), **mlp.parameters()}
            parameters |= under(f"layers.{layer}", in_layer)
        if mlp and not self.activation_per_layer:
            parameters |= mlp.activation_parameters()
        if self.scorer.one_for_all:
            parameters |= attention.scorer_parameters()
        if self.pre_norm:
            parameters |= self._norm("norm").parameters()
        return {**parameters, **self.output_parameters(task)}

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        shape = (batch, length, self.width)
        rates = {"embedding": self.embedding_dropout}
        for layer in range(self.depth):
            rates[f"layers.{layer}.attention"] = self.attention_dropout
            if self.mlp_multiple:
                rates[f"layers.{layer}.mlp"] = self.mlp_dropout
        sites = {name: Site(shape=shape, rate=rate) for name, rate in rates.items()}
        # The order chooses a site's random numbers: a site added later has to come last.
        weights = Site(shape=(batch, self.heads, length, length), rate=self.weight_dropout)
        return sites | {f"layers.{layer}.weights": weights for layer in range(self.depth)}

    # -- parts of a layer --------------------------------------------------------------------------

    @property
    def starts(self) -> Initialisation:
        """The starts that `initialisation` names."""
        return INITIALISATIONS[self.initialisation]

    @property
    def _attention(self) -> SelfAttention:
        return SelfAttention(
            heads=self.heads,
            canon_input=self._canon("A", self.width),
            query_key_value=self._linear("query_key_value", self.width, 3 * self.width, matrices=3),
            query_key_norm=self.query_key_norm,
            norm_epsilon=self.norm_epsilon,
            canon_heads=self._canon("B", 3 * self.width),
            position=self.position,
            scorer=self.scorer,
            causal=self.causal,
            weight_dropout=self.weight_dropout,
            output=self._linear("output", self.width, self.width, start=self.starts.residual(self.depth)),
        )

    @property
    def _mlp(self) -> Mlp | None:
        if not self.mlp_multiple:
            return None
        inputs, hidden = self.activation.inputs, self.mlp_multiple * self.width
        hidden = hidden if inputs == 1 else round(2 * hidden / 3)
        return Mlp(
            canon_input=self._canon("C", self.width),
            mlp_in=self._linear("mlp_in", self.width, inputs * hidden, matrices=inputs),
            canon_hidden=self._canon("D", inputs * hidden),
            activation=self.activation,
            activation_per_layer=self.activation_per_layer,
            mlp_out=self._linear("mlp_out", hidden, self.width, start=self.starts.residual(self.depth)),
        )

    def _norm(self, name: str) -> Norm:
        return Norm(name=name, width=self.width, kind=self.norm, epsilon=self.norm_epsilon, bias=self.bias)

    def _linear(self, name: str, inputs: int, outputs: int, matrices: int = 1, start: Start | None = None) -> Linear:
        start = start or self.starts.map(inputs)
        return Linear(name=name, inputs=inputs, outputs=outputs, bias=self.bias, matrices=matrices, start=start)

    def _canon(self, letter: str, channels: int) -> Canon:
        return Canon(name=f"canon_{letter}", channels=channels, present=letter in self.canon)

    # -- computation -------------------------------------------------------------------------------

    @abstractmethod
    def read(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Return the stream [N, s, d] before positions are added."""

    @abstractmethod
    def write(self, parameters: Parameters, stream: Tensor) -> Tensor:
        """Return outputs from the stream [N, s, d] after the last layer."""

    @property
    @abstractmethod
    def causal(self) -> bool:
        """True if each position sees only itself and the positions before it."""

    def sketch(self) -> Model:
        """Return the model with one layer: the others are like it."""
        return replace(self, depth=1)

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        stream, visible = self._embed(parameters, batch, keep), _visible(batch, self.causal)
        for layer in range(self.depth):
            layer_parameters = _parameters_of_layer(layer, parameters)
            stream = self._apply_layer(stream, visible, layer_parameters, within(f"layers.{layer}", keep))
        stream = self._norm("norm")(stream, parameters) if self.pre_norm else stream
        return self.write(parameters, stream)

    def attention(self, parameters: Parameters, batch: Batch) -> Sequence[Attention]:
        stream, visible = self._embed(parameters, batch, {}), _visible(batch, self.causal)
        shown: list[Attention] = []
        for layer in range(self.depth):
            layer_parameters = _parameters_of_layer(layer, parameters)
            inputs = self._norm("attention_norm")(stream, layer_parameters) if self.pre_norm else stream
            shown.append(self._attention.show(inputs, visible, layer_parameters))
            stream = self._apply_layer(stream, visible, layer_parameters, {})
        return shown

    def _embed(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        """Return the stream [N, s, d] that enters the first layer."""
        stream = self.position.add_to(self.read(parameters, batch), within("position", parameters))
        return dropout(stream, "embedding", self.embedding_dropout, keep)

    def _apply_layer(
        self, stream: Tensor, visible: Tensor, parameters: Parameters, keep: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the stream [N, s, d] after the layer with these `parameters`."""
        attention, attention_norm = self._attention, self._norm("attention_norm")
        mlp, mlp_norm = self._mlp, self._norm("mlp_norm")

        def attend(vectors: Tensor) -> Tensor:
            added = attention(vectors, visible, parameters, keep)
            return dropout(added, "attention", self.attention_dropout, keep)

        if self.pre_norm:
            stream = stream + attend(attention_norm(stream, parameters))
            if mlp is None:
                return stream
            return stream + dropout(mlp(mlp_norm(stream, parameters), parameters), "mlp", self.mlp_dropout, keep)
        stream = attention_norm(stream + attend(stream), parameters)
        if mlp is None:
            return stream
        return mlp_norm(stream + dropout(mlp(stream, parameters), "mlp", self.mlp_dropout, keep), parameters)


def _parameters_of_layer(layer: int, parameters: Parameters) -> Parameters:
    """Return a layer's parameters by their names in the layer, and the shared ones."""
    prefixes = "activation.", "scorer."
    shared = {name: value for name, value in parameters.items() if name.startswith(prefixes)}
    return shared | within(f"layers.{layer}", parameters)


def _visible(batch: Batch, causal: bool) -> Tensor:
    """Return which positions (last axis) each sees: bool [s, s], or [N, 1, s, s] by lengths."""
    length = batch["inputs"].shape[1]
    all_pairs = torch.ones(length, length, dtype=torch.bool, device=batch["inputs"].device)
    if causal:
        return all_pairs.tril()  # padding follows its sequence, which does not see it
    return all_pairs & is_given(batch)[:, None, None] if "lengths" in batch else all_pairs
