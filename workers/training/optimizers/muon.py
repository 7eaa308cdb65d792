"""Muon for the matrices between hidden channels, AdamW for everything else."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from spaces.errors import PluginError
from spaces.plugins.fields import flag, knob, option, size
from workers.numerics.layout import Layout
from workers.numerics.parameters import Parameter
from workers.training.optimizers import Moments, exact
from workers.training.optimizers._moments import TwoMoments

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Coefficients of the iteration; after five steps singular values are 0.7 to 1.2."""
LEAST_NORM = 1e-7


@final
@dataclass(frozen=True, kw_only=True)
class Muon(TwoMoments):
    """Momentum, matrices orthogonalised by Newton-Schulz: a step moves all directions alike.

    In the form of torch.optim.Muon: the buffer becomes the mean of itself, by `momentum`, and the
    gradient; decay is by the rate before it is adjusted to the shape. `adjustment: original`
    multiplies the rate by the root of outputs / inputs where that is above 1, `match_adamw` by 0.2
    times the root of the longer side, so that rates tuned for AdamW fit. The iteration is in the
    parameters' precision, torch's in bfloat16. Embeddings, unembeddings, gains and biases move by
    AdamW with `other_rate` times the rate. A layer's queries, keys and values, and a gated MLP's
    halves, are matrices of their own. Source: Jordan et al. 2024, "Muon: An optimizer for hidden
    layers in neural networks".
    """

    momentum: float = knob(0.95, low=0, high=1, open_high=True)
    nesterov: bool = flag(True)
    iterations: int = size(5)
    adjustment: str = option("original", ("original", "match_adamw"))
    weight_decay: float = knob(0.1, low=0)
    other_rate: float = knob(0.1, low=0)

    @property
    def padding_obstacle(self) -> str | None:
        return "its rate depends on the shape of a matrix"

    def check(self, parameters: Iterable[Parameter]) -> None:
        if not any(parameter.matrices for parameter in parameters):
            raise PluginError("optimizer.name: 'muon' needs matrices between hidden channels, and the model has none")

    def start(self, parameters: Tensor, layout: Layout) -> Moments:
        return {**super().start(parameters, layout), "buffer": torch.zeros_like(parameters)}

    def update(
        self, parameters: Tensor, gradient: Tensor, moments: Moments, rate: Tensor, step: Tensor, layout: Layout
    ) -> tuple[Tensor, Moments]:
        kind, own_rate = parameters.dtype, rate * exact(self.other_rate)
        momentum, decay = exact(self.momentum).to(kind), exact(self.weight_decay) * layout.decays
        moved, two = self.adam_step(parameters * (1 - own_rate * decay).to(kind), gradient, moments, own_rate, step)
        buffer = moments["buffer"] + (1 - momentum) * (gradient - moments["buffer"])
        direction = gradient + momentum * (buffer - gradient) if self.nesterov else buffer
        decayed = layout.split(parameters * (1 - rate * decay).to(kind))
        named = layout.split(moved)
        for name, turned in self._turn(layout, direction).items():
            named[name] = decayed[name] - rate.to(kind) * turned
        return layout.join(named), {**two, "buffer": buffer}

    def matrices_of(self, layout: Layout) -> Iterator[tuple[int, int, int, int, float]]:
        """Yield start in [P], rows, columns, step between rows and adjustment of each matrix."""
        start = 0
        for parameter in layout.parameters.values():
            if count := parameter.matrices:
                rows, step = parameter.shape
                columns = step // count
                for part in range(count):
                    yield start + part * columns, rows, columns, step, self._adjustment((rows, columns))
            start += math.prod(parameter.shape)

    def _turn(self, layout: Layout, direction: Tensor) -> dict[str, Tensor]:
        """Return by name how much each hidden matrix moves for rate 1, one shape at a time."""
        by_shape: dict[torch.Size, list[tuple[str, Sequence[Tensor]]]] = defaultdict(list)
        for name, tensor in layout.split(direction).items():
            if count := layout.parameters[name].matrices:
                parts = tensor.chunk(count, dim=-1)
                by_shape[parts[0].shape].append((name, parts))
        turned: dict[str, Tensor] = {}
        for shape, matrices in by_shape.items():
            stacked = torch.stack([part for _, parts in matrices for part in parts])
            sizes = [len(parts) for _, parts in matrices]
            images = self._adjustment(shape) * orthogonalise(stacked, self.iterations)
            for (name, _), image in zip(matrices, images.split(sizes), strict=True):
                turned[name] = torch.cat(image.unbind(), dim=-1)
        return turned

    def _adjustment(self, shape: Sequence[int]) -> float:
        inputs, outputs = shape
        return 0.2 * math.sqrt(max(shape)) if self.adjustment == "match_adamw" else math.sqrt(max(1, outputs / inputs))


def orthogonalise(matrices: Tensor, iterations: int) -> Tensor:
    """Return matrices [m, r, c] with the same singular vectors, singular values about 1 or 0."""
    a, b, c = COEFFICIENTS
    flat = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    flat = flat / flat.flatten(-2).norm(dim=-1)[..., None, None].clamp(min=LEAST_NORM)
    for _ in range(iterations):
        gram = flat @ flat.mT
        flat = a * flat + (b * gram + c * (gram @ gram)) @ flat
    return flat.mT if matrices.shape[-2] > matrices.shape[-1] else flat
