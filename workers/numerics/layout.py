"""How a model's named parameters lie in one flat vector.

Legend: L lanes, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.numerics.parameters import Parameter, Parameters
from workers.numerics.randomness import Purpose, Streams


@dataclass(frozen=True, eq=False)
class Layout:
    """Names and shapes of parameters, and where each lies in the flat vector [P]."""

    parameters: Mapping[str, Parameter]
    decays: Tensor
    """[P] 1 where weight decay applies, else 0."""
    learns: Tensor | None
    """[P] 0 where a parameter keeps the value that it starts with, else 1; None if all learn."""

    @classmethod
    def of(
        cls, parameters: Mapping[str, Parameter], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Layout:
        """Lay out these parameters in this order."""
        sizes = [math.prod(parameter.shape) for parameter in parameters.values()]

        def of_each(flags: Iterable[bool]) -> Tensor:
            # Made on the device at once: a step that is recorded would send what is made here at each replay.
            found = torch.empty(sum(sizes), dtype=dtype, device=device)
            for piece, on in zip(found.split(sizes), flags, strict=True):
                piece.fill_(float(on))
            return found

        decays = of_each(parameter.decay for parameter in parameters.values())
        learns = [not parameter.frozen for parameter in parameters.values()]
        return cls(parameters, decays, None if all(learns) else of_each(learns))

    @property
    def total(self) -> int:
        return sum(math.prod(p.shape) for p in self.parameters.values())

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of the flat vector, by name."""
        sizes = [math.prod(p.shape) for p in self.parameters.values()]
        pieces = flat.split(sizes, dim=-1)
        return {name: piece.view(p.shape) for (name, p), piece in zip(self.parameters.items(), pieces, strict=True)}

    def join(self, named: Parameters) -> Tensor:
        """Return the flat vector of named tensors."""
        return torch.cat([named[name].reshape(-1) for name in self.parameters])

    def pad(self, own: Layout, flat: Tensor) -> Tensor:
        """[P] of this layout from those of `own`, whose tensors are nowhere larger; what is added is zero.

        Each tensor goes into the corner of its larger one, so that row i and column j stay row i and column j, and a
        product of two padded tensors has the product of the true ones in its corner.
        """
        shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        named = {name: flat.new_zeros(shape) for name, shape in shapes.items()}
        for name, tensor in own.split(flat).items():
            named[name][_corner(tensor.shape)] = tensor
        return self.join(named)

    def crop(self, own: Layout, flat: Tensor) -> dict[str, Tensor]:
        """Return by name the part of [P] that `own`, whose tensors are nowhere larger, has."""
        named = self.split(flat)
        return {name: named[name][_corner(parameter.shape)] for name, parameter in own.parameters.items()}

    def initial(self, seeds: Tensor, step: int = 0) -> Tensor:
        """[L, P] float64 initial parameters of trials with `seeds` [L]: each entry from its own counter.

        `step`: before which one they start; others for every one.
        """
        uniform = Streams.of(seeds, Purpose.INITIAL, step).uniform(self.total)
        sizes = [math.prod(p.shape) for p in self.parameters.values()]
        pieces = zip(self.parameters.values(), uniform.split(sizes, dim=-1), strict=True)
        return torch.cat([parameter.start.values(piece) for parameter, piece in pieces], dim=-1)


def _corner(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(extent) for extent in shape)
