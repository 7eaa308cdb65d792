"""How models start, against torch.nn.Linear, torch.nn.Embedding, torch.nn.init and GPT-2 of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model, LlamaConfig, LlamaForCausalLM

from spaces import plugins
from tests.oracles.pieces import parts
from tests.oracles.pieces.parameters import start_parameters
from workers.data.tasks import Task
from workers.data.tasks.affine import Affine
from workers.data.tasks.copying import Copying
from workers.networks.models import Model
from workers.networks.models._initialisation import INITIALISATIONS
from workers.numerics.layout import Layout

pytestmark = pytest.mark.fast

DEPTH, WIDTH, HEADS = 3, 64, 4
NUMBERS, TOKENS = Affine(points=100), Copying()
GPT2_NAMES = {
    "attn.c_attn": "query_key_value",
    "attn.c_proj": "output",
    "mlp.c_fc": "mlp_in",
    "mlp.c_proj": "mlp_out",
    "ln_1": "attention_norm",
    "ln_2": "mlp_norm",
}
"""Names within a layer: of transformers' GPT-2, and ours."""


def build(kind: str, initialisation: str, **settings: Any) -> Model:
    sizes = {"depth": DEPTH, "width": WIDTH, "heads": HEADS}
    return plugins.build(Model, {"name": kind, **sizes, "initialisation": initialisation, **settings})


def started(model: Model, task: Task, seed: int = 5) -> dict[str, Tensor]:
    layout = Layout.of(model.parameters(task))
    return layout.split(layout.initial(torch.tensor([seed]))[0])


def drawn_by_torch(make: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Return the parameters of a module of torch, from a seed of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return {name: value.detach() for name, value in make().named_parameters()}


def check_same_distribution(ours: Tensor, theirs: Tensor) -> None:
    """Moments, bounds, and Kolmogorov and Smirnov's test of two samples; numbers that do not vary are equal."""
    ours, theirs = ours.double().flatten(), theirs.double().flatten()
    if not float(theirs.std()):
        assert ours.unique().tolist() == theirs.unique().tolist()
        return
    error = 5 * math.sqrt(1 / len(ours) + 1 / len(theirs))
    assert abs(float(ours.mean() - theirs.mean())) < error * float(theirs.std())
    assert float(ours.std() / theirs.std()) == pytest.approx(1, abs=error)
    assert float(ours.abs().max() / theirs.abs().max()) == pytest.approx(1, abs=0.4)
    p: Any = stats.ks_2samp(np.asarray(ours), np.asarray(theirs))
    assert p.pvalue > 1e-4


def ours_of_gpt2(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of transformers' GPT-2 by our names."""
    parameters: dict[str, Tensor] = {}
    for name, value in theirs.items():
        name = name.removeprefix("transformer.")
        if name.startswith("h."):
            _, layer, *inside, kind = name.split(".")
            parameters[f"layers.{layer}.{GPT2_NAMES['.'.join(inside)]}{'_bias' if kind == 'bias' else ''}"] = value
        else:
            parameters[{"wte.weight": "embedding", "wpe.weight": "position.table", "ln_f.weight": "norm",
                        "ln_f.bias": "norm_bias", "lm_head.weight": "unembedding"}[name]] = value  # fmt: skip
    return parameters


def test_a_regressor_starts_as_the_public_code_of_in_context_learning() -> None:
    """GPT-2 of transformers between two maps of torch, as in Garg et al. 2022 and paper 000."""
    ours = started(build("regressor", "gpt2"), NUMBERS)
    settings = GPT2Config(n_positions=NUMBERS.context, n_embd=WIDTH, n_layer=DEPTH, n_head=HEADS, vocab_size=1)
    theirs = ours_of_gpt2(drawn_by_torch(lambda: GPT2Model(settings)))
    for end, shape in (("read_in", (1, WIDTH)), ("read_out", (WIDTH, 1))):
        linear = drawn_by_torch(lambda shape=shape: nn.Linear(*shape))
        theirs |= {end: linear["weight"], f"{end}_bias": linear["bias"]}
        bound = shape[0] ** -0.5
        assert float(ours[end].abs().max()) <= bound
        assert float(ours[end].abs().max()) > 0.9 * bound
        assert 0 < float(ours[f"{end}_bias"].abs().max()) <= bound
    del theirs["embedding"]  # tokens, which a regressor has not
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"read_out_bias"}:  # one number, whose bound is tested above
        check_same_distribution(ours[name], theirs[name])


def test_gpt2_and_llama_start_as_those_of_transformers() -> None:
    ours = started(build("transformer", "gpt2"), TOKENS)
    sizes: dict[str, Any] = {"n_positions": TOKENS.longest, "vocab_size": TOKENS.tokens, "tie_word_embeddings": False}
    settings = GPT2Config(n_embd=WIDTH, n_layer=DEPTH, n_head=HEADS, **sizes)
    theirs = ours_of_gpt2(drawn_by_torch(lambda: GPT2LMHeadModel(settings)))
    assert ours.keys() == theirs.keys()
    for name in ours:
        check_same_distribution(ours[name], theirs[name])
    llama = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS, vocab_size=9
    )
    output = drawn_by_torch(lambda: LlamaForCausalLM(llama))["model.layers.2.self_attn.o_proj.weight"]
    check_same_distribution(started(build("transformer", "normal"), TOKENS)["layers.2.output"], output)


def test_the_other_starts_are_those_of_torch() -> None:
    truncated = drawn_by_torch(lambda: _Truncated(WIDTH))["weight"]
    plain = started(build("regressor", "truncated_normal"), NUMBERS)
    for name in ("read_in", "layers.0.query_key_value", "layers.2.output", "layers.1.mlp_out", "position.table"):
        check_same_distribution(plain[name], truncated)
    assert not plain["read_in_bias"].any()
    modded = started(build("transformer", "modded_nanogpt"), TOKENS)
    check_same_distribution(modded["embedding"], drawn_by_torch(lambda: nn.Embedding(500, WIDTH))["weight"])
    for name in ("query_key_value", "mlp_in"):
        check_same_distribution(modded[f"layers.1.{name}"], drawn_by_torch(lambda: nn.Linear(WIDTH, 200))["weight"])
    for name in ("layers.1.output", "layers.0.mlp_out", "unembedding"):
        assert not modded[name].any()


class _Truncated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(width, width), std=0.02, a=-0.04, b=0.04))


def test_a_configuration_without_the_field_starts_to_the_bit_as_before_there_was_one() -> None:
    """The default; the numbers are the read-in of version 6 of the numerics, before there was a choice."""
    model = plugins.build(Model, {"name": "regressor", "width": 4})
    assert plugins.config_of(model)["initialisation"] == "truncated_normal"
    parameters = started(model, Affine(), 7)
    assert parameters["read_in"][0].tolist() == [
        0.029468077987157396,
        0.021824324333167368,
        0.02378789403010744,
        -0.027844346528479873,
    ]


@pytest.mark.parametrize("initialisation", INITIALISATIONS)
def test_models_start_as_an_implementation_that_shares_no_code(initialisation: str) -> None:
    for kind, task in (("regressor", NUMBERS), ("transformer", TOKENS)):
        model = build(kind, initialisation)
        other = parts.build("model", plugins.config_of(model))
        theirs = start_parameters(other.parameters(task), 5, 0, torch.float64)
        ours = started(model, task)
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            torch.testing.assert_close(value, theirs[name], rtol=1e-12, atol=0)
