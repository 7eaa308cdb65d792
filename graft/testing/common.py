"""The promises of every plug-in, and tools for the checks of several families."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from graft.plugins.families import family_of
from spaces import plugins
from workers.numerics.parameters import Parameter

Configuration = Mapping[str, Any]
"""`{"name": "mine", field: value}`, as a space has it."""


class DoesNotApply(Exception):  # noqa: N818 - no error
    """A check says nothing of this configuration; the text is why."""


def build(family: str, configuration: Configuration) -> Any:
    """Return the plug-in of a configuration."""
    return plugins.build(family_of(family), configuration)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return standard normal numbers, always the same."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def start(parameters: Mapping[str, Parameter], seed: int = 3) -> dict[str, Tensor]:
    """Return starting values of parameters, a little apart from one another."""
    noise = torch.Generator().manual_seed(seed)
    starts: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        values = parameter.start.values(torch.full((1, math.prod(parameter.shape)), 0.5, dtype=torch.float64))
        apart = 0.1 * torch.rand(values.shape, generator=noise, dtype=torch.float64)
        starts[name] = (values + apart).view(parameter.shape)
    return starts


def equal(actual: Tensor, expected: Tensor, what: str, tolerance: float = 1e-12) -> None:
    """Raise AssertionError, which begins with `what`, unless two tensors agree."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}")


def check_configuration(family: str, configuration: Configuration) -> None:
    """Assert that a plug-in can be written as a configuration, and built again from that."""
    built = build(family, configuration)
    assert plugins.name_of(built) == configuration["name"]
    config = plugins.config_of(built)
    again = plugins.build(family_of(family), config)
    assert again == built, f"{config} builds another plug-in: do all fields say their rule (knob(...))?"
    plugins.canonical_json(plugins.structure_of(built))


def check_declaration(family: str, configuration: Configuration) -> None:
    """Assert that the class is a frozen dataclass with keyword-only fields and a docstring."""
    member: Any = plugins.load(family_of(family), configuration["name"])
    parameters = member.__dict__.get("__dataclass_params__")
    is_frozen = parameters is not None and parameters.frozen
    assert is_frozen, f"write @dataclass(frozen=True, kw_only=True) above class {member.__name__}"
    without = [field.name for field in dataclasses.fields(member) if not field.kw_only]
    assert not without, f"fields {', '.join(without)} are not keyword-only: write kw_only=True"
    unruled = [field.name for field in dataclasses.fields(member) if "rule" not in field.metadata]
    assert not unruled, f"field {unruled[0]} does not say what it accepts: use knob(...), size(...), option(...)"
    about = member.__doc__ or ""
    said = bool(about) and not about.startswith(f"{member.__name__}(")  # as dataclass writes one
    assert said, f"class {member.__name__} needs a docstring"
