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
    """The scorers that a mixed one mixes."""
    return [*parts_of(scorer.first), *parts_of(scorer.second)] if isinstance(scorer, Mixed) else [scorer]


def find_obstacle(scorer: Scorer, dtype: torch.dtype) -> str | None:
    """Return why a scorer, or one that it mixes, is not in the native steps, or None. All are compiled side by side."""
    parts = parts_of(scorer)
    programs = [_program_of(part, dtype) for part in parts]
    native.begin(_unit_of(part, one) for part, one in zip(parts, programs, strict=True) if not isinstance(one, str))
    for part, one in zip(parts, programs, strict=True):
        reason = one if isinstance(one, str) else _find_fault(part, one, dtype)
        if reason:
            return f"the scorer {name_of(part)} is not in the native step: {reason}"
    return None


def functions_of(scorer: Scorer, dtype: torch.dtype) -> RowFunctions:
    """The functions of a scorer that mixes none and has no obstacle."""
    program = _program_of(scorer, dtype)
    assert not isinstance(program, str), "there is no obstacle"
    library = native.load(_unit_of(scorer, program))
    assert library, "there is no obstacle"
    return RowFunctions(program, library)


def scorers_of_heads(scorer: Scorer, heads: int) -> list[Scorer]:
    """The scorer of each head, none of them mixed."""
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
    return None if native.load(_unit_of(scorer, program)) else "its generated code could not be compiled"


def _program_of(scorer: Scorer, dtype: torch.dtype) -> Program | str:
    """The program of a scorer that mixes none, or what hinders it."""
    key = json.dumps(plugins.structure_of(scorer), sort_keys=True), dtype  # a program does not depend on knobs
    if key not in _PROGRAMS:
        _PROGRAMS[key] = _write(scorer, dtype)
    return _PROGRAMS[key]


_PROGRAMS: dict[tuple[str, torch.dtype], Program | str] = {}


def _write(scorer: Scorer, dtype: torch.dtype) -> Program | str:
    """The program, or why there is none."""
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
    uniform = torch.full((1, 1), 0.4, dtype=torch.float64)
    learned = {name: float(one.start.values(uniform)) for name, one in parameters.items()}
    knobs = {name: _example(value) for name, value in plugins.knobs(scorer)}

    def weigh(logits: Tensor, visible: Tensor, own: Mapping[str, Tensor], told: Mapping[str, Tensor]) -> Tensor:
        bound = plugins.bind(scorer, told)
        return bound.of_logits(logits, visible, own)

    try:
        return write_scorer(weigh, learned, knobs, dtype)
    except NotOfRows:
        raise
    except Exception as error:  # what a user's file raises on the example, it may raise nowhere else
        raise NotOfRows(f"it cannot be recorded: {type(error).__name__}: {error}") from error


def _example(value: Number) -> float:
    number = float(value.flatten()[0]) if isinstance(value, Tensor) else float(value)
    return number if math.isfinite(number) else 1.0


def described(functions: Sequence[RowFunctions]) -> Tensor:
    """[h, fields] int64 of all heads."""
    return torch.tensor([one.described for one in functions])
