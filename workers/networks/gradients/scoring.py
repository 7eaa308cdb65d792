"""Scorers in the native steps: each head's generated functions and the functions' arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from workers.networks.activations import Activation
from workers.networks.gradients import activating
from workers.networks.gradients.row_function_cache import (
    CompiledRowFunctions,
    Number,
    addresses_of,
    example_knobs,
    gradients_or_zeros,
    starts,
)
from workers.networks.scorers import KernelScorer, LogitScorer, Scorer
from workers.networks.scorers.mixed import Mixed
from workers.numerics.native.building import Unit
from workers.numerics.parameters import Parameter
from workers.numerics.rows.nodes import NotOfRows
from workers.numerics.rows.running import run
from workers.numerics.rows.scorers import ScorerCode, write_scorer

_FUNCTIONS = ("weigh_along", "weigh_beside", "gradient_along", "gradient_beside", "finish")


@dataclass(frozen=True)
class RowFunctions:
    """A scorer's compiled functions."""

    code: ScorerCode
    library: ctypes.CDLL

    @property
    def described(self) -> list[int]:
        """The functions and counts that a native step reads, in the order of ScorerField."""
        code = self.code
        numbers = code.given, code.learned, code.kept, code.totals, int(code.reads_logits)
        return [*addresses_of(self.library, _FUNCTIONS), *numbers]


def parts_of(scorer: Scorer) -> list[Scorer]:
    """Return the scorers that a mixed one mixes, or the scorer itself."""
    if type(scorer) is Mixed:
        return parts_of(scorer.first) + parts_of(scorer.second)
    return [scorer]


def begin_compiling(scorer: Scorer, dtype: torch.dtype) -> None:
    """Compile a scorer and its features, or its mixed parts, in the background."""
    _GENERATED.begin(parts_of(scorer), dtype)
    activating.begin_compiling(features_of(scorer), dtype)


def packaged_units() -> list[Unit]:
    """Return the generated functions of all packaged scorers with their default fields."""
    scorers = [plugins.build(Scorer, {"name": name}) for name in plugins.names(Scorer)]
    return _GENERATED.packaged_units(part for scorer in scorers for part in parts_of(scorer))


def find_obstacle(scorer: Scorer, dtype: torch.dtype) -> str | None:
    """Return why a scorer, or one that it mixes, is not in the native steps, or None."""
    reasons = (_GENERATED.find_obstacle(part, dtype) for part in parts_of(scorer))
    return next(filter(None, reasons), None) or activating.find_obstacle(features_of(scorer), dtype)


def features_of(scorer: Scorer) -> Activation | None:
    """Return the function of queries and keys of a kernel scorer; None for one of logits."""
    return scorer.features if isinstance(scorer, KernelScorer) else None


def placing_of(scorer: Scorer, queries: int, keys: int, dtype: torch.dtype) -> Tensor | None:
    """Return factors [q, k] of the products of a scorer's features; None where there are none."""
    if not isinstance(scorer, KernelScorer):
        return None
    factors = scorer.placing(queries, keys, torch.device("cpu"))
    return None if factors is None else factors.to(dtype).contiguous()


def functions_of(scorer: Scorer, dtype: torch.dtype) -> RowFunctions:
    """Return the functions of a scorer that is not mixed and has no obstacle."""
    return RowFunctions(*_GENERATED.load(scorer, dtype))


def scorers_of_heads(scorer: Scorer, heads: int) -> list[Scorer]:
    """Return the scorer of each head, none of them mixed."""
    if type(scorer) is Mixed:
        first = scorer.split(heads)
        return scorers_of_heads(scorer.first, first) + scorers_of_heads(scorer.second, heads - first)
    return [scorer] * heads


def knobs_of_heads(scorer: Scorer, heads: int) -> list[Number]:
    """Return the knobs of all heads' functions, head by head, then those of their features."""
    knobs = [value for part in scorers_of_heads(scorer, heads) for _, value in plugins.knobs(part)]
    return knobs + activating.knobs_of(features_of(scorer))


def learned_by(scorer: Scorer, heads: int, prefix: str = "scorer") -> list[list[tuple[str, int]]]:
    """Return each head's learned parameters, without its features': name and index of the head."""
    if type(scorer) is Mixed:
        count = scorer.split(heads)
        first = learned_by(scorer.first, count, f"{prefix}.first")
        return first + learned_by(scorer.second, heads - count, f"{prefix}.second")
    names = _own_parameters(scorer, heads)
    return [[(f"{prefix}.{name}", head) for name in names] for head in range(heads)]


def _own_parameters(scorer: Scorer, heads: int) -> dict[str, Parameter]:
    """Return a scorer's learned parameters without its features'."""
    of_features = ("phi.",) if isinstance(scorer, KernelScorer) else ()
    every = scorer.parameters(heads).items()
    return {name: parameter for name, parameter in every if not name.startswith(of_features)}


def _write(scorer: Scorer, dtype: torch.dtype) -> ScorerCode:
    if not isinstance(scorer, LogitScorer | KernelScorer):
        raise NotOfRows("it reads queries and keys")
    if isinstance(scorer, Mixed):
        raise NotOfRows("it mixes the scorers of heads in a way of its own")
    parameters = _own_parameters(scorer, 1)
    if unfit := next((name for name, parameter in parameters.items() if parameter.shape != (1,)), None):
        raise NotOfRows(f"{unfit} is more than a number a head")
    learned = {name: float(value) for name, value in starts(parameters).items()}

    def weigh(logits: Tensor, visible: Tensor, numbers: Mapping[str, Tensor], knobs: Mapping[str, Number]) -> Tensor:
        return plugins.bind(scorer, knobs).weigh(logits, visible, numbers)

    simpler = scorer.SIMPLER if isinstance(scorer, LogitScorer) else {}
    return write_scorer(weigh, learned, example_knobs(scorer), dtype, simpler)


def _compare(
    scorer: Scorer, code: ScorerCode, library: ctypes.CDLL, dtype: torch.dtype
) -> Iterator[tuple[Tensor, Tensor]]:
    """Compare rows of one, some and all visible keys; sums over keys differ by a few roundings."""
    assert isinstance(scorer, LogitScorer | KernelScorer), "it has a code"
    visible, keys = (1, 3, 8, 19, 21), 21
    generator = torch.Generator().manual_seed(2)
    logits, gradient = (2 * torch.randn(5, keys, dtype=dtype, generator=generator) for _ in range(2))
    learned = {name: value.to(dtype).requires_grad_() for name, value in starts(_own_parameters(scorer, 1)).items()}
    knobs = example_knobs(scorer)
    given = [*(float(number.detach()) for number in learned.values()), *knobs.values()]
    computed = run(code, library, given, logits, gradient, visible)
    mask = torch.arange(keys) < torch.tensor(visible)[:, None]
    leaf = logits.clone().requires_grad_()
    scalars = {name: torch.tensor([value], dtype=torch.float64) for name, value in knobs.items()}

    def weigh(logits: Tensor, numbers: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        return plugins.bind(scorer, scalars).weigh(logits, mask, numbers)

    with torch.enable_grad():  # one lane, as no number can be taken out of a tensor under vmap
        lanes = vmap(weigh)(leaf[None, None], {name: value[None] for name, value in learned.items()}, scalars)
        weights = lanes[0, 0].to(dtype)
    exact = gradients_or_zeros(weights, [leaf, *learned.values()], gradient)
    yield computed.weights, weights.detach()
    yield computed.by_logits, exact[0]
    yield from ((computed.by_learned[n : n + 1], derivative) for n, derivative in enumerate(exact[1:]))


_GENERATED = CompiledRowFunctions("scorer", _write, _compare)


def described(scorers: Sequence[Scorer], dtype: torch.dtype) -> Tensor:
    """Return [h, fields] int64: `RowFunctions.described` of each head's scorer, none mixed."""
    return torch.tensor([functions_of(scorer, dtype).described for scorer in scorers])
