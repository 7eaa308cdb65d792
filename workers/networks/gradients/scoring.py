"""Scorers in the native steps: the generated functions of each head, and the numbers that these take."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spaces import plugins
from spaces.plugins import name_of
from workers.networks.scorers import LogitScorer, Scorer
from workers.networks.scorers.mixed import Mixed
from workers.numerics import native
from workers.numerics.native.building import Unit
from workers.numerics.rows.nodes import NotOfRows
from workers.numerics.rows.programs import Program, write_scorer
from workers.numerics.rows.running import run

Number = float | Tensor

_FUNCTIONS = ("weigh_along", "weigh_beside", "gradient_along", "gradient_beside", "finish")


@dataclass(frozen=True)
class RowFunctions:
    """A scorer's compiled functions."""

    program: Program
    library: ctypes.CDLL

    @property
    def described(self) -> list[int]:
        """What a native step is told of them, in the order of ScorerField (workers/numerics/native/scores.hpp)."""
        addresses = [ctypes.cast(getattr(self.library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
        own = self.program
        return [*addresses, own.given, own.learned, own.kept, own.totals, int(own.reads_logits)]


def parts_of(scorer: Scorer) -> list[Scorer]:
    """Return the scorers that a mixed one mixes."""
    return [*parts_of(scorer.first), *parts_of(scorer.second)] if isinstance(scorer, Mixed) else [scorer]


def begin_compiling(scorer: Scorer, dtype: torch.dtype) -> None:
    """Compile a scorer, or those that it mixes, in the background, side by side."""
    programs = [(part, _program_of(part, dtype)) for part in parts_of(scorer)]
    native.begin(_unit_of(part, program) for part, program in programs if not isinstance(program, str))


def packaged_units() -> list[Unit]:
    """Return the generated functions of the packaged scorers with their default fields, in each precision."""
    scorers = [plugins.build(Scorer, {"name": name}) for name in plugins.names(Scorer)]
    programs = [
        (part, _program_of(part, dtype))
        for scorer in scorers
        for part in parts_of(scorer)
        for dtype in (torch.float32, torch.float64)
    ]
    return list({_unit_of(part, program): None for part, program in programs if not isinstance(program, str)})


def find_obstacle(scorer: Scorer, dtype: torch.dtype) -> str | None:
    """Return why a scorer, or one that it mixes, is not in the native steps, or None."""
    for part in parts_of(scorer):
        program = _program_of(part, dtype)
        if reason := program if isinstance(program, str) else _find_fault(part, program, dtype):
            return f"the scorer {name_of(part)} is not in the native step: {reason}"
    return None


def functions_of(scorer: Scorer, dtype: torch.dtype) -> RowFunctions:
    """Return the functions of a scorer that mixes none and has no obstacle."""
    program = _program_of(scorer, dtype)
    assert not isinstance(program, str), "there is no obstacle"
    library = native.load(_unit_of(scorer, program))
    assert library, "there is no obstacle"
    return RowFunctions(program, library)


def scorers_of_heads(scorer: Scorer, heads: int) -> list[Scorer]:
    """Return the scorer of each head, none of them mixed."""
    if isinstance(scorer, Mixed):
        first = scorer.split(heads)
        return scorers_of_heads(scorer.first, first) + scorers_of_heads(scorer.second, heads - first)
    return [scorer] * heads


def knobs_of_heads(scorer: Scorer, heads: int) -> list[Number]:
    """What the functions of all heads are told, one head's after another's."""
    return [value for own in scorers_of_heads(scorer, heads) for _, value in plugins.knobs(own)]


def learned_by(scorer: Scorer, heads: int, prefix: str = "scorer") -> list[list[tuple[str, int]]]:
    """Of each head what its scorer learns: the parameter's name, and the head's number in it."""
    if isinstance(scorer, Mixed):
        first = scorer.split(heads)
        return learned_by(scorer.first, first, f"{prefix}.first") + learned_by(
            scorer.second, heads - first, f"{prefix}.second"
        )
    names = scorer.parameters(heads)
    return [[(f"{prefix}.{name}", head) for name in names] for head in range(heads)]


def _unit_of(scorer: Scorer, program: Program) -> Unit:
    return Unit(f"scorer_{name_of(scorer)}", program.text)


def _find_fault(scorer: Scorer, program: Program, dtype: torch.dtype) -> str | None:
    """Return why a program is not used: there is no library of it, or that computes other numbers than torch."""
    library = native.load(_unit_of(scorer, program))
    if not library:
        return "its generated code could not be compiled"
    if program.text not in _CHECKED:
        _CHECKED[program.text] = _is_alike(scorer, program, library, dtype)
    return None if _CHECKED[program.text] else "its generated code computes other numbers than torch does"


_CHECKED: dict[str, bool] = {}
"""Text of a program -> whether its functions were compared with torch's, and are alike."""


def _is_alike(scorer: Scorer, program: Program, library: ctypes.CDLL, dtype: torch.dtype) -> bool:
    """Compare rows of one, of some and of all visible keys; sums over keys alone differ, by a few roundings."""
    assert isinstance(scorer, LogitScorer), "it has a program"
    visible, keys = (1, 3, 8, 19, 21), 21
    generator = torch.Generator().manual_seed(2)
    logits, gradient = (2 * torch.randn(5, keys, dtype=dtype, generator=generator) for _ in range(2))
    learned, knobs = _examples(scorer)
    found = run(program, library, [*learned.values(), *knobs.values()], logits, gradient, visible)
    mask = torch.arange(keys) < torch.tensor(visible)[:, None]
    leaf = logits.clone().requires_grad_()
    own = {name: torch.full((1,), value, dtype=dtype, requires_grad=True) for name, value in learned.items()}
    told = {name: torch.tensor(value, dtype=torch.float64) for name, value in knobs.items()}
    with torch.enable_grad():
        weights = plugins.bind(scorer, told).of_logits(leaf[None], mask, own)[0]
    wanted = [leaf, *own.values()]
    by: Sequence[Tensor | None] = [None] * len(wanted)
    if weights.requires_grad:
        by = torch.autograd.grad(weights, wanted, gradient, allow_unused=True)
    exact = [torch.zeros_like(one) if g is None else g for one, g in zip(wanted, by, strict=True)]
    pairs = [(found.weights, weights.detach()), (found.by_logits, exact[0])]
    pairs += [(found.by_learned[n : n + 1], one) for n, one in enumerate(exact[1:])]
    bound = 1e-3 if dtype == torch.float32 else 1e-8
    return all(torch.allclose(one, other, rtol=bound, atol=bound, equal_nan=True) for one, other in pairs)


def _program_of(scorer: Scorer, dtype: torch.dtype) -> Program | str:
    """Return the program of a scorer that mixes none, or what hinders it."""
    key = json.dumps(plugins.structure_of(scorer), sort_keys=True), dtype  # a program does not depend on knobs
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _write(scorer, dtype)
    return _PROGRAMS[key]


_PROGRAMS: dict[tuple[str, torch.dtype], Program | str] = {}


def _write(scorer: Scorer, dtype: torch.dtype) -> Program | str:
    """Return the program, or why there is none."""
    if not isinstance(scorer, LogitScorer):
        return "it reads queries and keys"
    try:
        return _record(scorer, dtype)
    except NotOfRows as error:
        return str(error)


def _record(scorer: LogitScorer, dtype: torch.dtype) -> Program:
    parameters = scorer.parameters(1)
    if unfit := next((name for name, one in parameters.items() if one.shape != (1,)), None):
        raise NotOfRows(f"{unfit} is more than a number a head")
    learned, knobs = _examples(scorer)

    def weigh(logits: Tensor, visible: Tensor, own: Mapping[str, Tensor], told: Mapping[str, Tensor]) -> Tensor:
        bound = plugins.bind(scorer, told)
        return bound.of_logits(logits, visible, own)

    try:
        return write_scorer(weigh, learned, knobs, dtype)
    except NotOfRows:
        raise
    except Exception as error:  # what a user's file raises on the example, it may raise nowhere else
        raise NotOfRows(f"it cannot be recorded: {type(error).__name__}: {error}") from error


def _examples(scorer: Scorer) -> tuple[dict[str, float], dict[str, float]]:
    """Numbers that a head may have learned, and knobs."""
    uniform = torch.full((1, 1), 0.4, dtype=torch.float64)
    learned = {name: float(one.start.values(uniform)) for name, one in scorer.parameters(1).items()}
    return learned, {name: _example(value) for name, value in plugins.knobs(scorer)}


def _example(value: Number) -> float:
    number = float(value.flatten()[0]) if isinstance(value, Tensor) else float(value)
    return number if math.isfinite(number) else 1.0


def described(functions: Sequence[RowFunctions]) -> Tensor:
    """[h, fields] int64 of all heads."""
    return torch.tensor([one.described for one in functions])
