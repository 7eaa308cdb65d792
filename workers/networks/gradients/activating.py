"""Activations in the native steps: their generated functions and the functions' arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from workers.networks.activations import Activation
from workers.networks.activations.spline import Spline
from workers.networks.gradients.row_function_cache import (
    CompiledRowFunctions,
    Number,
    addresses_of,
    example_knobs,
    gradients_or_zeros,
    starts,
)
from workers.numerics.native.building import Unit
from workers.numerics.rows.activations import ActivationCode, write_activation
from workers.numerics.rows.running import run_activation


def _write(activation: Activation, dtype: torch.dtype) -> ActivationCode:
    learned = {name: value.to(dtype) for name, value in starts(activation.parameters()).items()}

    def apply(values: Tensor, numbers: Mapping[str, Tensor], knobs: Mapping[str, Tensor]) -> Tensor:
        return plugins.bind(activation, knobs).apply(values, numbers)

    return write_activation(apply, activation.inputs, learned, example_knobs(activation), dtype)


def _compare(
    activation: Activation, code: ActivationCode, library: ctypes.CDLL, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield values and gradients by inputs and learned numbers: native and torch's."""
    generator = torch.Generator().manual_seed(2)
    hidden = 2 * torch.randn(5, activation.inputs * 21, dtype=dtype, generator=generator)
    hidden.requires_grad_()
    gradient = torch.randn(5, 21, dtype=dtype, generator=generator)
    learned = {name: value.to(dtype).requires_grad_() for name, value in starts(activation.parameters()).items()}
    knobs = example_knobs(activation)
    given = [*(float(number.detach()) for number in learned.values()), *knobs.values()]
    computed = run_activation(code, library, given, hidden.detach(), gradient)
    scalars = {name: torch.tensor([value], dtype=torch.float64) for name, value in knobs.items()}

    def apply(values: Tensor, numbers: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        return plugins.bind(activation, scalars).apply(values, numbers)

    with torch.enable_grad():  # one lane, as no number can be taken out of a tensor under vmap
        lanes = vmap(apply)(hidden[None], {name: value[None] for name, value in learned.items()}, scalars)
        values = lanes[0].to(dtype)
        by = gradients_or_zeros(values, [hidden, *learned.values()], gradient)
    by_learned = torch.cat([hidden.new_zeros(0), *(derivative.view(1) for derivative in by[1:])])
    yield from zip(computed, (values.detach(), by[0], by_learned), strict=True)


FUNCTIONS = CompiledRowFunctions("activation", _write, _compare)


def packaged_units() -> list[Unit]:
    """Return the generated functions of all packaged activations with their default fields."""
    names = plugins.names(Activation)
    return FUNCTIONS.packaged_units(plugins.build(Activation, {"name": name}) for name in names)


def begin_compiling(activation: Activation | None, dtype: torch.dtype) -> None:
    """Compile an activation, if there is one, in the background."""
    FUNCTIONS.begin(_generated(activation), dtype)


def find_obstacle(activation: Activation | None, dtype: torch.dtype) -> str | None:
    """Return why an activation is not in the native steps, or None."""
    reasons = (FUNCTIONS.find_obstacle(part, dtype) for part in _generated(activation))
    return next(filter(None, reasons), None)


def described(activation: Activation | None, dtype: torch.dtype) -> Tensor:
    """Return the int64 fields of an activation without an obstacle (ActivationField)."""
    if activation is None:
        return torch.zeros(7, dtype=torch.int64)
    if type(activation) is Spline:
        return torch.tensor([0, 0, 0, 0, int(not activation.frozen), 0, activation.knots])
    code, library = FUNCTIONS.load(activation, dtype)
    addresses = addresses_of(library, ("activate_rows", "learn_rows", "finish"))
    return torch.tensor([*addresses, code.given, code.learned, code.totals, 0])


def knobs_of(activation: Activation | None) -> list[Number]:
    """Return an activation's knobs, as its functions take them."""
    if type(activation) is Spline:
        return [activation.low, (activation.knots - 1) / (activation.high - activation.low)]
    return [value for _, value in plugins.knobs(activation)] if activation else []


def learned_by(activation: Activation | None, prefix: str) -> list[tuple[str, int]]:
    """Return an activation's learned parameters, with the first number's index in each."""
    return [(f"{prefix}.{name}", 0) for name in activation.parameters()] if activation else []


def _generated(activation: Activation | None) -> list[Activation]:
    """Return the activation if it has generated functions: a spline looks numbers up in a table."""
    return [activation] if activation and type(activation) is not Spline else []
