"""Addition modulo 97 and the GPT-style transformer of paper 002 (Table 4), in plain PyTorch.

Legend: N sequences, s positions, v tokens, d width, h heads, c = d / h channels of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.peers.problem import Batch, Knobs, PlainModel, Problem, truncated_normal


class Layer(nn.Module):
    """Attention and an MLP, each followed by a LayerNorm of the sum."""

    def __init__(self, *, width: int, heads: int, norm_epsilon: float, attention: float, mlp: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=norm_epsilon)
        self.attention_dropout = nn.Dropout(attention)
        self.mlp_dropout = nn.Dropout(mlp)

    def forward(self, stream: Tensor) -> Tensor:
        packed = self.query_key_value(stream).unflatten(-1, (3, self.heads, -1))  # [N, s, 3, h, c]
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)  # [N, h, s, c]
        stream = self.attention_norm(stream + self.attention_dropout(self.output(mixed.transpose(1, 2).flatten(2))))
        return self.mlp_norm(stream + self.mlp_dropout(self.mlp_out(F.gelu(self.mlp_in(stream)))))


class Gpt(PlainModel):
    """Learned positions, post-norm, untied."""

    def __init__(
        self,
        *,
        tokens: int,
        context: int,
        depth: int,
        width: int,
        heads: int,
        norm_epsilon: float = 1e-5,
        embedding_dropout: float = 0.0,
        attention_dropout: float = 0.0,
        mlp_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.empty(context, width))
        self.embedding_dropout = nn.Dropout(embedding_dropout)
        rates = {"attention": attention_dropout, "mlp": mlp_dropout}
        self.layers = nn.Sequential(
            *(Layer(width=width, heads=heads, norm_epsilon=norm_epsilon, **rates) for _ in range(depth))
        )
        self.unembedding = nn.Linear(width, tokens, bias=False)
        truncated_normal(self)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, inputs: Tensor) -> Tensor:
        stream = self.embedding_dropout(self.embedding(inputs) + self.position[: inputs.shape[-1]])  # [N, s, d]
        return self.unembedding(self.layers(stream))

    def decayed(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters() if parameter.ndim > 1]


@dataclass(frozen=True, kw_only=True)
class AddMod(Problem):
    """a, b, separator, then (a + b) mod 97: 8,938 of all pairs are trained on, 471 validated."""

    direction = "maximize"
    objective = "accuracy/bema"
    batch = 512
    dropout_sites = ("embedding_dropout", "attention_dropout", "mlp_dropout")
    modulus: int = 97
    depth: int = 2
    heads: int = 2
    width: int = 32

    def fixed(self) -> dict[str, dict[str, Any]]:
        sizes = {"depth": self.depth, "heads": self.heads, "width": self.width}
        return {
            "task": {"name": "add_mod", "modulus": self.modulus},
            "model": {"name": "transformer", **sizes, "pre_norm": False},
        }

    def model(self, knobs: Knobs) -> Gpt:
        return Gpt(
            tokens=self.modulus + 2,  # the separator, and one for padding that Graft's tasks have in common
            context=3,
            depth=self.depth,
            heads=self.heads,
            width=self.width,
            norm_epsilon=knobs.get("model.norm_epsilon", 1e-5),
            embedding_dropout=knobs.get("model.embedding_dropout", 0.0),
            attention_dropout=knobs.get("model.attention_dropout", 0.0),
            mlp_dropout=knobs.get("model.mlp_dropout", 0.0),
        )

    def training(self, device: str) -> Batch:
        pairs = shuffled_pairs(self.modulus, device)[: self._trained]
        return self._examples(pairs[torch.randint(self._trained, (self.batch,), device=device)])

    def validation(self, batch: int, device: str) -> Batch:
        return self._examples(shuffled_pairs(self.modulus, device)[self._trained :])

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(logits[:, -1], batch[1])

    def metrics(self, logits: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"accuracy": (logits[:, -1].argmax(-1) == batch[1]).double().mean()}

    @property
    def _trained(self) -> int:
        return 95 * self.modulus**2 // 100

    def _examples(self, pairs: Tensor) -> Batch:
        first, second = pairs // self.modulus, pairs % self.modulus
        separator = torch.full_like(first, self.modulus)
        return torch.stack([first, second, separator], -1), (first + second) % self.modulus


@cache
def shuffled_pairs(modulus: int, device: str) -> Tensor:
    """[n^2] all pairs a n + b in a fixed random order."""
    return torch.randperm(modulus**2, generator=torch.Generator().manual_seed(0)).to(device)
