"""Models that are a `torch.nn.Module`, called with the trial's own parameters.

A pack computes its lanes with one module, so a module must be a function of its parameters and
inputs: it may not draw random numbers, change its buffers, or decide by a number that it computed.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from spaces import plugins
from spaces.errors import PluginError
from spaces.messages import shorten
from spaces.plugins.importing import explain
from workers.data.tasks import Batch, SetTask, Task, TokenTask, VectorTask
from workers.networks.models import Model, Site, check_causality, require_task
from workers.numerics.parameters import Constant, Given, Parameter, Parameters, Start

_BUILDS = 4
"""The number of modules that are built to see how a parameter starts."""
_QUANTILES = 255
"""Steps between the least and the largest initial value of a parameter."""
_LOOKED_AT = 1 << 20
"""The most initial values of a parameter that are looked at."""


class ModuleError(PluginError):
    """A module that lanes of a pack cannot share, whatever the task."""


@final
@dataclass(frozen=True, kw_only=True)
class Quantiles(Start):
    """Entries drawn from a distribution with these evenly spaced quantiles, least to largest."""

    values_at: tuple[float, ...]

    def values(self, uniform: Tensor) -> Tensor:
        table = torch.tensor(self.values_at, dtype=uniform.dtype, device=uniform.device)
        position = uniform * (len(table) - 1)
        below = position.long().clamp(0, len(table) - 2)
        return torch.lerp(table[below], table[below + 1], position - below)


class ModuleModel(Model):
    """A model that is a torch.nn.Module; a plug-in derives from it and builds the module.

    The module's own initialisation becomes a distribution: an entry of a trial's parameter is drawn
    by the trial's stream from the module's initial values, over all entries. A parameter that
    starts equal in each module (ones, zeros, a table) starts so, and one without `requires_grad`
    stays so. Its fields are sizes and options.
    """

    kind: ClassVar[type[TokenTask | VectorTask | SetTask]] = TokenTask
    """The kind of tasks that it reads."""

    @abstractmethod
    def module(self, task: Any) -> nn.Module:
        """Build the module for a task of its kind; `task.longest` is its longest input.

        It is called with `arguments` of a batch, and returns logits [N, s, v], numbers [N, s, o] or
        logits [N, c]. Tasks with equal shapes of parameters may differ by length only.
        """

    def arguments(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the module's arguments: the inputs; for sets the question and lengths, too."""
        return (batch["inputs"], batch["query"], batch["lengths"]) if self.kind is SetTask else (batch["inputs"],)

    @final
    def check(self, task: Task) -> None:
        self._require(task)
        if isinstance(task, TokenTask):
            check_causality(task, self, causal=self.causal)
        if [*plugins.knobs(self)]:
            raise ModuleError(
                f"model.name: {plugins.name_of(self)!r} has knobs, which a module cannot; use size, option"
            )
        _check_module(self, task)

    @final
    def parameters(self, task: Task) -> Mapping[str, Parameter]:
        return _build(self, self._require(task))[1]

    def _require(self, task: Task) -> TokenTask | VectorTask | SetTask:
        """Return the task; raises PluginError if the module does not read its kind."""
        if self.kind is TokenTask:
            return require_task(TokenTask, task, self)
        if self.kind is VectorTask:
            return require_task(VectorTask, task, self)
        return require_task(SetTask, task, self)

    @final
    def dropout_sites(self, task: Task, batch: int, length: int) -> Mapping[str, Site]:
        return {}

    def outputs(self, parameters: Parameters, batch: Batch, keep: Mapping[str, Tensor]) -> Tensor:
        sees_padding = "lengths" in batch and self.kind is not SetTask and not self.causal
        if sees_padding and type(self).outputs is ModuleModel.outputs:
            raise PluginError(
                f"model.name: {plugins.name_of(self)!r} is not causal, so it would see the padding of this task's "
                "sequences; define `outputs`, which may read batch['lengths']"
            )
        return self.call(parameters, *self.arguments(batch))

    @final
    def call(self, parameters: Parameters, *arguments: Tensor) -> Tensor:
        """Call the module with these parameters, and return its output."""
        built = _MODULES[self, tuple((name, tuple(tensor.shape)) for name, tensor in parameters.items())]
        length = arguments[0].shape[1]
        module = built[min((longest for longest in built if longest >= length), default=max(built))]
        like = next(iter(parameters.values()))
        buffers = {
            name: buffer.to(like.device, like.dtype if buffer.is_floating_point() else buffer.dtype)
            for name, buffer in module.named_buffers()
        }

        def compute(tensors: dict[str, Tensor]) -> Tensor:
            return functional_call(module, {**tensors, **buffers}, arguments)

        # vmap knows no recurrent layers (aten::lstm), but torch's operations for their gradient.
        if any(tensor.requires_grad for tensor in parameters.values()):
            return compute(dict(parameters))
        return vjp(compute, dict(parameters))[0]


_MODULES: dict[Any, dict[int, nn.Module]] = {}
"""Model, and names and shapes of its parameters -> longest input of a task -> its module."""


@functools.lru_cache(maxsize=64)
def _build(model: ModuleModel, task: Any) -> tuple[nn.Module, dict[str, Parameter]]:
    """Return the module, and its parameters with their starts."""
    modules: list[nn.Module] = []
    with torch.random.fork_rng(devices=()):
        for seed in range(_BUILDS):
            torch.manual_seed(seed)
            modules.append(model.module(task).train())
    first = modules[0]
    parameters: dict[str, Parameter] = {}
    for name, tensor in first.named_parameters():
        values = [dict(module.named_parameters())[name].detach() for module in modules]
        frozen = not tensor.requires_grad
        start = _given(tensor.detach()) if frozen else _start_of(torch.stack(values))
        decay = tensor.dim() > 1
        parameters[name] = Parameter(shape=tuple(tensor.shape), start=start, decay=decay, frozen=frozen)
    if not parameters:
        raise ModuleError(f"model.name: the module of {plugins.name_of(model)!r} has no parameters")
    key = model, tuple((name, parameter.shape) for name, parameter in parameters.items())
    _MODULES.setdefault(key, {})[task.longest] = first
    return first, parameters


def _start_of(values: Tensor) -> Start:
    """Return the start of a parameter from its values [n, ...] in several modules."""
    if bool((values == values.flatten()[0]).all()):
        return Constant(value=float(values.flatten()[0]))
    if bool((values == values[0]).all()):
        return _given(values[0])
    at = torch.linspace(0, 1, _QUANTILES + 1, dtype=torch.float64)
    quantiles = values.flatten()[:_LOOKED_AT].double().quantile(at).tolist()
    # Rounded: torch's normal numbers may differ in their last bit between processors.
    return Quantiles(values_at=tuple(float(f"{value:.5g}") for value in quantiles))


def _given(values: Tensor) -> Start:
    return Given(numbers=tuple(values.double().flatten().tolist()))


# -- what no pack can train ------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _check_module(model: ModuleModel, task: Any) -> None:
    """Raise ModuleError if a module draws numbers, changes its buffers or decides by its data."""
    module = _build(model, task)[0]
    name = plugins.name_of(model)
    arguments = model.arguments(_example(task))
    before = {key: buffer.clone() for key, buffer in module.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        random = torch.get_rng_state()
        module(*arguments)
        is_random = not torch.equal(random, torch.get_rng_state())
    if is_random:
        raise ModuleError(
            f"model.name: {name!r} draws random numbers while it trains, as dropout does, which lanes of a pack cannot "
            "share: set its dropout to 0, or write a Model with dropout_sites"
        )
    changed = [key for key, buffer in module.named_buffers() if not torch.equal(buffer, before[key])]
    for key, buffer in module.named_buffers():
        buffer.copy_(before[key])
    if changed:
        raise ModuleError(
            f"model.name: {name!r} changes its buffer {changed[0]!r} while it trains, which lanes of a pack cannot "
            "share: use LayerNorm or GroupNorm, or track_running_stats=False"
        )
    stacked = {key: parameter.detach().expand(2, *parameter.shape) for key, parameter in module.named_parameters()}
    try:
        arguments = tuple(argument.expand(2, *argument.shape) for argument in arguments)
        with torch.no_grad():
            vmap(lambda parameters, given: model.call(parameters, *given))(stacked, arguments)
    except Exception as error:
        where = str(explain(error) or f"{type(error).__name__}: {error}").partition("\n")[0]
        raise ModuleError(
            f"model.name: {name!r} cannot be stacked in a pack, as where it decides by a number that it computed, or "
            f"calls what torch.func.vmap does not know: {shorten(where, 300)}"
        ) from error


def _example(task: TokenTask | VectorTask | SetTask) -> Batch:
    """Return a batch of two made-up sequences or sets of the task's kind."""
    if isinstance(task, TokenTask):
        return {"inputs": torch.arange(2 * task.context).view(2, -1) % task.tokens}
    inputs = torch.linspace(-1, 1, 2 * task.context * task.features).view(2, task.context, task.features)
    if isinstance(task, VectorTask):
        return {"inputs": inputs}
    lengths = torch.full((2,), task.context)
    return {"inputs": inputs, "query": torch.ones(2, task.query_features), "lengths": lengths}
