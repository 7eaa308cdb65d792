"""The plug-ins of a family as its contract test meets them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from search.samplers import Sampler
from search.stopping import Stopping
from spaces import plugins
from workers.data.corpora import Corpus
from workers.data.tasks import Task
from workers.data.tokenizers import Tokenizer
from workers.networks.activations import Activation
from workers.networks.diagnostics import Diagnostic
from workers.networks.models import Model
from workers.networks.positions import Position
from workers.networks.scorers import Scorer
from workers.training.averaging import Averaging
from workers.training.learning import Learning
from workers.training.optimizers import Optimizer
from workers.training.schedules import Schedule

FAMILIES: list[type] = [
    Task, Corpus, Tokenizer, Model, Scorer, Activation, Position, Diagnostic,
    Optimizer, Schedule, Averaging, Learning, Sampler, Stopping,
]  # fmt: skip


def example(family: type, name: str) -> dict[str, Any]:
    """Return the first of a plug-in's own examples."""
    return next(config for config in plugins.examples(family) if config["name"] == name)


def shipped(family: type) -> set[str]:
    """Return the members in the family's own folder; what else a test adds is in folders of its own."""
    folder = Path(str(sys.modules[family.__module__].__file__)).parent
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
