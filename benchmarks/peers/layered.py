"""Transformers, attention pooling and linearised attention in plain PyTorch, and a loop's step of them.

Legend: N sequences, s positions, v tokens, d width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from entmax import entmax15
from torch import Tensor, nn
from torch.nn import functional as F

from spaces import plugins
from workers.data.tasks import Batch
from workers.training.recipe import Recipe


def sharpened(logits: Tensor) -> Tensor:
    """Softmax with the adaptive temperature of paper 001, Figure 4, as its listing computes it."""
    probabilities = logits.softmax(-1)
    entropy = -(probabilities * (probabilities + 1e-9).log()).sum(-1, keepdim=True)
    inverse = torch.zeros_like(entropy)
    for coefficient in (-0.037, 0.481, -2.3, 4.917, -1.791):
        inverse = inverse * entropy + coefficient
    return (logits * torch.where(entropy > 0.5, inverse.clamp(min=1), 1.0)).softmax(-1)


def sparse(logits: Tensor) -> Tensor:
    """1.5-entmax by the package of its authors."""
    return entmax15(logits, dim=-1)


WEIGHTS: Mapping[str, Callable[[Tensor], Tensor]] = {"adaptive_temperature": sharpened, "entmax": sparse}
"""Of scorers for which torch has no fused attention."""


class Layer(nn.Module):
    """Attention and an MLP, if the model has one, each with a LayerNorm before it or after the sum."""

    def __init__(self, model: Any, turns: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        width, hidden = model.width, model.width * model.mlp_multiple
        self.heads, self.pre_norm, self.causal, self.turns = model.heads, model.pre_norm, model.causal, turns
        self.weigh = WEIGHTS.get(plugins.name_of(model.scorer))
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width)
        if hidden:
            self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            self.mlp_norm = nn.LayerNorm(width)
        else:
            self.mlp = None

    def forward(self, stream: Tensor) -> Tensor:
        if self.pre_norm:
            stream = stream + self.attend(self.attention_norm(stream))
            return stream + self.mlp(self.mlp_norm(stream)) if self.mlp else stream
        stream = self.attention_norm(stream + self.attend(stream))
        return self.mlp_norm(stream + self.mlp(stream)) if self.mlp else stream

    def attend(self, stream: Tensor) -> Tensor:
        packed = self.query_key_value(stream).unflatten(-1, (3, self.heads, -1))
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        query, key = self.turned(query), self.turned(key)
        if self.weigh is None:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        else:
            logits = query @ key.mT / query.shape[-1] ** 0.5
            later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1) if self.causal else torch.tensor(False)
            mixed = self.weigh(logits.masked_fill(later, -torch.inf)) @ value
        return self.output(mixed.transpose(1, 2).flatten(2))

    def turned(self, vectors: Tensor) -> Tensor:
        if self.turns is None:
            return vectors
        (cosine, sine), (first, second) = self.turns, vectors.chunk(2, -1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class Plain(nn.Module):
    """A transformer or a regressor as one writes it."""

    def __init__(self, recipe: Recipe, batch: Batch) -> None:
        super().__init__()
        model: Any = recipe.model
        task: Any = recipe.task
        length = batch["inputs"].shape[1]
        given, rotary = batch["inputs"].is_floating_point(), type(model.position).__name__ == "Rotary"
        width, channels = model.width, model.width // model.heads
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, channels, 2) / channels)
        turns = (angles.cos(), angles.sin()) if rotary else None
        self.read = nn.Linear(task.features, width) if given else nn.Embedding(task.tokens, width)
        self.position = None if rotary else nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(model, turns) for _ in range(model.depth)))
        self.norm = nn.LayerNorm(width) if model.pre_norm else nn.Identity()
        self.write = nn.Linear(width, 1 if given else task.tokens, bias=given)
        if getattr(model, "tied", False):
            self.write.weight = self.read.weight

    def forward(self, inputs: Tensor) -> Tensor:
        stream = self.read(inputs)
        stream = stream if self.position is None else stream + self.position
        return self.write(self.norm(self.layers(stream)))


class Pooling(nn.Module):
    """The set model of paper 001, Appendix A.3; keys and values of the items are computed as its listing does."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        task, width = recipe.task, recipe.model.width
        self.items = nn.Sequential(
            nn.Linear(task.features, width), nn.GELU("tanh"), nn.Linear(width, width), nn.GELU("tanh")
        )
        self.questions = nn.Sequential(nn.Linear(task.query_features, width), nn.GELU("tanh"), nn.Linear(width, width))
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.classes = nn.Sequential(
            nn.Linear(width, width), nn.Linear(width, width), nn.GELU("tanh"), nn.Linear(width, task.classes)
        )

    def forward(self, inputs: Tensor, query: Tensor) -> Tensor:
        key, value = self.key_value(self.items(inputs)).chunk(2, -1)
        mixed = F.scaled_dot_product_attention(self.query(self.questions(query))[:, None], key, value)
        return self.classes(mixed[:, 0])


class Linearised(nn.Module):
    """The layer of paper 004 with merged matrices, at the position that is asked: prompts [N, s, f] to labels [N]."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        features = recipe.task.features
        self.score = nn.Parameter(torch.randn(features, features - 1) * 0.02)
        self.value = nn.Parameter(torch.randn(features, 1) * 0.02)
        self.temperature = recipe.model.temperature

    def forward(self, inputs: Tensor) -> Tensor:
        pairs, asked = inputs[:, :-1], inputs[:, -1, :-1]
        logits = pairs @ (asked @ self.score.mT)[..., None]
        weights = 1 + (logits - logits.mean(1, keepdim=True)) / self.temperature
        return (weights * (pairs @ self.value)).mean((1, 2))


def plain_step(recipe: Recipe, batch: Batch, *, compiled: bool = False) -> Callable[[], None]:
    """Return a step of the plain loop on one lane's batch; it uses the logits of the positions that count.

    `compiled`: forward and backward pass and the loss by torch.compile.
    """
    kinds = {"attention_pooling": Pooling, "linearised_attention": Linearised}
    kind = kinds.get(plugins.name_of(recipe.model))
    net: Any = kind(recipe) if kind else Plain(recipe, batch)
    optimizer, parameters = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True), list(net.parameters())
    loss = loss_of(recipe, batch, net)
    loss = torch.compile(loss) if compiled else loss

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()

    return step


def loss_of(recipe: Recipe, batch: Batch, net: Any) -> Callable[[], Tensor]:
    """Return what gives the training loss of one lane's batch, as the task has it."""
    if isinstance(net, Pooling):
        return lambda: F.cross_entropy(net(batch["inputs"], batch["query"]), batch["target"])
    if isinstance(net, Linearised):
        return lambda: F.mse_loss(net(batch["inputs"]), batch["targets"].float())
    lane = {name: tensor[None] for name, tensor in batch.items()}
    task: Any = recipe.task
    targets, weights = (tensor[0] for tensor in task.position_targets(lane, torch.float32))
    last_alone = not weights[:, :-1].any()

    def loss() -> Tensor:
        outputs = net(batch["inputs"])
        if task.position_loss == "squared":
            return ((outputs[..., 0] - targets).square() * weights).sum()
        if task.position_loss == "margin":
            return (F.softplus(-outputs[..., 0] * targets) * weights).sum()
        if last_alone:
            return F.cross_entropy(outputs[:, -1], targets[:, -1])
        losses = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return (losses * weights.flatten()).sum()

    return loss
