"""What all multi-layer transformers share: layers of attention and MLP, pre- or post-norm, with plug-ins as parts.

The parts themselves are in `_blocks`.
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

CANON_PLACES = ["".join(letters) for count in range(1, 5) for letters in combinations("ABCD", count)]


@dataclass(frozen=True, kw_only=True)
class Layered(Model):
    """Reads a batch into a stream, passes the stream through its layers, writes outputs from it.

    A layer adds attention, then an MLP, to the residual stream; the norm stands before each (and once after the last
    layer), or, post-norm, after each sum. Weight decay spares biases, gains, and what the scorer and the activation
    exempt.

    `initialisation` says how weights start; biases start at 0 and gains at 1. A space without it starts as all spaces
    did before there was a choice, by the first of these.
    `truncated_normal`: normal, 0.02, truncated at two deviations (paper 002, Appendix B; paper 003, section 5.4).
    `normal`: the same without truncation, as in BERT, Llama and minGPT.
    `gpt2`: `normal`, but the matrices that write to the residual stream, attention's output and the MLP's, have a
    deviation of 0.02 / sqrt(2 depth) (GPT-2 and nanoGPT).
    `modded_nanogpt`: maps as those of torch.nn.Linear, embeddings of N(0, 1), and 0 for the unembedding and for what
    writes to the residual stream (NanoGPT Speedrun, paper 002, Appendix E).

    Dropout: on the sum of input and position, and on what attention and MLP each add to the stream.
    Canon layers, h + a causal depthwise convolution of h over four positions, stand before attention (A), on the
    queries, keys and values (B), before the MLP (C) and before its activation (D). Source: Allen-Zhu 2025, "Physics of
    Language Models: Part 4.1", and its code.

    Legend: N sequences, s positions, d width, h heads, c = d / h channels of a head, f channels of the MLP.
    """

    EXAMPLES: ClassVar[Examples] = ({"width": 6, "mlp_multiple": 2},)

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
    initialisation: str = option("truncated_normal", tuple(INITIALISATIONS))
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

    def facts(self) -> Params:
        """Return the facts of its activation: `activation.approximation_error`."""
        return under("activation", self.activation.facts()) if self.mlp_multiple else {}

    @abstractmethod
    def input_parameters(self, task: Task) -> Mapping[str, Parameter]:
        """Of what turns a batch into the stream, `read`."""

    @abstractmethod
    def output_parameters(self, task: Task) -> Mapping[str, Parameter]:
        """Of what turns the stream into outputs, `write`."""

    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        # A position without a start of its own starts as an embedding.
        positions = {
            name: replace(one, start=self.starts.embedding) if one.start == Normal() else one
            for name, one in self.position.parameters(self.width, task.longest).items()
        }
        found = {**self.input_parameters(task), **under("position", positions)}
        attention, mlp = self._attention, self._mlp
        for layer in range(self.depth):
            own = {**self._norm("attention_norm").parameters(), **attention.parameters()}
            if mlp:
                own |= {**self._norm("mlp_norm").parameters(), **mlp.parameters()}
            found |= under(f"layers.{layer}", own)
        if mlp and not self.activation_per_layer:
            found |= mlp.activation_parameters()
        if self.scorer.one_for_all:
            found |= attention.scorer_parameters()
        if self.pre_norm:
            found |= self._norm("norm").parameters()
        return {**found, **self.output_parameters(task)}

    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        shape = (batch, length, self.width)
        rates = {"embedding": self.embedding_dropout}
        for layer in range(self.depth):
            rates[f"layers.{layer}.attention"] = self.attention_dropout
            if self.mlp_multiple:
                rates[f"layers.{layer}.mlp"] = self.mlp_dropout
        sites = {name: Site(shape=shape, rate=rate) for name, rate in rates.items()}
        # A site's position in this order chooses its random numbers; a site added later has to come last.
        weights = Site(shape=(batch, self.heads, length, length), rate=self.weight_dropout)
        return sites | {f"layers.{layer}.weights": weights for layer in range(self.depth)}

    # -- its parts ---------------------------------------------------------------------------------------------------

    @property
    def starts(self) -> Initialisation:
        """How its parameters start."""
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
        inputs = self.activation.inputs
        hidden = self.mlp_multiple * self.width if inputs == 1 else round(2 * self.mlp_multiple * self.width / 3)
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

    # -- what it computes --------------------------------------------------------------------------------------------

    @abstractmethod
    def read(self, parameters: Parameters, batch: Batch) -> Tensor:
        """Return the stream [N, s, d] before positions are added."""

    @abstractmethod
    def write(self, parameters: Parameters, stream: Tensor) -> Tensor:
        """Return outputs from the stream [N, s, d] after the last layer."""

    @property
    @abstractmethod
    def causal(self) -> bool:
        """Whether a position sees those up to itself alone."""

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        stream, visible = self._embed(parameters, batch, keep), _visible(batch, self.causal)
        for layer in range(self.depth):
            own = _parameters_of_layer(layer, parameters)
            stream = self._apply_layer(stream, visible, own, within(f"layers.{layer}", keep))
        return self.write(parameters, self._norm("norm")(stream, parameters) if self.pre_norm else stream)

    def attention(self, parameters: Parameters, batch: Batch) -> Sequence[Attention]:
        stream, visible = self._embed(parameters, batch, {}), _visible(batch, self.causal)
        shown: list[Attention] = []
        for layer in range(self.depth):
            own = _parameters_of_layer(layer, parameters)
            given = self._norm("attention_norm")(stream, own) if self.pre_norm else stream
            shown.append(self._attention.show(given, visible, own))
            stream = self._apply_layer(stream, visible, own, {})
        return shown

    def _embed(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        """Return the stream [N, s, d] that the first layer gets."""
        stream = self.position.add_to(self.read(parameters, batch), within("position", parameters))
        return dropout(stream, "embedding", self.embedding_dropout, keep)

    def _apply_layer(self, stream: Tensor, visible: Tensor, own: Parameters, keep: Mapping[str, Tensor]) -> Tensor:
        """Return the stream [N, s, d] after attention and MLP; the norm before each, or, post-norm, after each sum."""
        attention, attention_norm = self._attention, self._norm("attention_norm")
        mlp, mlp_norm = self._mlp, self._norm("mlp_norm")

        def attend(vectors: Tensor) -> Tensor:
            return dropout(attention(vectors, visible, own, keep), "attention", self.attention_dropout, keep)

        if self.pre_norm:
            stream = stream + attend(attention_norm(stream, own))
            return stream + dropout(mlp(mlp_norm(stream, own), own), "mlp", self.mlp_dropout, keep) if mlp else stream
        stream = attention_norm(stream + attend(stream), own)
        if mlp is None:
            return stream
        return mlp_norm(stream + dropout(mlp(stream, own), "mlp", self.mlp_dropout, keep), own)


def _parameters_of_layer(layer: int, parameters: Parameters) -> Parameters:
    """Return a layer's own parameters by their names in it, and those that all layers share."""
    shared = {name: value for name, value in parameters.items() if name.startswith(("activation.", "scorer."))}
    return shared | within(f"layers.{layer}", parameters)


def _visible(batch: Batch, causal: bool) -> Tensor:
    """Which positions each one sees: [s, s] bool, or [N, 1, s, s] where sequences are of different lengths."""
    length = batch["inputs"].shape[1]
    everything = torch.ones(length, length, dtype=torch.bool, device=batch["inputs"].device)
    if causal:
        return everything.tril()  # what follows a sequence is seen by nothing in it
    return everything & is_given(batch)[:, None, None] if "lengths" in batch else everything
