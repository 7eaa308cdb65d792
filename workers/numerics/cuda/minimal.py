"""The kernel of the fused step, which trains a lane in a block of threads: its name and options."""

from __future__ import annotations

from pathlib import Path

from workers.numerics.cuda.compiler import cubin_key

SOURCE = Path(__file__).parent / "minimal.cu"
NAME = "fused_minimal"


def options(*, weights_in_shared: bool, tf32: bool = False) -> tuple[str, ...]:
    """Return the compiler's options, which make subnormal numbers zero.

    `weights_in_shared`: a lane's weights lie in shared memory. `tf32`: tensor cores multiply tiles
    in TF32 (tiles.hpp); only tests and `benchmarks.gpu` ask for it.
    """
    precision = ("-DTF32=1",) if tf32 else ()
    return "--ftz=true", f"-DWEIGHTS_IN_SHARED={int(weights_in_shared)}", *precision


def key(architecture: str) -> str:
    """Return a digest of the kernel's bits on GPUs such as `sm_90`; raises CompilerError."""
    kinds = (options(weights_in_shared=kind) for kind in (True, False))
    return "-".join(cubin_key(SOURCE, architecture, kind) for kind in kinds)
