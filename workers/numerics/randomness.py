"""Counter-based random numbers: a function of (seed, purpose, step, index), equal on every device.

The generator is SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
2014): word i of a stream is the finalizer of state + (i + 1) * GOLDEN. A stream's state is itself
such a hash of the trial's seed, the purpose and the step: no state is carried, and a trial draws
the same numbers in any lane of any pack, by integers alone.

Legend: L lanes, n words.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import final

import torch
from torch import Tensor

from workers.numerics import stream_kernels
from workers.numerics.native import address, library

GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_LAST_WORD = (1 << 63) - 1
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


class Purpose(IntEnum):
    """The use of a stream; streams of different purposes start apart."""

    INITIAL = 1
    TRAINING_DATA = 2
    VALIDATION_DATA = 3
    DROPOUT = 4
    TEST_DATA = 5


def _wrap(number: int) -> int:
    """Return the signed 64-bit integer equal to `number` modulo 2^64."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _tag(number: int) -> int:
    """Return what is added to seeds for streams of this purpose and site, `purpose + 256 * site`."""
    return _wrap(number * GOLDEN)


def _xor_shift(z: Tensor, shift: int) -> Tensor:
    """Compute z ^ (z >>> shift) in place, with the logical shift that torch lacks."""
    return z.bitwise_xor_((z >> shift).bitwise_and_((1 << (64 - shift)) - 1))


def mix(z: Tensor) -> Tensor:
    """Return SplitMix64's finalizer of int64 numbers, modulo 2^64; the argument is not changed."""
    z = _xor_shift(z.clone(), 30).mul_(_MIX_1)
    z = _xor_shift(z, 27).mul_(_MIX_2)
    return _xor_shift(z, 31)


def hash_rows(numbers: Tensor) -> Tensor:
    """Return a hash [...], int64 in 0 .. 2^31 - 1, of each row of `numbers` [..., n] int64."""
    weights = mix(torch.arange(1, numbers.shape[-1] + 1, device=numbers.device) * GOLDEN) | 1
    return (mix((numbers * weights).sum(-1)) >> 33).bitwise_and_((1 << 31) - 1)


@dataclass(frozen=True, kw_only=True)
class Streams:
    """One stream per lane: `state` [L] int64."""

    state: Tensor

    @classmethod
    def of(cls, seeds: Tensor, purpose: Purpose, steps: Tensor | int, site: int = 0) -> Streams:
        """Return the streams of lanes with `seeds` [L] at their `steps` [L], or all at one."""
        number = int(purpose) + 256 * site
        tag = _tag(number)
        native = library("streams") if seeds.device.type == "cpu" else None
        if native and isinstance(steps, Tensor) and steps.shape == seeds.shape:
            state, given = torch.empty_like(seeds), (seeds.contiguous(), steps.contiguous())
            native.stream_states(len(seeds), ctypes.c_int64(tag), *map(address, (*given, state)))
            return cls(state=state)
        if isinstance(steps, Tensor) and steps.shape == seeds.shape and stream_kernels.draws_on(seeds.device):
            given = seeds.contiguous(), steps.contiguous()
            return cls(state=stream_kernels.stream_states(*given, number))
        at_step = _wrap(steps * GOLDEN) if isinstance(steps, int) else steps * GOLDEN
        return cls(state=mix(mix(seeds + tag) + at_step))

    @property
    def lanes(self) -> int:
        return self.state.shape[0]

    def words(self, count: int) -> Tensor:
        """Return [L, n] int64, all 64 bits random."""
        if stream_kernels.draws_on(self.state.device):
            return stream_kernels.stream_words(self.state.contiguous(), count)
        index = torch.arange(1, count + 1, device=self.state.device) * GOLDEN
        return mix(self.state[:, None] + index)

    def bytes(self, *shape: int) -> Tensor:
        """Return [L, *shape] uint8, uniform on 0 .. 255."""
        count = math.prod(shape)
        packed = self.words(-(-count // 8)).view(torch.uint8)
        return packed[:, :count].view(self.lanes, *shape)

    def uniform(self, *shape: int) -> Tensor:
        """Return [L, *shape] float64, uniform on (0, 1): the middles of 2^53 equal cells."""
        words = self.words(math.prod(shape)).view(self.lanes, *shape)
        cells = (words >> 11) & ((1 << 53) - 1)
        return (cells.double() + 0.5) * 2.0**-53

    def normal(self, *shape: int) -> Tensor:
        """Return [L, *shape] float64, standard normal, by inversion."""
        native = library("normals") if self.state.device.type == "cpu" else None
        if native:
            drawn = self.state.new_empty(self.lanes, *shape, dtype=torch.float64)
            count = ctypes.c_int64(math.prod(shape))
            native.normals(self.lanes, count, *map(address, (self.state.contiguous(), drawn)))
            return drawn
        return torch.special.ndtri(self.uniform(*shape))

    def permutations(self, rows: int, size: int, length: int) -> Tensor:
        """Return `length` entries of permutations of 0 .. size - 1: int64 [L, rows, length].

        They order signed 64-bit words, two of which are equal once in 2^65 / size^2 rows.
        """
        native = library("permutations") if self.state.device.type == "cpu" else None
        if native or (stream_kernels.draws_on(self.state.device) and size <= stream_kernels.LARGEST):
            sizes, lengths = (self.state.new_full((self.lanes,), count) for count in (size, length))
            return self._permute(native, rows, sizes, lengths, size, length)
        keys = self.words(rows * size).view(self.lanes, rows, size)
        return keys.argsort(dim=-1)[..., :length]

    def padded_permutations(self, rows: int, sizes: Tensor, lengths: Tensor, size: int, length: int) -> Tensor:
        """Return lanes' `permutations` of `sizes` and `lengths` [L], then -1: [L, rows, length]."""
        native = library("permutations") if self.state.device.type == "cpu" else None
        if native or (stream_kernels.draws_on(self.state.device) and size <= stream_kernels.LARGEST):
            return self._permute(native, rows, sizes.long(), lengths.long(), size, length)
        sizes, lengths = sizes.long()[:, None, None], lengths.long()[:, None, None]
        column = torch.arange(size, device=self.state.device)
        index = torch.arange(rows, device=self.state.device)[:, None] * sizes + column
        keys = mix(self.state[:, None, None] + (index + 1) * GOLDEN)
        keys = keys.masked_fill(column >= sizes, _LAST_WORD)
        order = keys.argsort(dim=-1)[..., :length]
        order = torch.nn.functional.pad(order, (0, length - order.shape[-1]))
        return order.masked_fill(torch.arange(length, device=order.device) >= lengths, -1)

    def _permute(
        self, native: ctypes.CDLL | None, rows: int, sizes: Tensor, lengths: Tensor, size: int, length: int
    ) -> Tensor:
        states, sizes, lengths = self.state.contiguous(), sizes.contiguous(), lengths.contiguous()
        if not native:
            return stream_kernels.stream_permutations(states, rows, sizes, lengths, size, length)
        drawn = self.state.new_empty(self.lanes, rows, length)
        tensors = map(address, (states, sizes, lengths, drawn))
        if native.permutations(*map(ctypes.c_int, (self.lanes, rows, length)), *tensors):
            raise MemoryError("the native permutations")
        return drawn


def keep_mask(streams: Streams, rates: Tensor, *shape: int) -> Tensor:
    """Return [L, *shape] bool: False where dropout drops, with probability exactly `rates` [L]."""
    if stream_kernels.draws_on(streams.state.device):
        given = streams.state.contiguous(), rates.double().contiguous()
        return stream_kernels.stream_mask(*given, math.prod(shape)).view(-1, *shape)
    state, threshold = dropout_streams_and_thresholds(streams, rates)
    return Streams(state=state).bytes(*shape) >= threshold.view(-1, *[1] * len(shape))


def padded_keep_mask(streams: Streams, rates: Tensor, shape: Sequence[int], unpadded: Sequence[int | Tensor]) -> Tensor:
    """Return lanes' `keep_mask` of `unpadded` extents, each a number or [L], padded: [L, *shape]."""
    state, threshold = dropout_streams_and_thresholds(streams, rates)
    index = state.new_zeros(state.shape)
    for extent, size in zip(shape, unpadded, strict=True):
        sizes = size.long().view(-1, *[1] * (index.dim() - 1)) if isinstance(size, Tensor) else size
        index = (index * sizes)[..., None] + torch.arange(extent, device=state.device)
    drawn = Streams(state=state).bytes(math.prod(shape)).gather(1, index.flatten(1)).view(-1, *shape)
    return drawn >= threshold.view(-1, *[1] * len(shape))


def dropout_streams_and_thresholds(streams: Streams, rates: Tensor) -> tuple[Tensor, Tensor]:
    """Return states [L] of the streams of dropout's bytes, and thresholds [L] uint8.

    An element is dropped if its byte is below floor(256 p + u), u one uniform number per lane and
    call. As E[floor(256 p + u)] = 256 p, no rate is rounded to a multiple of 1/256.
    """
    native = library("streams") if streams.state.device.type == "cpu" else None
    if native:
        state = torch.empty_like(streams.state)
        threshold = torch.empty_like(state, dtype=torch.uint8)
        given = streams.state.contiguous(), rates.double().contiguous(), state, threshold
        native.dropout_streams_and_thresholds(streams.lanes, *map(address, given))
        return state, threshold
    dither = streams.uniform(1)[:, 0]
    return streams.state + GOLDEN, (256 * rates + dither).floor().to(torch.uint8)


@dataclass(frozen=True, kw_only=True)
class SiteStreams:
    """The streams of dropout, by the number of a site in the model, of lanes at their steps."""

    seeds: Tensor  # [L]
    steps: Tensor  # [L]

    def __getitem__(self, site: int) -> Streams:
        return Streams.of(self.seeds, Purpose.DROPOUT, self.steps, site)


@final
class NativeSites:
    """The sites at which a native step drops."""

    def __init__(self, numbers: Sequence[int], places: Sequence[int], count: int) -> None:
        """Take the sites' numbers in the model, and their places among the `count` of the step."""
        self._tags = torch.tensor([_tag(Purpose.DROPOUT + 256 * number) for number in numbers], dtype=torch.int64)
        self._places, self._count = torch.tensor(places, dtype=torch.int64), count

    def draw(self, streams: SiteStreams, rates: Tensor) -> tuple[Tensor, Tensor]:
        """Return `dropout_streams_and_thresholds` [L, count] for rates [k, L] of the k sites; 0 elsewhere."""
        native = library("streams")
        assert native, "there are native steps"
        used, lanes = rates.shape
        states = streams.seeds.new_zeros(lanes, self._count)
        thresholds = torch.zeros(lanes, self._count, dtype=torch.uint8)
        given = self._tags, self._places, rates.contiguous(), streams.seeds.contiguous(), streams.steps.contiguous()
        native.site_streams(lanes, used, self._count, *map(address, (*given, states, thresholds)))
        return states, thresholds


def truncated_normal(uniform: Tensor, deviation: float, bound: float = 2.0) -> Tensor:
    """Return normals of this deviation before truncation at +-`bound` deviations, by inversion."""
    low = 0.5 * (1 + math.erf(-bound / math.sqrt(2)))
    inside = low + uniform * (1 - 2 * low)
    return torch.special.ndtri(inside) * deviation
