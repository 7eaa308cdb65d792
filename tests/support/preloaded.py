"""What a process imports, and trains once, before launches are forked from it: seconds that each of them would take.

Nothing here may start a thread, which a fork would not have: no launch, and of Polars nothing but its import.
"""

import importlib
import os
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # the forked processes set their own environment too late for torch

from graft.launching.planning.reading import read_space
from workers.engine.speed.timing import model_steps_per_second

for module in ("cli.main", "optuna", "psycopg", "search.steering.controller", "storage.copying", "workers.pool.inline"):
    importlib.import_module(module)
space = read_space(str(Path(__file__).with_name("tiny_space.yaml")), {})
model_steps_per_second(space.sample(0, lambda draw: 0.5), width=2, device="cpu", seconds=0)
