"""What minimal.cu, the kernel of the fused step, is compiled with and called."""

from __future__ import annotations

from pathlib import Path

from workers.numerics.cuda.compiler import cubin_key

SOURCE = Path(__file__).with_suffix(".cu")
NAME = "fused_minimal"


def options(*, weights_in_shared: bool) -> tuple[str, ...]:
    """Of the compiler; `weights_in_shared`: as `Workspace` has it. Subnormal numbers are zero, as on a CPU."""
    return "--ftz=true", f"-DWEIGHTS_IN_SHARED={int(weights_in_shared)}"


def kernel_key(architecture: str) -> str:
    """A digest of what the kernel's bits depend on, of both kinds, for GPUs such as `sm_90`; raises CompilerError."""
    return "-".join(cubin_key(SOURCE, architecture, options(weights_in_shared=kind)) for kind in (True, False))
