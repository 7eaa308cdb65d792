"""Samplers of the OptunaHub registry."""

from __future__ import annotations

import importlib
import inspect
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from optuna.samplers import BaseSampler

from search.samplers import Strategy
from search.samplers._optuna import Limits, OptunaSampler
from spaces.errors import PluginError
from spaces.messages import no_such, shorten
from spaces.plugins import Examples
from spaces.plugins.fields import text
from spaces.records import Outcome

if TYPE_CHECKING:
    from spaces.space import Space

CACHE = "github.com/optuna/optunahub-registry/main/package"
"""The part of the cache's folder in which `optunahub.load_module` keeps what it fetched."""


@final
@dataclass(frozen=True, kw_only=True)
class OptunaHub(OptunaSampler):
    """A sampler of a package of OptunaHub on this machine; nothing is fetched, its code runs as is.

    It sees what `tpe` sees, coordinates in [0, 1) and choices by number, and is made anew for each
    ask, without anything that it kept in itself. If it takes no `seed`, a resumed search differs.
    Source: Ozaki et al., "OptunaHub: A Platform for Black-Box Optimization", arXiv 2510.02798.
    """

    EXAMPLES: ClassVar[Examples] = ({"package": "samplers/example", "registry": "registry"},)

    package: str = text()
    """The package's name in the registry: `samplers/auto_sampler`."""
    registry: str = text("")
    """A folder of packages, a clone's `package` for one, best by its whole path; left out: what
    `python -c "import optunahub; optunahub.load_module('samplers/auto_sampler')"` has fetched."""
    sampler: str = text("")
    """The class; may be left out if the package has one."""
    arguments: str = text("{}")
    """JSON of the class's arguments: `{"n_startup_trials": 20}`."""

    @property
    def limits(self) -> Limits:
        """The limits of `tpe`."""
        return Limits(newest=200, best=200, running=100)

    def __post_init__(self) -> None:
        """Raise PluginError for arguments that are no JSON object."""
        self.read_arguments()

    def read_arguments(self) -> Mapping[str, Any]:
        """Return the keyword arguments of the sampler's class."""
        try:
            given: Any = json.loads(self.arguments)
        except (ValueError, RecursionError) as error:
            raise PluginError(f"arguments: this is not JSON: {error}") from error
        if not isinstance(given, dict):
            raise PluginError(f'arguments: {shorten(self.arguments)} must be JSON of the form {{"name": value}}')
        return given

    def begin(self, space: Space, outcomes: Sequence[Outcome]) -> Strategy:
        """Start on what is remembered of the outcomes; raises PluginError without a sampler."""
        self.make(0)
        return super().begin(space, outcomes)

    def make(self, seed: int) -> BaseSampler:
        """Make the package's sampler."""
        arguments = dict(self.read_arguments())
        try:
            if "seed" in inspect.signature(self._class).parameters:
                arguments.setdefault("seed", seed)
            return self._class(**arguments)
        except Exception as error:  # code of others
            raise self._error(f"{self._class.__name__}: {error}") from error

    @cached_property
    def _class(self) -> Any:
        module = self._import()
        members = inspect.getmembers(module, inspect.isclass)
        classes = [member for _, member in members if issubclass(member, BaseSampler)]
        defined = [sampler.__name__ for sampler in classes if sampler.__module__ == module.__name__]
        # A package may keep its classes in files beside its first one, and list them.
        names = getattr(module, "__all__", defined)
        known = [name for name in names if issubclass(getattr(module, name), BaseSampler)]
        if self.sampler and self.sampler not in known:
            raise self._error(no_such("sampler of the package", self.sampler, known))
        if not self.sampler and len(known) != 1:
            raise self._error(f"it has {len(known)} samplers ({', '.join(known)}); name one: sampler")
        return getattr(module, self.sampler or known[0])

    def _import(self) -> Any:
        package = self.package
        if self.registry:
            folder = Path(self.registry).expanduser().absolute()
        else:
            cache = os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")
            folder = Path(os.environ.get("OPTUNAHUB_CACHE_HOME", Path(cache, "optunahub")), CACHE)
        try:
            hub = importlib.import_module("optunahub")
        except Exception as error:  # without git on the machine, its own imports fail in other ways
            raise self._error(f"optunahub cannot be imported ({error}); `pip install 'graft-search[hub]'`") from error
        if not (folder / package / "__init__.py").is_file():
            raise self._error(
                f"{folder} has no such package; name the registry's folder (registry), or fetch it: "
                f"python -c \"import optunahub; optunahub.load_module('{package}')\""
            )
        try:
            return hub.load_local_module(package, registry_root=str(folder))
        except Exception as error:
            raise self._error(f"{type(error).__name__}: {error}") from error

    def _error(self, reason: str) -> PluginError:
        return PluginError(f"search.sampler: optunahub {self.package}: {shorten(reason, 400)}")
