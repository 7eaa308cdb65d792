"""The plug-in families, by the section of a space that names their members."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pkgutil
from collections.abc import Mapping, Sequence


def version() -> str:
    """Graft's installed version."""
    return importlib.metadata.version("graft-search")


def families() -> Mapping[str, type]:
    """Section of a space -> the abstract class of its plug-ins. Imports torch."""
    from search.samplers import Sampler
    from search.stopping import Stopping
    from workers.data.tasks import Task
    from workers.networks.models import Model
    from workers.training.averaging import Averaging
    from workers.training.learning import Learning
    from workers.training.optimizers import Optimizer

    return {
        "task": Task,
        "model": Model,
        "optimizer": Optimizer,
        "averaging": Averaging,
        "learning": Learning,
        "sampler": Sampler,
        "stopping": Stopping,
    }


def diagnostic_names() -> list[str]:
    """The names of the diagnostics, without loading torch as their family does."""
    folder = importlib.util.find_spec("workers.networks.diagnostics")
    assert folder, "the package is whole"
    modules = pkgutil.iter_modules(folder.submodule_search_locations)
    return [module.name for module in modules if not module.name.startswith("_")]


def listed_families() -> Sequence[type]:
    """The families that a person can look up: those that a space names, and diagnostics, which it asks for at once."""
    from workers.networks.diagnostics import Diagnostic

    return [*families().values(), Diagnostic]
