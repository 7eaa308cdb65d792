"""The kernel of the fused step, which trains a lane in a block of threads: what it is compiled with and called."""

from __future__ import annotations

from pathlib import Path

from workers.numerics.cuda.compiler import cubin_key

SOURCE = Path(__file__).parent / "minimal.cu"
NAME = "fused_minimal"
"""The kernel's name in the source."""


def options(*, weights_in_shared: bool, tf32: bool = False) -> tuple[str, ...]:
    """Return the compiler's options, by whether a lane's weights lie in shared memory; subnormal numbers are zero.

    `tf32`: the inner loop multiplies by tensor cores, in tiles whose numbers are rounded to TF32 (tiles.hpp). No trial
    asks for it: tests and `benchmarks.gpu` alone do.
    """
    return "--ftz=true", f"-DWEIGHTS_IN_SHARED={int(weights_in_shared)}", *(("-DTF32=1",) if tf32 else ())


def key(architecture: str) -> str:
    """Return a digest of what the kernel's bits depend on, for GPUs such as `sm_90`; raises CompilerError."""
    keys = (cubin_key(SOURCE, architecture, options(weights_in_shared=kind)) for kind in (True, False))
    return "-".join(keys)
