"""The transformer against plain nn.Modules, its gradients, causality, and packed equals alone for each of its parts."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spaces import plugins
from spaces.errors import PluginError
from tests.support.pack import alone, assert_same, reports_of
from tests.support.transformer import VARIANTS
from tests.support.trials import config, random_knobs, trial
from workers.data.tasks.set_complement import SetComplement
from workers.engine.pack import Pack
from workers.networks.models import Model
from workers.networks.models.transformer import Transformer
from workers.networks.positions import Position
from workers.networks.scorers import Scorer, masked_softmax
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter, Parameters

functional = nn.functional
TASK = SetComplement(length=5, vocabulary=9)


def build(**settings: Any) -> Transformer:
    model = plugins.build(Model, {"name": "transformer", "width": 12, **settings})
    assert isinstance(model, Transformer)
    return model


def drawn(model: Model, seed: int = 0) -> dict[str, Tensor]:
    """Parameters far from their start, so that no part of the model is nearly linear."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: p.shape for name, p in model.parameters(TASK).items()}
    return {n: 0.5 * torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


def tokens(*shape: int) -> Tensor:
    return torch.randint(0, TASK.tokens, shape, generator=torch.Generator().manual_seed(3))


# -- the same function as a plain module -----------------------------------------------------------------------------


class PlainBlock(nn.Module):
    """A block as nn.TransformerEncoderLayer is built: nn.MultiheadAttention, nn.LayerNorm and an MLP with GELU."""

    def __init__(self, width: int, heads: int, parameters: Parameters, *, pre_norm: bool) -> None:
        super().__init__()
        self.pre_norm = pre_norm
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp_in, self.mlp_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.double()
        places = {
            "attention.in_proj_weight": parameters["query_key_value"].T,
            "attention.in_proj_bias": parameters["query_key_value_bias"],
            "attention.out_proj.weight": parameters["output"].T,
            "attention.out_proj.bias": parameters["output_bias"],
            "mlp_in.weight": parameters["mlp_in"].T,
            "mlp_in.bias": parameters["mlp_in_bias"],
            "mlp_out.weight": parameters["mlp_out"].T,
            "mlp_out.bias": parameters["mlp_out_bias"],
        }
        for norm in ("attention_norm", "mlp_norm"):
            places |= {f"{norm}.weight": parameters[norm], f"{norm}.bias": parameters[f"{norm}_bias"]}
        self.load_state_dict(places)

    def forward(self, stream: Tensor) -> Tensor:
        if self.pre_norm:
            stream = stream + self.attend(self.attention_norm(stream))
            return stream + self.think(self.mlp_norm(stream))
        stream = self.attention_norm(stream + self.attend(stream))
        return self.mlp_norm(stream + self.think(stream))

    def attend(self, stream: Tensor) -> Tensor:
        hidden = nn.Transformer.generate_square_subsequent_mask(stream.shape[1], dtype=stream.dtype)
        return self.attention(stream, stream, stream, attn_mask=hidden, need_weights=False)[0]

    def think(self, stream: Tensor) -> Tensor:
        return self.mlp_out(functional.gelu(self.mlp_in(stream)))


def own(parameters: Parameters, layer: int) -> dict[str, Tensor]:
    prefix = f"layers.{layer}."
    return {name.removeprefix(prefix): t for name, t in parameters.items() if name.startswith(prefix)}


@pytest.mark.parametrize("pre_norm", [True, False])
def test_the_default_is_gpt_2_and_post_norm_the_baseline_of_paper_002(pre_norm: bool) -> None:
    model, inputs = build(depth=3, heads=3, pre_norm=pre_norm), tokens(4, 7)
    parameters = drawn(model)
    stream = parameters["embedding"][inputs] + parameters["position.table"][:7]
    for layer in range(3):
        stream = PlainBlock(12, 3, own(parameters, layer), pre_norm=pre_norm)(stream)
    if pre_norm:
        stream = functional.layer_norm(stream, (12,), parameters["norm"], parameters["norm_bias"])
    torch.testing.assert_close(model.outputs(parameters, {"inputs": inputs}, {}), stream @ parameters["unembedding"])


def test_a_modern_block_is_that_of_torch_functional() -> None:
    """RMSNorm, rotary positions, normed queries and keys, SwiGLU, no biases, a tied embedding and a logit cap."""
    model = build(
        depth=1, norm="rms_norm", query_key_norm=True, bias=False, tied=True, logit_cap=2.0, norm_epsilon=1e-6,
        position={"name": "rotary"}, activation={"name": "swiglu"},
    )  # fmt: skip
    parameters, inputs = drawn(model), tokens(4, 7)
    block = own(parameters, 0)
    stream = functional.embedding(inputs, parameters["embedding"])
    normed = functional.rms_norm(stream, (12,), block["attention_norm"], 1e-6)
    query, key, value = (t.view(4, 7, 2, 6).transpose(1, 2) for t in (normed @ block["query_key_value"]).chunk(3, -1))
    turn = torch.exp(1j * torch.arange(7)[:, None] * 10000.0 ** (-torch.arange(0, 6, 2).double() / 6))

    def turned(vectors: Tensor) -> Tensor:
        unit = functional.rms_norm(vectors, (6,), eps=1e-6)
        pairs = torch.complex(unit[..., :3], unit[..., 3:]) * turn
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    mixed = functional.scaled_dot_product_attention(turned(query), turned(key), value, is_causal=True)
    stream = stream + mixed.transpose(1, 2).reshape(4, 7, 12) @ block["output"]
    first, second = (functional.rms_norm(stream, (12,), block["mlp_norm"], 1e-6) @ block["mlp_in"]).chunk(2, -1)
    stream = stream + (functional.silu(first) * second) @ block["mlp_out"]
    logits = functional.rms_norm(stream, (12,), parameters["norm"], 1e-6) @ parameters["embedding"].T
    torch.testing.assert_close(model.outputs(parameters, {"inputs": inputs}, {}), 2 * torch.tanh(logits / 2))


def test_alibi_is_a_mask_added_by_torch_attention() -> None:
    model = build(depth=1, mlp_multiple=0, bias=False, position={"name": "alibi"}, norm_epsilon=1e-6)
    parameters, inputs = drawn(model), tokens(4, 7)
    block = own(parameters, 0)
    stream = parameters["embedding"][inputs]
    normed = functional.layer_norm(stream, (12,), block["attention_norm"], eps=1e-6)
    query, key, value = (t.view(4, 7, 2, 6).transpose(1, 2) for t in (normed @ block["query_key_value"]).chunk(3, -1))
    distance = torch.arange(7)[:, None] - torch.arange(7)
    mask = -torch.tensor([2**-4, 2**-8], dtype=torch.float64)[:, None, None] * distance
    mask = mask.masked_fill(distance < 0, -torch.inf)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    stream = stream + mixed.transpose(1, 2).reshape(4, 7, 12) @ block["output"]
    logits = functional.layer_norm(stream, (12,), parameters["norm"], eps=1e-6) @ parameters["unembedding"]
    torch.testing.assert_close(model.outputs(parameters, {"inputs": inputs}, {}), logits)


def test_canon_layers_are_torch_convolutions_at_their_four_places() -> None:
    model = build(depth=1, canon="ABCD", bias=False, position={"name": "none"})
    parameters, inputs = drawn(model), tokens(4, 7)
    block = own(parameters, 0)

    def canon(letter: str, vectors: Tensor) -> Tensor:
        kernel = block[f"canon_{letter}"][:, None]  # [channels, 1, 4], the last tap for the present
        image = functional.conv1d(vectors.mT, kernel, padding=3, groups=kernel.shape[0])
        return vectors + image[..., :7].mT

    stream = parameters["embedding"][inputs]
    normed = canon("A", functional.layer_norm(stream, (12,), block["attention_norm"]))
    packed = canon("B", normed @ block["query_key_value"])
    query, key, value = (t.view(4, 7, 2, 6).transpose(1, 2) for t in packed.chunk(3, -1))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    stream = stream + mixed.transpose(1, 2).reshape(4, 7, 12) @ block["output"]
    normed = canon("C", functional.layer_norm(stream, (12,), block["mlp_norm"]))
    stream = stream + functional.gelu(canon("D", normed @ block["mlp_in"])) @ block["mlp_out"]
    logits = functional.layer_norm(stream, (12,), parameters["norm"]) @ parameters["unembedding"]
    torch.testing.assert_close(model.outputs(parameters, {"inputs": inputs}, {}), logits)


# -- dropout ---------------------------------------------------------------------------------------------------------


def test_dropout_acts_on_the_embedding_and_on_what_each_branch_adds() -> None:
    """A branch whose whole output is dropped is not there; the rest is divided by 1 - rate."""
    model = build(depth=1, embedding_dropout=0.5, attention_dropout=0.5, mlp_dropout=0.2)
    plain, parameters, inputs = build(depth=1), drawn(build(depth=1)), tokens(2, 5)
    ones = torch.ones(2, 5, 12, dtype=torch.bool)
    logits = model.outputs(
        parameters, {"inputs": inputs}, {"embedding": ones, "layers.0.attention": ~ones, "layers.0.mlp": ones}
    )
    scaled = dict(parameters)
    for name in ("embedding", "position.table"):
        scaled[name] = parameters[name] * 2
    for name in ("layers.0.mlp_out", "layers.0.mlp_out_bias"):
        scaled[name] = parameters[name] / 0.8
    for name in ("layers.0.output", "layers.0.output_bias"):
        scaled[name] = torch.zeros_like(parameters[name])
    torch.testing.assert_close(logits, plain.outputs(scaled, {"inputs": inputs}, {}))


def test_dropout_acts_on_the_weight_of_each_key_for_each_query_in_each_head() -> None:
    model, plain, inputs = build(depth=1, weight_dropout=0.5), build(depth=1), {"inputs": tokens(2, 5)}
    parameters, ones = drawn(plain), torch.ones(2, 2, 5, 5, dtype=torch.bool)
    output = parameters["layers.0.output"]

    def kept(*dropped: slice | int) -> Tensor:
        keep = ones.clone()
        keep[dropped] = False
        return model.outputs(parameters, inputs, {"layers.0.weights": keep})

    def mixed_by(output: Tensor) -> Tensor:
        return plain.outputs({**parameters, "layers.0.output": output}, inputs, {})

    every = slice(None)
    whole, second_head = kept(every, every, every, slice(5, 5)), 2 * output
    second_head[:6] = 0
    torch.testing.assert_close(whole, mixed_by(2 * output))
    torch.testing.assert_close(kept(every, every), mixed_by(0 * output))
    torch.testing.assert_close(kept(every, 0), mixed_by(second_head))
    changed = (kept(0, every, 3, 2) != whole).any(-1)
    assert changed.nonzero().tolist() == [[0, 3]]
    changed = (kept(1, every, every, 2) != whole).any(-1)
    assert changed.nonzero().tolist() == [[1, 2], [1, 3], [1, 4]]


def test_dropout_sites_are_those_that_the_model_reads() -> None:
    model = build(depth=2, embedding_dropout=0.1, attention_dropout=0.2, mlp_dropout=0.3, weight_dropout=0.4)
    sites = model.dropout_sites(TASK, 4, 6)
    expected = {"embedding": 0.1}
    for layer in range(2):
        expected |= {f"layers.{layer}.attention": 0.2, f"layers.{layer}.mlp": 0.3, f"layers.{layer}.weights": 0.4}
    assert {name: site.rate for name, site in sites.items()} == expected
    parameters, inputs = drawn(model), tokens(4, 6)
    whole = model.outputs(parameters, {"inputs": inputs}, {})
    for name, site in sites.items():
        keep = torch.zeros(site.shape, dtype=torch.bool)
        assert not torch.allclose(model.outputs(parameters, {"inputs": inputs}, {name: keep}), whole), name
    assert list(build(depth=1, mlp_multiple=0).dropout_sites(TASK, 4, 6)) == [
        "embedding",
        "layers.0.attention",
        "layers.0.weights",
    ]


# -- sizes -----------------------------------------------------------------------------------------------------------


def test_the_parameters_of_gpt_2_are_as_many_as_its_paper_says() -> None:
    """124,439,808 for the small GPT-2: 12 layers of width 768, 50,257 tokens, 1,024 positions, tied."""
    model = build(depth=12, heads=12, width=768, tied=True, position={"name": "learned", "longest": 1024})
    layout = Layout.of(model.parameters(SetComplement(length=5, vocabulary=50257)))
    assert layout.total == 124_439_808


@pytest.mark.parametrize("name", ["swiglu", "glu", "reglu", "geglu"])
def test_a_gated_mlp_has_about_as_many_weights_as_a_plain_one(name: str) -> None:
    gated = Layout.of(build(width=96, activation={"name": name}).parameters(TASK)).total
    plain = Layout.of(build(width=96).parameters(TASK)).total
    assert abs(gated / plain - 1) < 0.01


def test_parameters_start_as_paper_002_says() -> None:
    layout = Layout.of(build(width=48, canon="AB").parameters(TASK))
    start = layout.split(layout.initial(torch.tensor([5]))[0])
    weights = start["layers.1.mlp_in"]
    assert float(weights.abs().max()) <= 0.04
    assert float(weights.std()) == pytest.approx(0.02 * 0.8796, rel=0.03)  # the deviation that truncation leaves
    assert (start["layers.0.attention_norm"] == 1).all()
    assert not start["layers.0.mlp_in_bias"].any()
    assert 0.45 < float(start["layers.0.canon_B"].abs().max()) < 0.5


def test_weight_decay_spares_gains_biases_and_splines() -> None:
    model = build(activation={"name": "spline", "knots": 9})
    spared = {name for name, p in model.parameters(TASK).items() if not p.decay}
    assert spared == {name for name in model.parameters(TASK) if "norm" in name or "bias" in name or "knots" in name}


def test_the_spline_is_one_for_all_layers_or_one_for_each() -> None:
    spline = {"name": "spline", "knots": 9}
    shared, separate = (build(activation=spline, activation_per_layer=each).parameters(TASK) for each in (False, True))
    assert [name for name in shared if "knots" in name] == ["activation.knots"]
    assert [name for name in separate if "knots" in name] == [f"layers.{layer}.activation.knots" for layer in range(2)]


# -- what does not fit -----------------------------------------------------------------------------------------------


class Bilinear(Scorer):
    """A scorer of queries and keys with a learned factor per head, for these tests alone."""

    def parameters(self, heads: int) -> Mapping[str, Parameter]:
        return {"factor": Parameter(shape=(heads,))}

    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(learned["factor"][:, None, None] * (query @ key.mT), visible)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"heads": 5}, "model.width: 12 must be a multiple of model.heads 5"),
        ({"mlp_multiple": 0, "canon": "AC"}, "model.canon: 'AC' must be within AB: C and D stand in the MLP"),
        ({"heads": 4, "position": {"name": "rotary"}}, "rotary needs heads of an even width, but width / heads is 3"),
        ({"position": {"name": "learned", "longest": 7}}, "model.position.longest: 7 must be 0 or at least 8"),
        ({"canon": "BA"}, "canon: 'BA' must be one of"),
    ],
)
def test_what_does_not_fit_is_refused_with_value_and_rule(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError) as error:
        build(**settings).check(TASK)
    assert message in str(error.value)


def test_a_bias_on_logits_is_refused_where_the_scorer_has_none() -> None:
    model = Transformer(width=12, scorer=Bilinear(), position=plugins.build(Position, {"name": "alibi"}))
    with pytest.raises(PluginError, match=r"its bias is added to logits, and model\.scorer looks at queries and keys"):
        model.check(TASK)


def test_a_scorer_of_queries_and_keys_gets_them_by_head_with_its_own_parameters() -> None:
    model = Transformer(width=12, depth=1, mlp_multiple=0, scorer=Bilinear(), position=build().position)
    softmax = Transformer(width=12, depth=1, mlp_multiple=0)
    assert model.parameters(TASK)["layers.0.scorer.factor"].shape == (2,)
    parameters, inputs = drawn(model), tokens(3, 6)
    parameters["layers.0.scorer.factor"] = torch.tensor([6**-0.5, 6**-0.5], dtype=torch.float64)
    expected = softmax.outputs(parameters, {"inputs": inputs}, {})
    torch.testing.assert_close(model.outputs(parameters, {"inputs": inputs}, {}), expected)
    parameters["layers.0.scorer.factor"] = torch.tensor([6**-0.5, 1.0], dtype=torch.float64)
    assert not torch.allclose(model.outputs(parameters, {"inputs": inputs}, {}), expected)


# -- packed equals alone ---------------------------------------------------------------------------------------------


def variants() -> list[Any]:
    """Each named variant, and each position; activations have a test of their own."""
    quick = ("paper 002", "everything")
    marks = {name: [] if name in quick else [pytest.mark.slow] for name in VARIANTS}
    cases = [pytest.param(settings, id=name, marks=marks[name]) for name, settings in VARIANTS.items()]
    positions = [{"position": {"name": name}} for name in plugins.names(Position)]
    return cases + [pytest.param(p, id=p["position"]["name"], marks=pytest.mark.slow) for p in positions]


def trials(settings: dict[str, Any], *, dtype: str, dropout: bool) -> list[Any]:
    """Three trials with random optimizers, and random knobs wherever the model has any."""
    numbers = random.Random(4)
    candidates = []
    for number in range(3):
        drawn_knobs = random_knobs(numbers)
        model = {
            "name": "transformer",
            "width": 12,
            "depth": 1,
            "norm_epsilon": 10 ** numbers.uniform(-8, -4),
            **settings,
        }
        if dropout:
            rates = ("embedding_dropout", "attention_dropout", "mlp_dropout")
            model |= {rate: numbers.uniform(0.01, 0.5) for rate in rates}
        if "logit_cap" in settings:
            model["logit_cap"] = numbers.uniform(1, 5)
        shape = config(
            length=5, vocabulary=8, steps=4, every=4, batch=3, validation_batch=5, dtype=dtype,
            optimizer=drawn_knobs["optimizer"], averaging=drawn_knobs["averaging"],
        )  # fmt: skip
        candidates.append(trial(number, shape | {"model": model}))
    return candidates


@pytest.mark.parametrize("settings", variants())
def test_lanes_together_equal_trials_alone_to_the_bit_in_float32(settings: dict[str, Any]) -> None:
    many = trials(settings, dtype="float32", dropout=bool(settings) and "canon" in settings)
    pack = Pack(many[0], width=3)
    pack.fill(many)
    reports = reports_of(pack)
    for key, report in {key: report for candidate in many for key, report in alone(candidate).items()}.items():
        assert [m.value for m in reports[key].metrics] == [m.value for m in report.metrics]


def test_lanes_with_dropout_at_every_site_equal_trials_alone() -> None:
    many = trials({}, dtype="float64", dropout=True)
    pack = Pack(many[0], width=2)
    pack.fill(many[:2])
    expected = {key: report for candidate in many for key, report in alone(candidate).items()}
    assert_same(reports_of(pack, waiting=many[2:]), expected)
