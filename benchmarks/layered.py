"""The layered transformers' compiled step against a plain PyTorch loop, one core.

    python -m benchmarks.layered [--cases add_mod,language] [--lanes 8] [--seconds 1.5]

A pack of `--lanes` trials (whole steps: data, gradient, clipping, AdamW) and one plain nn.Module with torch's own
attention kernel, fused AdamW and clipping, on the same batch, which it is given and need not draw. Both are timed in
turns, five each, by the processor time of one thread; medians. `gradient`: the compiled gradient alone. GFLOP/s are
those of the plain model's matrix products (6 for each weight and position, attention as if nothing were masked), so
positions that the compiled step leaves out count as done. Trust ratios to +-20 %.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.options import words_of
from tests.trials import config, trial
from workers.data.tasks import Batch
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe, layout_of

ROUNDS = 5
_ADD_MOD = {"name": "add_mod", "modulus": 97}
_STORIES = {"name": "language", "corpus": {"name": "stories", "words": 100_000}, "length": 64}
_MINIMUM = {"name": "clrs_text", "algorithm": "minimum", "largest": 4, "farthest": 6, "stride": 1}
_POST = {"name": "transformer", "width": 32, "pre_norm": False}


@dataclass(frozen=True)
class Case:
    """What is trained."""

    task: Mapping[str, Any]
    model: Mapping[str, Any]
    batch: int

    def config(self) -> dict[str, Any]:
        forever = 10**9
        one = config(steps=forever, every=forever, dtype="float32", averaging={"name": "none"})
        one["task"], one["model"], one["training"]["batch"] = dict(self.task), dict(self.model), self.batch
        return one


CASES = {
    "quick/add_mod": Case({"name": "add_mod", "modulus": 31}, _POST, 128),
    "add_mod": Case(_ADD_MOD, _POST, 512),
    "memorize": Case({"name": "memorize"}, _POST, 512),
    "clrs_text": Case(_MINIMUM, {"name": "transformer", "width": 32, "position": {"name": "rotary"}}, 32),
    "language": Case(_STORIES, {"name": "transformer", "width": 64, "tied": True}, 32),
    "othello": Case(
        {"name": "othello", "length": 40},
        {"name": "transformer", "width": 64, "heads": 4, "position": {"name": "rotary"}},
        32,
    ),
    "linear_regression": Case(
        {"name": "linear_regression", "dimension": 5, "pairs": 20}, {"name": "regressor", "width": 32}, 64
    ),
    "affine": Case({"name": "affine", "points": 20}, {"name": "regressor", "width": 32, "heads": 4}, 32),
    "max_retrieval": Case({"name": "max_retrieval", "largest": 1024}, {"name": "attention_pooling"}, 128),
    "linearised": Case(
        {"name": "linear_regression", "dimension": 5, "pairs": 100}, {"name": "linearised_attention"}, 64
    ),
    "add_mod d128": Case(_ADD_MOD, {**_POST, "width": 128}, 512),
    "copying d128": Case({"name": "copying"}, {**_POST, "width": 128}, 64),
}


class Layer(nn.Module):
    """Attention and an MLP, each with a LayerNorm before it or after the sum."""

    def __init__(self, width: int, heads: int, *, pre_norm: bool, turns: tuple[Tensor, Tensor] | None) -> None:
        super().__init__()
        self.heads, self.pre_norm, self.turns = heads, pre_norm, turns
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, stream: Tensor) -> Tensor:
        if self.pre_norm:
            stream = stream + self.attend(self.attention_norm(stream))
            return stream + self.mlp(self.mlp_norm(stream))
        stream = self.attention_norm(stream + self.attend(stream))
        return self.mlp_norm(stream + self.mlp(stream))

    def attend(self, stream: Tensor) -> Tensor:
        packed = self.query_key_value(stream).unflatten(-1, (3, self.heads, -1))
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.turned(query), self.turned(key), value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))

    def turned(self, vectors: Tensor) -> Tensor:
        if self.turns is None:
            return vectors
        (cosine, sine), (first, second) = self.turns, vectors.chunk(2, -1)
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], -1)


class Plain(nn.Module):
    """The same model as one writes it."""

    def __init__(self, recipe: Recipe, batch: Batch) -> None:
        super().__init__()
        model, task, length = recipe.model, recipe.task, batch["inputs"].shape[1]
        given, rotary = batch["inputs"].is_floating_point(), type(model.position).__name__ == "Rotary"
        width, channels = model.width, model.width // model.heads
        angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(0, channels, 2) / channels)
        turns = (angles.cos(), angles.sin()) if rotary else None
        self.read = nn.Linear(task.features, width) if given else nn.Embedding(task.tokens, width)
        self.position = None if rotary else nn.Parameter(torch.randn(length, width) * 0.02)
        layers = (Layer(width, model.heads, pre_norm=model.pre_norm, turns=turns) for _ in range(model.depth))
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width) if model.pre_norm else nn.Identity()
        self.write = nn.Linear(width, 1 if given else task.tokens, bias=given)
        if getattr(model, "tied", False):
            self.write.weight = self.read.weight

    def forward(self, inputs: Tensor) -> Tensor:
        stream = self.read(inputs)
        stream = stream if self.position is None else stream + self.position
        return self.write(self.norm(self.layers(stream)))


def plain_step(recipe: Recipe, batch: Batch) -> Callable[[], None]:
    """A step of the plain loop on one lane's batch; where only the last position counts, its logits alone are used."""
    if hasattr(recipe.model, "depth"):
        net = Plain(recipe, batch)
        return optimized(list(net.parameters()), layered_loss(recipe, batch, net))
    flat = layout_of(recipe).initial(torch.zeros(1, dtype=torch.int64)).float()[0]
    named = {name: nn.Parameter(tensor.clone()) for name, tensor in layout_of(recipe).split(flat).items()}
    # these two are written with few and large operations: nobody would write them otherwise
    return optimized(list(named.values()), lambda: recipe.task.loss(recipe.model.outputs(named, batch, {}), batch))


def layered_loss(recipe: Recipe, batch: Batch, net: Plain) -> Callable[[], Tensor]:
    """The loss of the plain model."""
    one = {name: tensor[None] for name, tensor in batch.items()}
    targets, weights = (tensor[0] for tensor in recipe.task.position_targets(one, torch.float32))
    last_alone = not weights[:, :-1].any()

    def loss() -> Tensor:
        outputs = net(batch["inputs"])
        if recipe.task.position_loss == "squared":
            return ((outputs[..., 0] - targets).square() * weights).sum()
        if last_alone:
            return F.cross_entropy(outputs[:, -1], targets[:, -1])
        losses = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return (losses * weights.flatten()).sum()

    return loss


def optimized(parameters: list[nn.Parameter], loss: Callable[[], Tensor]) -> Callable[[], None]:
    """A step of AdamW with clipping on this loss."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step() -> None:
        value = loss()
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()

    return step


def timed(works: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Processor seconds of a call of each, in turns."""
    counts: dict[str, int] = {}
    for name, work in works.items():
        work()
        start = time.thread_time()
        work()
        counts[name] = max(1, int(seconds / ROUNDS / max(time.thread_time() - start, 1e-6)))
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.thread_time()
            for _ in range(counts[name]):
                work()
            found[name].append((time.thread_time() - start) / counts[name])
    return {name: statistics.median(times) for name, times in found.items()}


def row(name: str, case: Case, lanes: int, seconds: float) -> str:
    """One line of the table."""
    recipe, trials = Recipe.of(case.config()), [trial(number, case.config()) for number in range(lanes)]
    pack = Pack(trials[0], width=lanes)
    pack.fill(trials)
    seeds, steps = torch.arange(lanes), torch.zeros(lanes, dtype=torch.int64)
    batch = recipe.task.training(Streams.of(seeds, Purpose.TRAINING_DATA, steps), case.batch, steps)
    knobs = {path: torch.full((lanes,), float(value), dtype=torch.float64) for path, value in recipe.knobs().items()}
    bound, parameters = recipe.bind(knobs), layout_of(recipe).initial(seeds).float()
    fused = recipe.model.fused(recipe.task, torch.float32, torch.device("cpu"))
    assert fused, "there is a compiler"
    works = {
        "plain": plain_step(recipe, {key: tensor[0] for key, tensor in batch.items()}),
        "pack": lambda: pack.train(1),
        "gradient": lambda: fused(bound.model, bound.task, parameters, batch, []),
    }
    cost = timed(works, seconds)
    flops = flops_of(recipe, case.batch, batch["inputs"].shape[2])
    each = {key: value / (1 if key == "plain" else lanes) for key, value in cost.items()}
    milliseconds = " | ".join(f"{1e3 * each[key]:.2f}" for key in works)
    rates = " | ".join(f"{flops / each[key] / 1e9:.0f}" for key in ("plain", "gradient"))
    return f"| {name} | {milliseconds} | {rates} | {each['plain'] / each['pack']:.2f} |"


def flops_of(recipe: Recipe, batch: int, length: int) -> float:
    """Of the plain model's matrix products in a step; not counted for models without layers."""
    model: Any = recipe.model
    if not hasattr(model, "depth"):
        return float("nan")
    weights = model.depth * 12 * model.width**2 + model.width * getattr(recipe.task, "tokens", 1)
    return 6 * batch * length * (weights + 2 * model.depth * length * model.width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=list(CASES), type=words_of(CASES))
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| case | plain ms | pack, a lane ms | gradient, a lane ms | plain GFLOP/s | gradient | pack over plain |")
    print("|---|---|---|---|---|---|---|")
    for name in options.cases:
        print(row(name, CASES[name], options.lanes, options.seconds), flush=True)


if __name__ == "__main__":
    main()
