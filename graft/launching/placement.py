"""A study's placement (`--executor`, `--workers`, `--ray-address` ...), decided and checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graft.machine.devices import check_device
from graft.shadowing import PACKAGES
from spaces.errors import StudyError

if TYPE_CHECKING:
    from workers.engine.machine.locations import Location
    from workers.pool.ray.cluster import Cluster

EXECUTORS = ("auto", "inline", "processes", "ray")
ENVIRONMENT = ("pip", "uv", "conda", "env_vars")
"""The settings that `--ray-env` may have. Graft's own packages are sent in any case."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The place where a study runs."""

    executor: str = "auto"
    workers: int | None = None
    """Pack workers. Default: one per core, four on a single GPU, one for each of several GPUs."""
    ray_address: str | None = None
    device: str | None = None
    devices: tuple[str, ...] = ()
    """The devices of several worker processes, in place of `device`: `("cuda:0", "cuda:1")`."""
    width: int | None = None
    """The most lanes of a pack; None if it is found while the study trains."""
    ray_env: str | None = None
    """A YAML or JSON file, for `read_environment`."""
    surrogate: str | None = None
    """The folder of a table of trials that replaces training (`graft.launching.surrogate`)."""

    def resolve(self) -> Placement:
        """Return the placement with `auto` and the device decided, and everything checked.

        `auto` is ray with an address, processes for several GPUs of which none is named, else
        inline. Raises StudyError that names the value and the choices.
        """
        from workers.engine.machine import devices
        from workers.engine.machine.locations import locations_of

        if self.executor not in EXECUTORS:
            raise StudyError(f"--executor: {self.executor!r} must be one of {', '.join(EXECUTORS)}")
        if self.surrogate is not None:
            return self._resolve_surrogate()
        executor = self.executor
        if executor == "auto" and self.ray_address is not None:
            executor = "ray"
        elif executor == "auto":
            is_gpu = self.device is None and devices.default_device() == "cuda"
            executor = "processes" if is_gpu and len(locations_of("cuda")) > 1 else "inline"
        if executor != "ray" and self.ray_address:
            raise StudyError(f"--ray-address: {self.ray_address!r} needs --executor ray, or auto")
        if executor == "ray":
            from workers.pool.ray.access import check_access

            if self.device is not None:
                raise StudyError(
                    f"--device: {self.device!r} needs --executor inline or processes; with ray, Ray places the workers"
                )
            if self.ray_env and not self.ray_address:
                raise StudyError(
                    f"--ray-env: {self.ray_env!r} needs --ray-address; here trials run in this environment"
                )
            check_access(self.ray_address)
            self.environment()
        elif self.ray_env:
            raise StudyError(f"--ray-env: {self.ray_env!r} needs --ray-address")
        for name in self.devices:
            check_device(name)
        device = self.device or (self.devices[0] if self.devices else devices.default_device())
        check_device(device)
        return replace(self, executor=executor, device=device)

    def _resolve_surrogate(self) -> Placement:
        if self.executor != "auto" or self.ray_address or self.device or self.workers:
            raise StudyError("--surrogate: leave out --executor, --ray-address, --device and --workers; nothing trains")
        if not importlib.util.find_spec("sklearn"):
            raise StudyError("--surrogate needs scikit-learn: pip install 'graft-search[learn]'")
        return replace(self, executor="surrogate", device="cpu")

    def describe(self) -> str:
        """Return where trials train: `cpu: AMD EPYC 9B14, 2 cores; 2 workers`, or the cluster."""
        from workers.engine.machine import devices
        from workers.engine.machine.locations import describe

        if self.surrogate is not None:
            return f"a model of the table {self.surrogate}, nothing trains"
        if self.executor == "ray" or self.device is None:
            return f"the Ray cluster {self.ray_address or 'of this machine'}"
        if self.executor == "processes":
            return describe(self.locations(), self.process_count())
        count = self.workers or devices.inline_workers(self.device)
        return f"{self.device}: {devices.device_name(self.device)}; {count} worker{'s' if count > 1 else ''}"

    def locations(self) -> list[Location]:
        """List the devices of this machine on which the workers' processes compute."""
        from workers.engine.machine.locations import locations_of

        return [location for device in self.devices or (str(self.device),) for location in locations_of(device)]

    def process_count(self) -> int:
        """Return the number of worker processes: one per GPU, or one per core without a GPU."""
        from workers.engine.machine.devices import default_workers

        each = 1 if self.devices else default_workers(str(self.device))
        return self.workers or len(self.locations()) * each

    def environment(self) -> Mapping[str, Any]:
        """Return the settings of a cluster's nodes by Ray's names; raises as `read_environment`."""
        return read_environment(self.ray_env) if self.ray_env else {}

    def cluster(self, *, shared: bool) -> Cluster:
        """Return the Ray cluster, `shared` by several studies or not; StudyError without Ray."""
        from workers.pool.ray.cluster import Cluster

        if not importlib.util.find_spec("ray"):
            raise StudyError("the ray executor needs Ray: pip install 'graft-search[ray]'")
        return Cluster(
            address=self.ray_address,
            workers=self.workers,
            shared=shared,
            packages=PACKAGES,
            environment=self.environment(),
        )


def read_environment(file: str) -> Mapping[str, Any]:
    """Read from a YAML or JSON file what Ray prepares on each node, as in Ray's `runtime_env`.

    Raises StudyError for a file that cannot be read or has other settings.
    """
    import yaml

    try:
        environment = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"--ray-env: {file} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise StudyError(f"--ray-env: {file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(environment, dict) or not set(environment) <= {*ENVIRONMENT}:
        raise StudyError(f"--ray-env: {file} must say some of {', '.join(ENVIRONMENT)}, and nothing else")
    variables = environment.get("env_vars", {})
    if not isinstance(variables, dict) or not all(isinstance(text, str) for text in (*variables, *variables.values())):
        raise StudyError(f"--ray-env: env_vars of {file} must be texts by name, such as OMP_NUM_THREADS: '1'")
    if settings := [name for name in variables if name.startswith("RAY_AUTH_")]:
        raise StudyError(
            f"--ray-env: {settings[0]} in {file} would be stored with the job; set it where Ray is started"
        )
    return environment
