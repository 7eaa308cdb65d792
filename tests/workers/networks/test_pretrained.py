"""Pretrained models of a folder with our scorers: tiny random ones of the kind of Llama and of Gemma."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from spaces.errors import PluginError, StudyError
from workers.networks.pretrained import (
    attention_modules,
    embedding_norms,
    head_entropies,
    load_pretrained,
    logit_spreads,
)

os.environ["HF_HUB_OFFLINE"] = "1"

pytestmark = pytest.mark.long  # loading transformers takes seconds

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
TOKENS = torch.tensor([[1, 7, 30, 2, 9, 9], [0, 0, 5, 6, 7, 8]])
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]])


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        model: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    else:
        options = {"query_pre_attn_scalar": 6, "attn_logit_softcapping": 2.0, "sliding_window": 3}
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SIZES, **options))
    model.save_pretrained(path)
    return path


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS, attention_mask=MASK).logits[MASK.bool()]


def test_softmax_as_a_scorer_is_transformers_own(folder: Path) -> None:
    """Grouped heads, padding, a window and capped logits are where they belong; a temperature is seen."""
    plain = logits(load_pretrained(folder))
    torch.testing.assert_close(logits(load_pretrained(folder, {"name": "softmax"})), plain, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(
        logits(load_pretrained(folder, {"name": "softmax", "temperature": 3.0})), plain, atol=1e-2
    )


def test_attention_is_weighed_by_the_scorers_formula(folder: Path) -> None:
    """SSA of the logits that softmax has: its weights from the logarithm of softmax's, which is z up to a constant."""
    model, plain = load_pretrained(folder, {"name": "ssa", "b": 2.0, "n": 1.5}), load_pretrained(folder)
    weights, seen = [], []
    for network, kept in ((model, weights), (plain, seen)):
        module = next(iter(attention_modules(network)))
        module.register_forward_hook(lambda *given, kept=kept: kept.append(given[-1][1]))
        logits(network)
    module, z = next(iter(attention_modules(model))), []
    scorer = module.graft_scorer
    assert scorer["b"].tolist() == [2.0] * 4
    interface = model.config._attn_implementation
    assert interface.startswith("graft_ssa_")
    # The first layer sees the same stream in both, so that exp(z) is softmax's weight times the row's sum.
    ratio = (seen[0] / seen[0].amax(-1, keepdim=True)).log()  # z - max z, where something is seen
    top = _largest_logits(plain)
    z = ratio + top[..., None]
    kernel = torch.where(z >= 0, (1 + 2 * z.abs()) ** 1.5, (1 + 2 * z.abs()) ** -1.5).masked_fill(seen[0] == 0, 0.0)
    rows = MASK.bool()[:, None, :, None].expand_as(kernel)
    expected = kernel / kernel.sum(-1, keepdim=True)
    torch.testing.assert_close(weights[0][rows], expected[rows], rtol=1e-3, atol=1e-5)


def _largest_logits(model: Any) -> torch.Tensor:
    """[N, h, q] of the first layer, from the queries and keys that its maps make."""
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    module, kept = next(iter(attention_modules(model))), {}
    handle = module.register_forward_pre_hook(lambda _, args, kwargs: kept.update(kwargs), with_kwargs=True)
    logits(model)
    handle.remove()
    stream = kept["hidden_states"]
    with torch.no_grad():
        query = module.q_proj(stream).unflatten(-1, (-1, 6)).transpose(1, 2)
        key = module.k_proj(stream).unflatten(-1, (-1, 6)).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *kept["position_embeddings"])
        z = query @ key.repeat_interleave(2, dim=1).mT / 6**0.5
    if cap := getattr(module, "attn_logit_softcapping", None):
        z = cap * (z / cap).tanh()
    return (z + kept["attention_mask"]).amax(-1)


def test_what_a_scorer_learns_trains_and_is_saved(folder: Path, tmp_path: Path) -> None:
    model = load_pretrained(folder, {"name": "ssa"}).train()
    before = model(TOKENS[:1], labels=TOKENS[:1]).loss.item()
    optimizer = torch.optim.SGD(
        [parameter for name, parameter in model.named_parameters() if "graft_scorer" in name], lr=0.05
    )
    for _ in range(5):
        optimizer.zero_grad()
        model(TOKENS[:1], labels=TOKENS[:1]).loss.backward()
        optimizer.step()
    assert model(TOKENS[:1], labels=TOKENS[:1]).loss.item() < before
    model.save_pretrained(tmp_path)
    again = load_pretrained(tmp_path, {"name": "ssa"})
    assert torch.equal(logits(again), logits(model.eval()))
    assert not torch.equal(logits(again), logits(load_pretrained(folder, {"name": "ssa"})))


def test_mixed_scorers_that_learn_train_and_are_saved(folder: Path, tmp_path: Path) -> None:
    """A part may be written in each of the ways of a space."""
    mixed = {"name": "mixed", "first": {"ssa": {"b": 2.0}}, "second": "softmax_learned", "first_heads": 1}
    model = load_pretrained(folder, mixed).train()
    scorer = next(iter(attention_modules(model))).graft_scorer
    assert {name: tuple(tensor.shape) for name, tensor in scorer.named_parameters()} == {
        "first.b": (1,), "first.n": (1,), "second.log_temperature": (3,),
    }  # fmt: skip
    model(TOKENS[:1], labels=TOKENS[:1]).loss.backward()
    assert all(tensor.grad.any() for tensor in scorer.parameters())
    with torch.no_grad():
        scorer.get_parameter("first.b").add_(1)
    model.save_pretrained(tmp_path)
    written = {"name": "mixed", "first": {"name": "ssa"}, "second": {"softmax_learned": {}}, "first_heads": 1}
    again = load_pretrained(tmp_path, written)
    assert next(iter(attention_modules(again))).graft_scorer.get_parameter("first.b").tolist() == [3.0]
    assert torch.equal(logits(again), logits(model.eval()))
    with pytest.raises(PluginError, match=r"scorer.first: 3 must be a name, or 'NAME: \{FIELD: VALUE\}'"):
        load_pretrained(folder, {"name": "mixed", "first": 3})


def test_adaptive_temperature_sharpens_in_evaluation_alone(folder: Path) -> None:
    model = load_pretrained(folder, {"name": "adaptive_temperature"})
    plain = load_pretrained(folder)
    sharp, flat = head_entropies(model, TOKENS[:1]), head_entropies(plain, TOKENS[:1])
    assert sharp.shape == (2, 1, 4, 6)
    assert (sharp[0] <= flat[0] + 1e-6).all()
    assert (sharp[0] < flat[0] - 1e-3).any()
    assert torch.allclose(logits(model.train()), logits(plain), atol=1e-5)


def test_spreads_of_logits_are_those_of_the_weights_that_transformers_returns(folder: Path) -> None:
    model = load_pretrained(folder)
    spreads = logit_spreads(model, TOKENS[:1])
    assert spreads.shape == (2, 1, 4, 6)
    for layer, weights in enumerate(model(TOKENS[:1], output_attentions=True, use_cache=False).attentions):
        for head, rows in enumerate(weights[0].tolist()):
            for query, row in enumerate(rows):
                seen = [math.log(weight) for weight in row[: query + 1] if weight]
                assert spreads[layer, 0, head, query] == pytest.approx(max(seen) - min(seen), abs=1e-6)


def test_generation_with_a_cache_is_that_without(folder: Path) -> None:
    model = load_pretrained(folder, {"name": "ssa"})
    ways = [model.generate(TOKENS[:1], max_new_tokens=5, do_sample=False, use_cache=way, pad_token_id=0)
            for way in (True, False)]  # fmt: skip
    assert torch.equal(*ways)


def test_norms_are_those_of_the_files_vectors(folder: Path) -> None:
    norms = embedding_norms(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        read = file.get_tensor("model.embed_tokens.weight").double()
        tied = "lm_head.weight" not in file.keys()  # noqa: SIM118 - it is no mapping
        written = read if tied else file.get_tensor("lm_head.weight").double()
    assert list(norms) == (["embedding"] if tied else ["embedding", "unembedding"])
    assert norms["embedding"].tolist() == pytest.approx((read**2).sum(-1).sqrt().tolist())
    assert norms[list(norms)[-1]].tolist() == pytest.approx((written**2).sum(-1).sqrt().tolist())


def test_what_is_no_such_model_is_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    import transformers

    with pytest.raises(StudyError, match=r"there is no config\.json"):
        load_pretrained(tmp_path)
    with pytest.raises(StudyError, match="'cosformer' looks at queries and keys"):
        load_pretrained(folder, {"name": "cosformer"})
    with pytest.raises(PluginError, match="no scorer"):
        load_pretrained(folder, {"name": "sssa"})
    transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=10)).save_pretrained(
        tmp_path
    )
    with pytest.raises(StudyError, match="GPT2LMHeadModel has no attention of the kind"):
        load_pretrained(tmp_path, {"name": "ssa"})
