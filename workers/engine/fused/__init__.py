"""The fused step: on a GPU, a block of threads trains a lane for many steps at a launch.

Dropout, loss, gradient, clipping, AdamW and averages of the minimal transformer on the set
complement task are one kernel, workers/numerics/cuda/minimal.cu, which draws its data itself; tests
run it in an emulator. A GPU uses it once it has passed its check there and is faster than the
traced step for the structure (`trust`).

Products in tiles of TF32 (tiles.hpp) are a mode of the kernel that trains no trial: `make_step`
makes it on request, for tests and for `benchmarks.gpu`.

The names below are loaded when they are first used, which saves a CPU a fifth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workers.engine.fused.device import describe, describe_kept_rates, find_obstacle, make_step, rates_of

__all__ = ["describe", "describe_kept_rates", "find_obstacle", "make_step", "rates_of"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from workers.engine.fused import device

    return getattr(device, name)
