"""Random numbers of `workers.numerics.randomness` on a GPU: one kernel each, not 10 to 40.

NVRTC compiles the kernels, which are used once they have reproduced numbers computed here in
Python's integers. If they do not, or without NVRTC, one line says so, and torch's operations draw.

Legend: L lanes, n words.
"""

from __future__ import annotations

import functools
import logging
import math
from pathlib import Path

import torch
from torch import Tensor

from spaces.seeds import GAMMA, mix64
from workers.numerics.cuda.compiler import load_cubin
from workers.numerics.cuda.driver import Kernel, architecture_of

SOURCE = Path(__file__).with_name("streams.cu")
LARGEST = 64
"""The largest permutation of a kernel, in which each entry looks at all others."""
_THREADS = 256
_LOG = logging.getLogger(__name__)
_WORD = (1 << 64) - 1


@torch.library.custom_op("graft::stream_states", mutates_args=(), device_types="cuda")
def stream_states(seeds: Tensor, steps: Tensor, tag: int) -> Tensor:
    """Return the states [L] of `seeds` [L] at their `steps` [L]; `tag`: purpose + 256 site."""
    states = torch.empty_like(seeds)
    _launch("stream_states", len(seeds), [len(seeds), tag, seeds, steps, states])
    return states


@torch.library.custom_op("graft::stream_words", mutates_args=(), device_types="cuda")
def stream_words(states: Tensor, count: int) -> Tensor:
    """Return the first n words of each stream, [L, n] int64."""
    words = states.new_empty(len(states), count)
    _launch("stream_words", words.numel(), [len(states), count, states, words])
    return words


@torch.library.custom_op("graft::stream_mask", mutates_args=(), device_types="cuda")
def stream_mask(states: Tensor, rates: Tensor, count: int) -> Tensor:
    """Return what dropout of `rates` [L], float64, keeps: [L, n] bool."""
    kept = states.new_empty(len(states), count, dtype=torch.bool)
    _launch("stream_mask", len(states) * -(-count // 8), [len(states), count, states, rates, kept])
    return kept


@torch.library.custom_op("graft::stream_permutations", mutates_args=(), device_types="cuda")
def stream_permutations(states: Tensor, rows: int, sizes: Tensor, lengths: Tensor, size: int, length: int) -> Tensor:
    """Return permutations [L, rows, length] of lanes' own sizes and lengths [L], then -1."""
    drawn = states.new_empty(len(states), rows, length)
    arguments = [len(states), rows, size, length, states, sizes, lengths, drawn]
    _launch("stream_permutations", len(states) * rows * max(size, length), arguments)
    return drawn


stream_states.register_fake(lambda seeds, steps, tag: torch.empty_like(seeds))
stream_words.register_fake(lambda states, count: states.new_empty(states.shape[0], count))
stream_mask.register_fake(lambda states, _, count: states.new_empty(states.shape[0], count, dtype=torch.bool))
stream_permutations.register_fake(lambda states, rows, *others: states.new_empty(states.shape[0], rows, others[-1]))


def _launch(name: str, threads: int, arguments: list[int | Tensor]) -> None:
    device = next(argument for argument in arguments if isinstance(argument, Tensor)).device
    _kernels_of(device)[name](-(-threads // _THREADS), _THREADS, arguments)


@functools.cache
def _kernels_of(device: torch.device) -> dict[str, Kernel]:
    """Compile the kernels by name; raises RuntimeError if they cannot be compiled or loaded."""
    cubin = load_cubin(SOURCE, architecture_of(device))
    names = ("stream_states", "stream_words", "stream_mask", "stream_permutations")
    return {name: Kernel(cubin, name, device) for name in names}


def draws_on(device: torch.device) -> bool:
    """Return whether the kernels draw on this device."""
    # Tensors of the device `meta` have no numbers: they stand for a GPU's, to count a step's cost.
    return device.type == "meta" or (device.type == "cuda" and _can_draw(device))


@functools.cache
def _can_draw(device: torch.device) -> bool:
    try:
        fault = find_fault(device)
    except RuntimeError as error:
        fault = " ".join(str(error).split())
    if fault:
        _LOG.warning("random numbers are drawn by torch's operations, not by one kernel each: %.200s", fault)
    return not fault


def find_fault(device: torch.device) -> str:
    """Name a kernel whose numbers on this device differ from Python's; empty if there is none."""
    seeds, steps, tag, count = [3, -1], [0, 12345678901], 4 + 256 * 3, 21
    states = [mix64(mix64(seed + tag * GAMMA) + step * GAMMA) for seed, step in zip(seeds, steps, strict=True)]
    words = [[_word(state, index) for index in range(count)] for state in states]
    rates, sizes, lengths = [0.25, 0.9], [7, 5], [4, 5]
    kept = [_keep(state, rate, count) for state, rate in zip(states, rates, strict=True)]
    lanes = zip(states, sizes, lengths, strict=True)
    drawn = [_permute(state, 3, size, length, 5) for state, size, length in lanes]

    def on(numbers: list[int] | list[float]) -> Tensor:
        dtype = torch.float64 if isinstance(numbers[0], float) else None
        return torch.tensor(numbers, device=device, dtype=dtype)

    started = stream_states(on(seeds), on(steps), tag)
    found_words = [[word & _WORD for word in row] for row in stream_words(started, count).tolist()]
    permuted = stream_permutations(started, 3, on(sizes), on(lengths), 7, 5)
    checks = {
        "stream_states": ([state & _WORD for state in started.tolist()], states),
        "stream_words": (found_words, words),
        "stream_mask": (stream_mask(started, on(rates), count).tolist(), kept),
        "stream_permutations": (permuted.tolist(), drawn),
    }
    faults = (f"{name} gives other numbers here" for name, (numbers, other) in checks.items() if numbers != other)
    return next(faults, "")


def _word(state: int, index: int) -> int:
    return mix64(state + (index + 1) * GAMMA)


def _keep(state: int, rate: float, count: int) -> list[bool]:
    threshold = math.floor(256 * rate + ((_word(state, 0) >> 11) + 0.5) * 2.0**-53)
    drawn = (_word(state + GAMMA, index // 8) >> 8 * (index % 8) & 255 for index in range(count))
    return [byte >= threshold for byte in drawn]


def _permute(state: int, rows: int, size: int, length: int, padded: int) -> list[list[int]]:
    def key(number: int) -> int:
        word = _word(state, number)
        return word - (1 << 64) if word >> 63 else word

    orders = [sorted(range(size), key=lambda entry: key(row * size + entry)) for row in range(rows)]
    return [[*order[:length], *[-1] * (padded - length)] for order in orders]
