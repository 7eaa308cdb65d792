"""The fused step: on a GPU, a block of threads trains a lane for many steps at a launch.

Data, dropout, loss, gradient, clipping, AdamW and averages are one kernel (workers/numerics/cuda/minimal.cu), for the
minimal transformer on the set complement task. It has not run on a GPU yet, only in an emulator of blocks
(tests/test_fused.py): a GPU uses it once it has passed its check there (`trust`); else, and for all other trials, the
traced step runs.
"""

from __future__ import annotations

from workers.engine.fused.device import describe, make_step, obstacle

__all__ = ["describe", "make_step", "obstacle"]
