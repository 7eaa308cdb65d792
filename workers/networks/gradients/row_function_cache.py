"""Generated functions of parts of models for the native steps, compared with torch before use."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from spaces import plugins
from spaces.plugins import name_of
from workers.numerics import native
from workers.numerics.native.building import Unit
from workers.numerics.parameters import Parameter
from workers.numerics.rows.nodes import NotOfRows
from workers.numerics.tensors import gradients

Number = float | Tensor


class RowCode(Protocol):
    """The code of generated functions."""

    @property
    def text(self) -> str: ...


Part = TypeVar("Part")
Code = TypeVar("Code", bound=RowCode)


@dataclass(frozen=True)
class CompiledRowFunctions(Generic[Part, Code]):
    """The generated functions of a family's members."""

    family: str
    """`scorer`, in the names of libraries and in messages."""
    write: Callable[[Part, torch.dtype], Code]
    """Records a member and returns its code; raises NotOfRows."""
    compare: Callable[[Part, Code, ctypes.CDLL, torch.dtype], Iterable[tuple[Tensor, Tensor]]]
    """Yields pairs of results: of the compiled functions, and of torch."""
    _codes: dict[tuple[str, torch.dtype], Code | str] = field(default_factory=dict)
    _checked: dict[str, bool] = field(default_factory=dict)
    """Text of a code -> True if its functions agree with torch's."""

    def begin(self, parts: Iterable[Part], dtype: torch.dtype) -> None:
        """Compile members in the background, side by side."""
        native.begin(self._units(parts, [dtype]))

    def packaged_units(self, parts: Iterable[Part]) -> list[Unit]:
        """Return the functions of members in each precision, equal ones once."""
        return list(dict.fromkeys(self._units(parts, [torch.float32, torch.float64])))

    def find_obstacle(self, part: Part, dtype: torch.dtype) -> str | None:
        """Return why a member is not in the native steps, or None."""
        code = self.code_of(part, dtype)
        if reason := code if isinstance(code, str) else self._find_fault(part, code, dtype):
            return f"the {self.family} {name_of(part)} is not in the native step: {reason}"
        return None

    def load(self, part: Part, dtype: torch.dtype) -> tuple[Code, ctypes.CDLL]:
        """Return the code of a member that has no obstacle, and its library."""
        code = self.code_of(part, dtype)
        assert not isinstance(code, str), "there is no obstacle"
        library = native.load(self._unit_of(part, code))
        assert library, "there is no obstacle"
        return code, library

    def code_of(self, part: Part, dtype: torch.dtype) -> Code | str:
        """Return the code of a member, or the reason why it has none."""
        key = json.dumps(plugins.structure_of(part), sort_keys=True), dtype  # without knobs
        if key not in self._codes:
            try:
                self._codes[key] = self.write(part, dtype)
            except NotOfRows as error:
                self._codes[key] = str(error)
            except Exception as error:  # a user's file, on the example
                self._codes[key] = f"it cannot be recorded: {type(error).__name__}: {error}"
        return self._codes[key]

    def _units(self, parts: Iterable[Part], dtypes: Sequence[torch.dtype]) -> list[Unit]:
        codes = [(part, self.code_of(part, dtype)) for part in parts for dtype in dtypes]
        return [self._unit_of(part, code) for part, code in codes if not isinstance(code, str)]

    def _unit_of(self, part: Part, code: Code) -> Unit:
        return Unit(f"{self.family}_{name_of(part)}", code.text)

    def _find_fault(self, part: Part, code: Code, dtype: torch.dtype) -> str | None:
        """Return why a code is not used: it does not compile, or its numbers are not torch's."""
        library = native.load(self._unit_of(part, code))
        if not library:
            return "its generated code could not be compiled"
        if code.text not in self._checked:
            bound = 1e-3 if dtype == torch.float32 else 1e-8
            try:
                self._checked[code.text] = all(
                    torch.allclose(computed, other, rtol=bound, atol=bound, equal_nan=True)
                    for computed, other in self.compare(part, code, library, dtype)
                )
            except Exception as error:  # of a user's file, as in code_of
                return f"it cannot be compared with torch: {type(error).__name__}: {error}"
        return None if self._checked[code.text] else "its generated code computes other numbers than torch does"


def addresses_of(library: ctypes.CDLL, names: Sequence[str]) -> list[int]:
    """Return where functions of a library are; 0 for one that it lacks."""
    functions = [getattr(library, name) if hasattr(library, name) else None for name in names]
    return [ctypes.cast(function, ctypes.c_void_p).value or 0 if function else 0 for function in functions]


def starts(parameters: Mapping[str, Parameter]) -> dict[str, Tensor]:
    """Return float64 numbers that parameters may start with."""
    numbers: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        uniform = torch.full((1, math.prod(parameter.shape)), 0.4, dtype=torch.float64)
        numbers[name] = parameter.start.values(uniform)[0].view(parameter.shape)
    return numbers


def example_knobs(part: object) -> dict[str, float]:
    """Return finite values of a plug-in's knobs."""
    knobs: dict[str, float] = {}
    for name, value in plugins.knobs(part):
        number = float(torch.as_tensor(value, dtype=torch.float64).flatten()[0])
        knobs[name] = number if math.isfinite(number) else 1.0
    return knobs


def gradients_or_zeros(values: Tensor, wanted: Sequence[Tensor], gradient: Tensor) -> list[Tensor]:
    """Return gradients of values by the wanted tensors, zeros for those that no value needs."""
    derivatives = gradients(values, wanted, gradient) if values.requires_grad else [None] * len(wanted)
    pairs = zip(wanted, derivatives, strict=True)
    return [torch.zeros_like(tensor) if by is None else by for tensor, by in pairs]
