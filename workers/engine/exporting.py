"""A trained trial's weights as files that other programs read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spaces.errors import StudyError
from spaces.messages import no_such
from spaces.plugins import name_of
from spaces.settings import Objective
from workers.data.tasks.language import Language
from workers.engine.trained_model import TrainedModel
from workers.networks.activations import Activation
from workers.networks.activations.gelu import Gelu
from workers.networks.activations.identity import Identity
from workers.networks.activations.relu import Relu
from workers.networks.activations.relu_squared import ReluSquared
from workers.networks.activations.tanh import Tanh
from workers.networks.models.transformer import Transformer
from workers.networks.scorers.softmax import Softmax
from workers.numerics.parameters import within
from workers.training.averaging import RAW, Variant
from workers.training.recipe import Recipe

Arrays = Mapping[str, np.ndarray]

ACTIVATIONS: Mapping[type[Activation], str] = {
    Gelu: "gelu",  # with `form: tanh` gelu_new
    Identity: "linear",
    Relu: "relu",
    ReluSquared: "relu2",
    Tanh: "tanh",
}
"""Our activation -> the name of the same function in transformers."""
UNREACHED = 1e4
"""Minus the logit of a token that the trial never saw."""
ROUNDING = 1e-5
"""Largest difference of outputs, relative to the largest, of a compiled spline and torch's."""
COMPARED = 8
POSITIONS = ("learned", "none", "sinusoidal")
"""Positions that are added to embeddings, and are therefore a table."""


def write_safetensors(path: Path, weights: Arrays, metadata: Mapping[str, str] | None = None) -> None:
    """Write one file with every parameter under its name."""
    arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    path.write_bytes(_serialiser()(arrays, metadata=metadata))


def check_package() -> None:
    """Raise StudyError if the package that writes weights is missing."""
    _serialiser()


def variant_of(objective: Objective, config: Mapping[str, Any]) -> str:
    """Return the label of the variant of a trial's parameters that an objective is measured on.

    Of a grid it is `bema kappa=0.5 eta=1` for the objective `tvd/bema/length=8 kappa=0.5 eta=1`.
    """
    words = objective.condition.split()
    for variant in _list_variants(config):
        own = variant.condition.split()  # a metric's condition ends with them (`reported_metrics`)
        if variant.name == objective.variant and words[len(words) - len(own) :] == own:
            return variant.label
    return objective.variant


def check_variant(config: Mapping[str, Any], variant: str) -> None:
    """Raise StudyError with the choices if such a trial has no such variant of its parameters."""
    known = [choice.label for choice in _list_variants(config)]
    if variant not in known:
        raise StudyError(f"--variant: {no_such('variant of this trial', variant, known)}")


def _list_variants(config: Mapping[str, Any]) -> list[Variant]:
    return [RAW, *Recipe.of(config).averaging.variants]


def check_gpt2(config: Mapping[str, Any]) -> None:
    """Raise StudyError with every difference of a trial's architecture from GPT-2's."""
    if reasons := list(_obstacles(Recipe.of(config))):
        raise StudyError("the trial is no GPT-2: " + "; ".join(reasons))


def write_gpt2(folder: Path, config: Mapping[str, Any], weights: Arrays) -> None:
    """Write a folder for GPT2LMHeadModel, after `check_gpt2`; with a language task's tokenizer."""
    check_package()
    recipe = Recipe.of(config)
    settings, tensors = _gpt2(recipe, {name: torch.tensor(array) for name, array in weights.items()})
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(recipe.task, Language) and (file := recipe.task.tokenised.file()) is not None:
        text, end = file
        size = recipe.task.tokenised.encoder.size
        settings |= {"vocab_size": size + 1, "bos_token_id": size, "eos_token_id": size}
        _widen(tensors, recipe.task.tokenised.kept, size)
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        tokens = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "bos_token": end}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokens, indent=2) + "\n")
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})


@torch.no_grad()
def largest_difference(trained: TrainedModel, network: Any) -> float:
    """Return the largest difference from `network`'s outputs; StudyError beyond rounding."""
    inputs, parameters = trained.batch()["inputs"][:COMPARED], dict(trained.named_parameters())
    expected, outputs = trained(inputs), network.outputs(parameters, {"inputs": inputs}, {})
    difference = float((outputs - expected).abs().max())
    if not difference <= ROUNDING * max(1.0, float(expected.abs().max())):
        raise StudyError(f"the code taken out of Graft gives other logits than the trial, by up to {difference:.1e}")
    return difference


def _serialiser() -> Any:
    """Return safetensors' function to bytes: when it writes files, its errors are no OSErrors."""
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise StudyError("writing weights needs the package safetensors: pip install safetensors") from error
    return save


def _gpt2(recipe: Recipe, weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return configuration and tensors, by the names of the transformers package."""
    model = recipe.model
    assert isinstance(model, Transformer)
    length = weights["position.table"].shape[0] if "position.table" in weights else recipe.task.longest
    positions = model.position.add_to(torch.zeros(length, model.width), within("position", weights))
    tensors = {"transformer.wte.weight": weights["embedding"], "transformer.wpe.weight": positions}
    for number in range(model.depth):
        layer = _layer(model, within(f"layers.{number}", weights))
        tensors |= {f"transformer.h.{number}.{name}": tensor for name, tensor in layer.items()}
    tensors |= _with_bias("transformer.ln_f", weights, "norm", model.width)
    if not model.tied:
        tensors["lm_head.weight"] = weights["unembedding"].mT
    return _settings(model, tokens=weights["embedding"].shape[0], length=length), tensors


def _widen(tensors: dict[str, Tensor], kept: Sequence[int], size: int) -> None:
    """Give both embeddings a row for each of `size` tokens of the encoder, and one for the end.

    A dropped token gets a logit that nothing else reaches: LayerNorm's output z has the sum 0, so
    that the product of g z + b with 1 / g is always the sum of b / g; a row is that vector, scaled
    to -UNREACHED. If b is 0 there is no such row, and its logit is 0.
    """
    gain, bias = tensors["transformer.ln_f.weight"].double(), tensors["transformer.ln_f.bias"].double()
    level = (bias / gain).sum()
    never = (-UNREACHED / level / gain if level else torch.zeros_like(gain)).to(bias.dtype)
    for name in ("transformer.wte.weight", "lm_head.weight"):
        if name in tensors:
            rows = tensors[name]
            tensors[name] = never.to(rows.dtype).expand(size + 1, -1).clone()
            tensors[name][[*kept, size]] = rows


def _layer(model: Transformer, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return one block; its temperature is multiplied into the queries."""
    assert isinstance(model.scorer, Softmax)
    packed = _with_bias("attn.c_attn", weights, "query_key_value", 3 * model.width)
    for tensor in packed.values():
        tensor[..., : model.width] /= model.scorer.temperature
    return {
        **_with_bias("ln_1", weights, "attention_norm", model.width),
        **packed,
        **_with_bias("attn.c_proj", weights, "output", model.width),
        **_with_bias("ln_2", weights, "mlp_norm", model.width),
        **_with_bias("mlp.c_fc", weights, "mlp_in", model.mlp_multiple * model.width),
        **_with_bias("mlp.c_proj", weights, "mlp_out", model.width),
    }


def _with_bias(theirs: str, weights: Mapping[str, Tensor], ours: str, outputs: int) -> dict[str, Tensor]:
    """Return a map or a norm, with a bias of zeros if it has none."""
    bias = weights[f"{ours}_bias"] if f"{ours}_bias" in weights else torch.zeros(outputs)
    return {f"{theirs}.weight": weights[ours].clone(), f"{theirs}.bias": bias.clone()}


def _settings(model: Transformer, *, tokens: int, length: int) -> dict[str, Any]:
    approximate = isinstance(model.activation, Gelu) and model.activation.form == "tanh"
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": tokens,
        "n_positions": length,
        "n_embd": model.width,
        "n_layer": model.depth,
        "n_head": model.heads,
        "n_inner": model.mlp_multiple * model.width,
        "activation_function": "gelu_new" if approximate else ACTIVATIONS[type(model.activation)],
        "layer_norm_epsilon": model.norm_epsilon,
        "tie_word_embeddings": model.tied,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _obstacles(recipe: Recipe) -> Iterator[str]:
    """Yield each difference from GPT-2's architecture, with the value that it needs."""
    model = recipe.model
    if not isinstance(model, Transformer):
        yield f"model.name is {name_of(model)}, must be transformer"
        return
    activation, position = model.activation, name_of(model.position)
    allowed = ", ".join(sorted(member.__module__.rpartition(".")[2] for member in ACTIVATIONS))
    wrong = {
        "pre_norm is false, must be true": not model.pre_norm,
        f"norm is {model.norm}, must be layer_norm": model.norm != "layer_norm",
        "query_key_norm is true, must be false": model.query_key_norm,
        f"canon is {model.canon}, must be none": model.canon != "none",
        f"logit_cap is {model.logit_cap:g}, must be 0": model.logit_cap != 0,
        "mlp_multiple is 0, must be at least 1": not model.mlp_multiple,
        f"scorer is {name_of(model.scorer)}, must be softmax": type(model.scorer) is not Softmax,
        f"activation is {name_of(activation)}, must be one of {allowed}": type(activation) not in ACTIVATIONS,
        f"position is {position}, must be one of {', '.join(POSITIONS)}": position not in POSITIONS,
    }
    yield from (f"model.{text}" for text, is_wrong in wrong.items() if is_wrong)
