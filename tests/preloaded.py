"""What a process imports, and trains once, before launches are forked from it: seconds that each of them would take.

Nothing here may start a thread, which a fork would not have: no launch, and of Polars nothing but its import.
"""

import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # the forked processes set their own environment too late for torch

import optuna  # noqa: F401 # pyright: ignore[reportUnusedImport]
import psycopg  # noqa: F401 # pyright: ignore[reportUnusedImport]

import cli.launch
import cli.main  # pyright: ignore[reportUnusedImport]
import workers.pool.inline  # noqa: F401 # pyright: ignore[reportUnusedImport]
from workers.engine.timing import model_steps_per_second

_SPACE = str(Path(__file__).with_name("tiny_space.yaml"))

model_steps_per_second(cli.launch.load_space(_SPACE, {}).sample(0, lambda draw: 0.5), width=2, device="cpu", seconds=0)
