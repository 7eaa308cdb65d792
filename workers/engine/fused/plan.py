"""The plan that the fused step hands to its kernel, and the layout of a block's arrays.

The kernel reads the plan as numerics/cuda/plan.hpp declares it. Arrays lie in the multiprocessor's
shared memory or, if it has no room, in global memory. Legend: L lanes, N sequences, s positions, v
tokens, d width, k key width, u value width, P parameters.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

THREADS, TILE_THREADS = 256, 128
"""The threads of a block, and of a block that multiplies in tiles."""
LARGEST_SIZE = 1625
"""The largest size that the kernel divides by exactly: its cube is below 2^32 (`Divisor` in threads.hpp)."""
TILE_LIMITS = {"length": 8, "vocabulary": 24, "width": 32}
"""The largest sizes that are multiplied in tiles, as tiles.hpp has them."""
_DEAD_IN_TILES = ("KEYS", "PLACES", "USED", "TOKEN_ROWS", "NORMED_G", "TOKEN_QUERY_G", "TOKEN_KEY_G")
"""Arrays that nothing reads while the sums of warps exist: they share their memory."""
_ALIGNMENT = 4
"""Alignment of arrays of words, in floats."""
_TILES = ("TILE_USED", "TILE_ROWS", "TILE_OUT", "TILE_BACK", "WARP_SUMS")
MATRICES = 7
MOST_ROWS = 128
"""Most rows of sequences that are worked on at once: more fill no more threads."""


class Limits(NamedTuple):
    """Shared memory in bytes: of a multiprocessor, of a block at most, and taken by each block."""

    multiprocessor: int
    block: int
    reserved: int = 1024

    def blocks_at_once(self, shared_bytes: int) -> int:
        """Return how many blocks of this size, one or two, a multiprocessor holds."""
        return 2 if shared_bytes <= self.multiprocessor // 2 - self.reserved else 1


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The layout of a block's arrays in shared and in global memory."""

    sequences: int
    """Sequences that a block works on at once."""
    weights_in_shared: bool
    """True if a lane's weights are in shared memory too, not in the GPU's global memory."""
    places: tuple[int, ...]
    """The offset of each array in floats, in the order of the kernel's plan."""
    shared_bytes: int
    scratch_floats: int
    """Floats of a block in the GPU's global memory."""
    threads: int = THREADS
    """The threads of a block."""


class Sizes(NamedTuple):
    """The sizes that a pack's arrays are laid out by."""

    batch: int
    length: int
    tokens: int
    width: int
    key_width: int
    value_width: int


def weight_arrays(sizes: Sizes) -> dict[str, int]:
    """Return the floats of each array of a lane's weights and tokens, in the order of plan.hpp."""
    _, _, v, d, k, u = sizes
    parameters = {
        "EMBEDDING": v * odd(d),
        "GAIN": odd(d),
        "QUERY": d * odd(k),
        "KEY": d * odd(k),
        "VALUE": d * odd(u),
        "OUTPUT": u * odd(d),
        "UNEMBEDDING": d * odd(v),
    }
    combined = {"QUERY_BY_GAIN": d * odd(k), "KEY_BY_GAIN": d * odd(k), "VALUE_BY_GAIN": d * odd(u)}
    mixed = {"MIXED": d * odd(d), "MIXED_G": d * odd(d)}
    return {**parameters, **{f"{name}_G": size for name, size in parameters.items()}, **combined, **mixed}


def token_arrays(sizes: Sizes) -> dict[str, int]:
    """Return the floats of each array of tokens, whose occurrences are all alike."""
    _, _, v, d, k, _ = sizes
    of_width, of_key_width = v * odd(d), v * odd(k)
    tables = {"USED": of_width, "NORMED": of_width, "TOKEN_QUERY": of_key_width, "TOKEN_KEY": of_key_width}
    tables |= {"TOKEN_ROWS": of_width, "LOGITS": v * odd(v), "NORMED_G": of_width, "TOKEN_QUERY_G": of_key_width}
    return tables | {"TOKEN_KEY_G": of_key_width, "TOKEN_ROWS_G": of_width, "LOGITS_G": v * odd(v), "FACTORS": v}


def row_arrays(sizes: Sizes, sequences: int, *, occurrences: bool) -> dict[str, int]:
    """Return the floats of each array of so many sequences; `occurrences` of a token may differ."""
    _, s, v, d, k, _ = sizes
    rows = sequences * s
    masks = -(-rows * d // 4)  # a byte each
    drawn = {"KEYS": 2 * sequences * v, "TOKENS": sequences * (s + 1), "PLACES": sequences * v}
    masked = {"KEPT_EMBEDDING": masks if occurrences else 0, "KEPT_ROWS": masks}
    of_width, of_key_width = rows * odd(d), rows * odd(k) if occurrences else 0
    normed = of_width if occurrences else 0
    streams = {"STREAM": of_width, "NORMED_ROWS": normed, "ROWS": of_width, "STREAM_G": of_width}
    keys = dict.fromkeys(("QUERIES", "KEYS_OF_ROWS", "QUERIES_G", "KEYS_OF_ROWS_G"), of_key_width)
    weights = {"WEIGHTS": rows * odd(s), "WEIGHTS_G": rows * odd(s), "OUTPUTS": rows * odd(v)}
    return {**drawn, **masked, **streams, **keys, **weights, "ROW_FACTORS": rows, "ROW_LOSSES": rows}


def block_arrays(sizes: Sizes) -> dict[str, int]:
    """Return the floats of the arrays that a block has once."""
    return {"LOSSES": sizes.batch, "PARTIAL_SUMS": 2 * THREADS, **dict.fromkeys(_TILES, 0)}


def tile_arrays(sizes: Sizes) -> dict[str, int]:
    """Return the floats of a block's arrays for tiles; warps' sums have the sizes of tiles.hpp."""
    most, tokens = TILE_LIMITS, sizes.tokens + 1  # the last one is none
    table, unembedding = tokens * (most["width"] + 4), most["width"] * most["vocabulary"]
    of_warp = max(3 * sizes.tokens * most["width"], 16 * (most["width"] + 4) + 8 * 52) + aligned(tokens**2)
    floats = (table, table, unembedding, unembedding, TILE_THREADS // 32 * of_warp)
    return {"LOSSES": TILE_THREADS, "PARTIAL_SUMS": 2 * TILE_THREADS, **dict(zip(_TILES, floats, strict=True))}


def lay_out(sizes: Sizes, limits: Limits, *, occurrences: bool) -> Workspace | None:
    """Place the arrays for two blocks on a multiprocessor, else for one; None if too large.

    The choice changes no bit: sums have one order, however many sequences are worked on at once.
    """
    halves = limits.multiprocessor // 2 - limits.reserved
    for weights_in_shared, room in ((True, halves), (True, limits.block), (False, limits.block)):
        most = min(sizes.batch, max(1, MOST_ROWS // sizes.length))
        for sequences in range(most, 0, -1):
            workspace = _arrange(sizes, sequences, occurrences=occurrences, weights_in_shared=weights_in_shared)
            if workspace.shared_bytes <= min(room, limits.block):
                # Threads with too few rows wait most of the time: fewer blocks are then better.
                if sequences * sizes.length * 4 >= most * sizes.length or room == limits.block:
                    return workspace
                break
    return None


def lay_out_tiles(sizes: Sizes, limits: Limits) -> Workspace | None:
    """Place the arrays of a block that multiplies whole batches in tiles; None if too large."""
    arrays = weight_arrays(sizes) | token_arrays(sizes) | dict.fromkeys(row_arrays(sizes, 0, occurrences=False), 0)
    drawn = row_arrays(sizes, sizes.batch, occurrences=False)
    arrays |= {name: drawn[name] for name in ("KEYS", "TOKENS", "PLACES")} | tile_arrays(sizes)
    sums = arrays.pop("WARP_SUMS")
    places: dict[str, int] = {}
    end = dead_end = 0
    for name, size in arrays.items():
        if name not in _DEAD_IN_TILES:
            places[name] = end
            end += aligned(size)
    places["WARP_SUMS"] = end
    for name in _DEAD_IN_TILES:
        places[name] = end + dead_end
        dead_end += aligned(arrays[name])
    shared_bytes = 4 * (end + max(sums, dead_end))
    if shared_bytes > limits.block:
        return None
    return Workspace(
        sequences=sizes.batch,
        weights_in_shared=True,
        places=tuple(places[name] for name in ARRAYS),
        shared_bytes=shared_bytes,
        scratch_floats=0,
        threads=TILE_THREADS,
    )


def aligned(floats: int) -> int:
    """Return the floats that an array takes with its padding."""
    return -(-floats // _ALIGNMENT) * _ALIGNMENT


def odd(count: int) -> int:
    """Return an odd length of rows, so that threads with a row each read different banks."""
    return count | 1


def _arrange(sizes: Sizes, sequences: int, *, occurrences: bool, weights_in_shared: bool) -> Workspace:
    tokens = token_arrays(sizes)
    weights = weight_arrays(sizes) | (dict.fromkeys(tokens, 0) if occurrences else tokens)
    others = row_arrays(sizes, sequences, occurrences=occurrences) | block_arrays(sizes)
    places: list[int] = []
    end = 0
    for size in weights.values():
        places.append(end)
        end += aligned(size)
    scratch = 0 if weights_in_shared else end
    end -= scratch
    for size in others.values():
        places.append(end)
        end += aligned(size)
    return Workspace(
        sequences=sequences,
        weights_in_shared=weights_in_shared,
        places=tuple(places),
        shared_bytes=4 * end,
        scratch_floats=scratch,
    )


_SMALLEST = Sizes(1, 1, 1, 1, 1, 1)
ARRAYS = (
    *(*weight_arrays(_SMALLEST), *token_arrays(_SMALLEST)),
    *(*row_arrays(_SMALLEST, 1, occurrences=True), *block_arrays(_SMALLEST)),
)
"""The names of all arrays, in the order of plan.hpp."""


class Plan(ctypes.Structure):
    """`Plan` of plan.hpp."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in ("lanes", "steps", "batch", "averages", "decoupled", "parameters", "scratch_floats", "blocks")
        ),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("seeds", "scalars", "parameters_of", "first", "second", "shadow", "step", "loss_sum"),
                *("diverged_at", "scratch"),
            )
        ),
        *((name, ctypes.c_int64) for name in ("dropped", "sequences")),
        ("starts", ctypes.c_int64 * MATRICES),
        ("columns", ctypes.c_int64 * MATRICES),
        ("places", ctypes.c_int64 * len(ARRAYS)),
        *((name, ctypes.c_void_p) for name in ("sizes", "knobs", "rates")),
    )
