"""The layout of a model's named parameters in one flat vector.

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
    """Names and shapes of parameters and their order in the flat vector [P]."""

    parameters: Mapping[str, Parameter]
    decays: Tensor
    """[P] 1 where weight decay applies, else 0."""
    learns: Tensor | None
    """[P] 0 where a parameter keeps its initial value, else 1; None if all learn."""

    @classmethod
    def of(
        cls, parameters: Mapping[str, Parameter], dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> Layout:
        sizes = _sizes(parameters)

        def of_each(flags: Iterable[bool]) -> Tensor:
            # Made on the device: a recorded step would send what is made here at each replay.
            flat = torch.empty(sum(sizes), dtype=dtype, device=device)
            for piece, on in zip(flat.split(sizes), flags, strict=True):
                piece.fill_(float(on))
            return flat

        learns = [not parameter.frozen for parameter in parameters.values()]
        decays = of_each(parameter.decay and not parameter.frozen for parameter in parameters.values())
        return cls(parameters, decays, None if all(learns) else of_each(learns))

    @property
    def total(self) -> int:
        return sum(_sizes(self.parameters))

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of the flat vector, by name."""
        pieces = zip(self.parameters.items(), flat.split(_sizes(self.parameters), dim=-1), strict=True)
        return {name: piece.view(parameter.shape) for (name, parameter), piece in pieces}

    def join(self, named: Parameters) -> Tensor:
        """Return the flat vector of named tensors."""
        return torch.cat([named[name].reshape(-1) for name in self.parameters])

    def pad(self, layout: Layout, flat: Tensor) -> Tensor:
        """Return [P] of this layout from [P] of `layout`, whose tensors are nowhere larger.

        Each tensor goes into a corner of zeros: rows and columns keep their numbers, and a product
        of padded tensors has the product of the true ones in its corner.
        """
        named = {name: flat.new_zeros(parameter.shape) for name, parameter in self.parameters.items()}
        for name, tensor in layout.split(flat).items():
            named[name][_corner(tensor.shape)] = tensor
        return self.join(named)

    def crop(self, layout: Layout, flat: Tensor) -> dict[str, Tensor]:
        """Return by name the part of [P] that `layout`, with smaller or equal tensors, has."""
        named = self.split(flat)
        return {name: named[name][_corner(parameter.shape)] for name, parameter in layout.parameters.items()}

    def initial(self, seeds: Tensor, step: int = 0) -> Tensor:
        """Return initial parameters [L, P], float64, of trials with `seeds` [L].

        Each entry has its own counter, others for each `step` before which trials start.
        """
        uniform = Streams.of(seeds, Purpose.INITIAL, step).uniform(self.total)
        pieces = zip(self.parameters.values(), uniform.split(_sizes(self.parameters), dim=-1), strict=True)
        return torch.cat([parameter.start.values(piece) for parameter, piece in pieces], dim=-1)


def _sizes(parameters: Mapping[str, Parameter]) -> list[int]:
    return [math.prod(parameter.shape) for parameter in parameters.values()]


def _corner(shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(extent) for extent in shape)
