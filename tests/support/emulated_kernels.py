"""Kernels of ours on a CPU: the same sources, with the threads of a GPU one after another.

Importing this registers them for tensors of a CPU, and so for those of a pretended GPU; the product has them for GPUs
alone.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tests.support.compiled import compiled
from workers.numerics import stream_kernels
from workers.numerics.fusion.fusions import Fusion, fusion_of
from workers.training import cuda_update

FLAGS = ("-std=c++17", "-O2", "-ffp-contract=off", "-DGRAFT_EMULATED")


@functools.cache
def library(source: Path) -> ctypes.CDLL:
    """Return the kernels of a file, compiled once on a machine."""
    return compiled(source.read_text(), FLAGS)


def run(source: Path, name: str, arguments: Sequence[int | Tensor]) -> None:
    """One launch; a tensor without numbers is a null pointer."""
    assert all(argument.is_contiguous() for argument in arguments if isinstance(argument, Tensor))

    def passed(argument: int | Tensor) -> ctypes.c_int | ctypes.c_void_p:
        if isinstance(argument, int):
            return ctypes.c_int(argument)
        return ctypes.c_void_p(argument.data_ptr() if argument.numel() else None)

    getattr(library(source), name)(*map(passed, arguments))


@torch.library.register_kernel("graft::cuda_update", "cpu")
def update(
    choices: Sequence[int], knobs: Tensor, constants: Sequence[Tensor], given: Sequence[Tensor], made: Sequence[Tensor]
) -> None:
    name = cuda_update.FUNCTIONS[given[0].dtype]
    run(cuda_update.SOURCE, name, [*choices, knobs, *constants, *given, *made])


def draw(name: str, made: Tensor, *arguments: int | Tensor) -> Tensor:
    run(stream_kernels.SOURCE, name, [*arguments, made])
    return made


@torch.library.register_kernel("graft::stream_states", "cpu")
def states(seeds: Tensor, steps: Tensor, tag: int) -> Tensor:
    return draw("stream_states", torch.empty_like(seeds), len(seeds), tag, seeds, steps)


@torch.library.register_kernel("graft::stream_words", "cpu")
def words(states: Tensor, count: int) -> Tensor:
    return draw("stream_words", states.new_empty(len(states), count), len(states), count, states)


@torch.library.register_kernel("graft::stream_mask", "cpu")
def mask(states: Tensor, rates: Tensor, count: int) -> Tensor:
    made = states.new_empty(len(states), count, dtype=torch.bool)
    return draw("stream_mask", made, len(states), count, states, rates)


@torch.library.register_kernel("graft::stream_permutations", "cpu")
def permutations(states: Tensor, rows: int, sizes: Tensor, lengths: Tensor, size: int, length: int) -> Tensor:
    made = states.new_empty(len(states), rows, length)
    return draw("stream_permutations", made, len(states), rows, size, length, states, sizes, lengths)


@torch.library.register_kernel("graft::fusion", "cpu")
def run_fusion(number: int, given: Sequence[Tensor]) -> list[Tensor]:
    """Run its operations, unless tests say otherwise (`emulated_fusion`): a compiler is slower than they are."""
    return RUN_FUSION[0](fusion_of(number), given)


RUN_FUSION: list[Callable[[Fusion, Sequence[Tensor]], list[Tensor]]] = [Fusion.operate]
