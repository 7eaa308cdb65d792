"""What the layered transformers' fused step tells its kernel (numerics/cuda/layered_plan.hpp): where arrays lie.

Legend: N sequences, s positions, d width, h heads, f hidden channels, v tokens, P parameters; R rows of a block.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from workers.engine.fused.memory import THREADS, Limits, Workspace, aligned, odd
from workers.engine.fused.step import TrainingPlan

MOST_LAYERS, LAYER_PLACES, END_PLACES = 8, 17, 7
ENTRIES = 4096
"""Of a product of a block's rows by the width: sixteen for each thread."""
FEWEST_ROWS, MOST_ROWS = 32, 128
"""Of a block, where sequences are not longer."""


class Sizes(NamedTuple):
    """The sizes that arrays are laid out by."""

    batch: int
    length: int
    width: int
    heads: int
    depth: int
    hidden: int
    gates: int
    outputs: int
    parameters: int
    dropped: int
    """Bits: embedding, attention, mlp."""
    bent: int
    """1 if logits are bent, else 0."""
    knots: int
    """Of a spline; 0: the activation is none."""
    splines: int
    """That are learned."""

    @property
    def sequences(self) -> int:
        """Worked on at once."""
        rows = max(FEWEST_ROWS, min(MOST_ROWS, ENTRIES // self.width))
        return min(self.batch, max(1, rows // self.length))

    @property
    def rows(self) -> int:
        """The rows of a block of sequences."""
        return self.sequences * self.length


def block_arrays(sizes: Sizes) -> dict[str, int]:
    """Floats of each array of a block of sequences, in the order of layered_plan.hpp."""
    rows = sizes.rows
    of_width = rows * odd(sizes.width)
    lists = {"LOSS_ROWS": rows, "FIRST_LOSS_ROWS": sizes.sequences + 1, "TOKENS": rows, "LEADERS": rows}
    lists |= {"BENT_G": 2 * rows * sizes.heads * sizes.bent}
    sums = {"ROW_LOSSES": rows, "LOSSES": 2 * sizes.batch, "PARTIAL_SUMS": 2 * THREADS, "FINAL_FACTORS": rows}
    streams = ("STREAM", "MIDDLE", "STREAM_G", "NEXT_G", "BRANCH_G", "MIXED_G", "QUERIES_G", "KEYS_G", "VALUES_G")
    masks = {"KEPT_EMBEDDING": _mask(sizes) if sizes.dropped & 1 else 0}
    wide = {
        "WEIGHTS_G": rows * sizes.heads * odd(sizes.length),
        "ACTIVE_G": rows * odd(sizes.hidden),
        "OUTPUTS": rows * odd(sizes.outputs),
        "GRADIENT": sizes.parameters,
        "CELLS": sizes.splines * 2 * (sizes.knots + 1) * THREADS,
        "CELL_SUMS": 2 * 2 * (sizes.knots + 1) if sizes.splines else 0,
    }
    return lists | sums | dict.fromkeys((*streams, "FINAL", "FINAL_UNIT"), of_width) | masks | wide


def layer_arrays(sizes: Sizes, *, last: bool) -> dict[str, int]:
    """Floats of each array of a layer, in the order of layered_plan.hpp."""
    rows, width = sizes.rows, sizes.width
    of_width, with_one = rows * odd(width), rows * odd(width + 1)
    masks = {
        "KEPT_ATTENTION": _mask(sizes) if sizes.dropped & 2 else 0,
        "KEPT_MLP": _mask(sizes) if sizes.dropped & 4 else 0,
    }
    return {
        "FACTORS": rows,
        "MLP_FACTORS": rows,
        **masks,
        **dict.fromkeys(("QUERIES", "KEYS", "VALUES", "UNIT", "MLP_UNIT"), of_width),
        "GIVEN": with_one,
        "ASKED": with_one if last else 0,
        "MIXED": with_one,
        "MLP_GIVEN": with_one,
        "WEIGHTS": rows * sizes.heads * odd(sizes.length),
        "LOGITS": rows * sizes.heads * odd(sizes.length) * sizes.bent,
        "SLOPES": rows * odd(sizes.gates * sizes.hidden),
        "POINTS": rows * odd(sizes.hidden) if sizes.knots else 0,
        "ACTIVE": rows * odd(sizes.hidden + 1),
    }


def _mask(sizes: Sizes) -> int:
    """Floats that a byte for each number of the stream takes."""
    return -(-sizes.rows * sizes.width // 4)


def lay_out(sizes: Sizes, limits: Limits) -> Workspace | None:
    """Place the arrays, in their order, in shared memory as far as two blocks fit into a multiprocessor.

    None: the smallest do not fit. Which ones do changes no bit.
    """
    layers = [layer_arrays(sizes, last=layer == sizes.depth - 1) for layer in range(sizes.depth)]
    floats = [size for arrays in (block_arrays(sizes), *layers) for size in arrays.values()]
    room, shared = min(limits.multiprocessor // 2 - limits.reserved, limits.block) // 4, 0
    inside: dict[int, int] = {}
    for number, size in enumerate(floats):
        if shared + aligned(size) <= room:
            inside[number] = shared
            shared += aligned(size)
    if any(number not in inside for number in range(_SMALL)):
        return None
    end, places = shared, list[int]()
    for number, size in enumerate(floats):
        places.append(inside.get(number, end))
        end += 0 if number in inside else aligned(size)
    return Workspace(
        sequences=sizes.sequences,
        weights_in_shared=False,
        places=tuple(places),
        shared_bytes=4 * shared,
        scratch_floats=end - shared,
    )


_SMALLEST = Sizes(1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
ARRAYS = tuple(block_arrays(_SMALLEST))
LAYER_ARRAYS = tuple(layer_arrays(_SMALLEST, last=True))
"""The names of all arrays, in the order of layered_plan.hpp."""
_SMALL = ARRAYS.index("STREAM")
"""Arrays that are lists and sums: in shared memory, or there is no fused step."""


class LayeredPlan(TrainingPlan):
    """`Plan` of layered_plan.hpp."""

    _fields_ = (
        *(
            (name, ctypes.c_int64)
            for name in (
                *("length", "width", "heads", "depth", "hidden", "gates", "outputs"),
                *(
                    "pre_norm",
                    "centred",
                    "activation",
                    "tied",
                    "dropped",
                    "knots",
                    "splines",
                    "bent",
                    "sequences",
                    "shared_floats",
                ),
            )
        ),
        ("layers", ctypes.c_int64 * LAYER_PLACES * MOST_LAYERS),
        ("learned", ctypes.c_int64 * 2 * MOST_LAYERS),
        ("ends", ctypes.c_int64 * END_PLACES),
        ("places", ctypes.c_int64 * len(ARRAYS)),
        ("layer_places", ctypes.c_int64 * len(LAYER_ARRAYS) * MOST_LAYERS),
        *(
            (name, ctypes.c_void_p)
            for name in (
                *("decays", "knobs", "rates", "inputs", "targets", "weights", "placed", "cosines", "sines", "slopes"),
            )
        ),
    )
