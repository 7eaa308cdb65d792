"""Pretrained models like Llama and Gemma, from a local folder, with a scorer in place of softmax.

Only this module needs Hugging Face transformers, loaded when a model is.

Legend: N sequences, s positions, l layers, h heads, q queries, k keys, c channels, v tokens.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn

from spaces import plugins
from spaces.errors import PluginError, StudyError
from spaces.messages import shorten
from workers.networks.scorers import LogitScorer, Scorer, widen

_LEARNED = "graft_scorer"
"""The attribute of an attention module for its scorer's learned numbers, [h, ...] each."""


def load_pretrained(folder: Path, scorer: Mapping[str, Any] | None = None, dtype: str = "float32") -> Any:
    """Return a folder's model, an `AutoModelForCausalLM` of transformers; nothing is fetched.

    `scorer`: `{"name": "ssa", "b": 1.0}`, its parts as in a space; None leaves softmax, by
    transformers' plainest code. What it learns becomes parameters `graft_scorer` of each attention
    layer, which train and are saved with the others; in evaluation it acts as in validation. Raises
    StudyError for a folder without such a model, or a scorer that looks at more than logits.
    """
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise StudyError(
            "pretrained models need the package transformers: pip install 'graft-search[huggingface]'"
        ) from error
    if not (folder / "config.json").is_file():
        raise StudyError(f"{folder}: there is no config.json of a pretrained model in it")
    plugin = None if scorer is None else build_scorer(scorer)
    name = "eager" if plugin is None else _register(transformers, plugin)
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, attn_implementation=name, dtype=getattr(torch, dtype)
        )
    except (OSError, ValueError, KeyError) as error:
        raise StudyError(f"{folder}: transformers cannot load it: {' '.join(str(error).split())[:200]}") from error
    modules = list(attention_modules(model))
    if not modules:
        raise StudyError(f"{folder}: {type(model).__name__} has no attention of the kind of Llama's or Gemma's")
    if plugin is not None:
        for module in modules:
            module.register_module(_LEARNED, _learned(plugin, model.config.num_attention_heads))
        _restore(model, folder)
    return model.eval()


def build_scorer(scorer: Mapping[str, Any]) -> LogitScorer:
    """Return the scorer of a configuration; StudyError for one that looks at more than logits."""
    plugin = plugins.build(Scorer, _long_form(Scorer, scorer, "scorer"), "scorer")
    if not isinstance(plugin, LogitScorer):
        raise StudyError(f"scorer: {scorer['name']!r} looks at queries and keys; it must depend on their logits alone")
    return plugin


def _long_form(family: type, written: Any, path: str) -> Mapping[str, Any]:
    """Return `{"name": "ssa", "b": 2}` of a plug-in that is written so, or `{"ssa": {"b": 2}}`, or `"ssa"`."""
    match written:
        case str():
            config: dict[str, Any] = {"name": written}
        case {"name": str()}:
            config = dict(written)
        case dict() if len(written) == 1 and isinstance(fields := next(iter(written.values())), dict):
            config = {"name": next(iter(written)), **fields}
        case _:
            raise PluginError(f"{path}: {shorten(repr(written))} must be a name, or 'NAME: {{FIELD: VALUE}}'")
    for field, rule in plugins.rules(plugins.load(family, config["name"])).items():
        if rule.family and field in config:
            config[field] = _long_form(rule.family, config[field], f"{path}.{field}")
    return config


def attention_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the attention modules of the layers, first layer first."""
    for module in model.modules():
        if hasattr(module, "num_key_value_groups") and hasattr(module, "layer_idx"):
            yield module


def head_entropies(model: Any, tokens: Tensor) -> Tensor:
    """Return attention's entropy [l, N, h, q] in nats for tokens [N, s] (paper 001, Figure 3)."""
    return _for_each_layer(model, tokens, lambda weights: -torch.xlogy(weights, weights).sum(-1))


def logit_spreads(model: Any, tokens: Tensor) -> Tensor:
    """Return the spread [l, N, h, q] of softmax's logits: a query's largest less its least.

    Tokens are [N, s], without padding. The least is that of the smallest weight above 0, in float32
    and within a window. Source: paper 001, section 2.1.
    """

    def spread(weights: Tensor) -> Tensor:
        return weights.amax(-1).log() - torch.where(weights > 0, weights, 1).amin(-1).log()

    return _for_each_layer(model, tokens, spread)


@torch.no_grad()
def _for_each_layer(model: Any, tokens: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a function of the weights [N, h, q, k] of each layer, by layer."""
    values: list[Tensor] = []

    def keep(module: nn.Module, given: Any, made: Any) -> None:
        values.append(reduce(made[1].double()))

    handles = [module.register_forward_hook(keep) for module in attention_modules(model)]
    try:
        model(tokens, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(values)


@torch.no_grad()
def embedding_norms(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Return the Euclidean norm [v] of tokens' vectors: `embedding`, and `unembedding` if apart.

    The model is in a folder; paper 000's Figure 8. Raises StudyError as `load_pretrained` does.
    """
    model = load_pretrained(folder)
    read, written = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    matrices = {"embedding": read} | ({} if written is read else {"unembedding": written})
    return {name: matrix.double().norm(dim=-1).numpy() for name, matrix in matrices.items()}


def _register(transformers: Any, scorer: LogitScorer) -> str:
    """Register a scorer with transformers, and return its name there."""
    settings = plugins.canonical_json(plugins.config_of(scorer))
    name = f"graft_{plugins.name_of(scorer)}_{hashlib.sha256(settings.encode()).hexdigest()[:8]}"
    transformers.AttentionInterface.register(name, _attention(scorer))
    masks = import_module("transformers.masking_utils")
    masks.AttentionMaskInterface.register(name, masks.eager_mask)
    return name


def _attention(scorer: LogitScorer) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return attention as transformers calls it: mixed [N, q, h, c], weights [N, h, q, k]."""
    evaluated = scorer.evaluations()[""]
    assert isinstance(evaluated, LogitScorer), "validation keeps a scorer's kind"

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        groups = module.num_key_value_groups
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))
        scale = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
        logits = widen(query) @ widen(key).mT * scale
        if softcap is not None:
            logits = softcap * (logits / softcap).tanh()
        visible = torch.ones_like(logits[:1, :1], dtype=torch.bool)
        if attention_mask is not None:
            visible = attention_mask == 0
        # A padding query sees nothing; its result is not read, but it must be a number.
        visible = visible | ~visible.any(-1, keepdim=True)
        used = scorer if module.training else evaluated
        learned = dict(getattr(module, _LEARNED).named_parameters())
        weights = used.of_logits(logits, visible, learned).to(value.dtype)
        mixed = nn.functional.dropout(weights, p=dropout, training=module.training) @ value
        return mixed.transpose(1, 2).contiguous(), weights

    return attend


def _learned(scorer: LogitScorer, heads: int) -> nn.ParameterDict:
    """Return the scorer's learned numbers of a layer at their start, in float32."""
    middle = torch.full((1,), 0.5, dtype=torch.float64)  # random starts begin in their middle
    numbers = nn.ParameterDict()
    for name, parameter in scorer.parameters(heads).items():
        start = parameter.start.values(middle.expand(1, math.prod(parameter.shape)))
        *outer, last = name.split(".")
        inner: Any = numbers
        for part in outer:
            if part not in inner:
                inner[part] = nn.ParameterDict()
            inner = inner[part]
        inner[last] = nn.Parameter(start.float().reshape(parameter.shape).clone())
    return numbers


@torch.no_grad()
def _restore(model: nn.Module, folder: Path) -> None:
    """Load what scorers learned, if the folder was saved after training."""
    known = dict(model.named_parameters())
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                if f".{_LEARNED}." in name and name in known:
                    known[name].copy_(file.get_tensor(name))
