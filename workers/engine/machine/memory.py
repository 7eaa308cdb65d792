"""Memory: what a device has free, what a lane needs, and errors that say it ran out."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, UntypedStorage
from torch.autograd.graph import saved_tensors_hooks

from spaces import plugins
from spaces.messages import shorten
from workers.engine.machine.side_by_side import CAPTURING
from workers.networks.models import in_use
from workers.numerics.layout import Layout
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_leaves
from workers.training.recipe import Recipe, initial_state, layout_of

_PHRASES = (
    "can't allocate memory",
    "Storage size calculation overflowed",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasLtCreate",
    "CUSOLVER_STATUS_ALLOC_FAILED",
)
"""Texts of torch's plain RuntimeErrors. Its CUDA allocator's have a class of their own, which a
replayed step loses; cuBLAS says that it is not initialized if there was no room for its handle.
"""
SMALL = 100_000
"""Largest number of parameters for which a trial's state is made to measure it."""
HELD = 12
"""Bytes at a traced step's peak per byte that autograd keeps: 9 to 14 on a CPU, with validation."""
_CGROUP_FILES = {"": ("memory.max", "memory.current"), "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes")}
"""Controller -> files of limit and usage: version 2's one hierarchy, and version 1's."""


Result = TypeVar("Result")


class Shortage(NamedTuple):
    """Memory ran out; `reason` is torch's message."""

    reason: str


def attempt(act: Callable[[], Result], device: str) -> Result | Shortage:
    """Return what `act` returns, or a Shortage if memory ran out in it; other errors go through."""
    try:
        return act()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        # A replayed step puts its operations in front of the line that says it.
        telling = (line for line in str(error).splitlines() if any(phrase in line for phrase in _PHRASES))
        line = re.sub(r"^(\w+Error: )+", "", next(telling, str(error)).strip())
        reason = shorten(line or type(error).__name__, 200)
    if torch.device(device).type == "cuda":  # now what the error's frames held is gone
        with CAPTURING:
            torch.cuda.empty_cache()
    return Shortage(reason)


def out_of_memory(error: BaseException) -> bool:
    """Return True if an error says that memory ran out."""
    says_so = isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)
    return says_so or isinstance(error, torch.OutOfMemoryError | MemoryError)


def free_bytes(device: str) -> int:
    """Return the bytes that this process could still allocate, on a CPU within its cgroups."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # not Linux: half of it
    with suppress(OSError):
        lines = (line.partition(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = next((int(value.split()[0]) * 1024 for key, _, value in lines if key == "MemAvailable"), free)
    return min([free, *cgroup_free(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_free(membership: Path, mount: Path) -> Iterator[int]:
    """Yield the bytes left in the cgroups of `membership` (/proc/self/cgroup) below `mount`."""
    with suppress(OSError):
        for line in membership.read_text().splitlines():
            _, controller, path = line.split(":", 2)
            for folder in (mount / controller / path.lstrip("/"), *(mount / controller / path.lstrip("/")).parents):
                if controller in _CGROUP_FILES and folder.is_relative_to(mount):
                    with suppress(OSError, ValueError):  # no such folder; `max`: no limit
                        limit, usage = (int((folder / name).read_text()) for name in _CGROUP_FILES[controller])
                        yield max(0, limit - usage)


def count_parameters(config: Mapping[str, Any]) -> int:
    """Return the parameters that a trial of this configuration trains."""
    return layout_of(Recipe.of(config), "meta").total


def least_bytes(config: Mapping[str, Any]) -> int:
    """Return a lower bound of a trial's bytes: parameters, gradient, optimizer and averages."""
    recipe = Recipe.of(config).pad()
    layout = layout_of(recipe, "meta")  # without memory; its first use takes torch a second
    if layout.total <= SMALL:
        layout = layout_of(recipe)
    flat = torch.zeros(layout.total, dtype=recipe.dtype, device="cpu" if layout.total <= SMALL else "meta")
    return flat.nbytes + sum(leaf.nbytes for leaf in tree_leaves(initial_state(recipe, layout, flat)))


def estimate_lane_bytes(config: Mapping[str, Any]) -> int:
    """Estimate `lane_bytes` from batches of one and two: each row of a batch needs as much."""
    training = config["training"]
    rows = training["batch"] // training.get("accumulate", 1)
    small = ({**training, "batch": batch, "accumulate": 1} for batch in (1, 2))
    one, two = (lane_bytes(Recipe.of({**config, "training": changed})) for changed in small)
    return one + (two - one) * (rows - 1)


def lane_bytes(recipe: Recipe) -> int:
    """Estimate the most bytes of a lane: activations, and the state before and after a step.

    Activations are what autograd keeps of one trial's forward pass on the CPU, times HELD.
    """
    sizes = {path: torch.tensor([value], dtype=torch.float64) for path, value in recipe.knobs().items()}
    recipe = recipe.pad()
    layout = layout_of(recipe)
    flat = torch.zeros(layout.total, dtype=recipe.dtype)
    state = sum(leaf.nbytes for leaf in tree_leaves(initial_state(recipe, layout, flat)))
    zero = torch.zeros(1, dtype=torch.int64)
    task, streams = plugins.bind(recipe.task, sizes, "task"), Streams.of(zero, Purpose.TRAINING_DATA, 0)
    at_once = max(1, recipe.training.batch // recipe.training.accumulate)
    drawn = task.training(streams, at_once, zero)
    batch = {name: tensor[0] for name, tensor in drawn.items()}
    model = Layout.of(recipe.model.parameters(recipe.task), recipe.dtype)
    weights = torch.zeros(model.total, dtype=recipe.dtype).requires_grad_()
    kept: dict[int, UntypedStorage] = {}  # alive: a freed one's address may be reused

    def keep(tensor: Tensor) -> None:
        """Note the memory alone: a node that held a tensor of its own would never be freed."""
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()

    def give_back(_: None) -> Tensor:
        raise AssertionError("nothing is differentiated")

    with torch.enable_grad(), saved_tensors_hooks(keep, give_back):
        recipe.task.loss(recipe.model.outputs(model.split(weights), batch, {}), batch)
    sites = recipe.model.dropout_sites(recipe.task, recipe.training.batch, batch["inputs"].shape[1]).values()
    masks = sum(math.prod(site.shape) for site in sites if in_use(site.rate))
    return 2 * state + recipe.learning.passes * HELD * sum(storage.nbytes() for storage in kept.values()) + masks
