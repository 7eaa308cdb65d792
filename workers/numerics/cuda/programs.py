"""The kernels of the fused step: what they are compiled with and called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workers.numerics.cuda.compiler import cubin_key


@dataclass(frozen=True, kw_only=True)
class Program:
    """A kernel that trains a lane in a block of threads, for several steps."""

    source: Path
    kinds: Sequence[bool]
    """Whether a lane's weights lie in shared memory: those that it is compiled for."""

    @property
    def name(self) -> str:
        """The kernel's name in the source."""
        return f"fused_{self.source.stem}"

    def options(self, *, weights_in_shared: bool) -> tuple[str, ...]:
        """Return the compiler's options; subnormal numbers are zero, as on a CPU."""
        return "--ftz=true", f"-DWEIGHTS_IN_SHARED={int(weights_in_shared)}"

    def key(self, architecture: str) -> str:
        """Return a digest of what the bits of all kinds depend on, for GPUs such as `sm_90`; raises CompilerError."""
        keys = (cubin_key(self.source, architecture, self.options(weights_in_shared=kind)) for kind in self.kinds)
        return "-".join(keys)


_FOLDER = Path(__file__).parent
MINIMAL = Program(source=_FOLDER / "minimal.cu", kinds=(True, False))
LAYERED = Program(source=_FOLDER / "layered.cu", kinds=(False,))
