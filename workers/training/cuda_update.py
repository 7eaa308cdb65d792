"""Clipping, optimizer and averages of all lanes as one GPU kernel over [L, P]: AdamW, Adam, SGD.

The formulas are those of `workers.training.recipe.apply_gradient`, which makes some seventy kernels
of them; cuda_update.cu says where its rounding differs. All others, and plug-ins from outside, are
traced. Before its first use the kernel is compared with the traced update on the device; if it
cannot be compiled, or differs, one line says so, and updates are traced. Legend: L lanes, P
parameters, k averages.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from spaces.messages import shorten
from workers.numerics.cuda.compiler import load_cubin
from workers.numerics.cuda.driver import Kernel, architecture_of
from workers.numerics.layout import Layout
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_leaves
from workers.training.averaging import Averaging
from workers.training.averaging.bema import Bema
from workers.training.averaging.bema_grid import BemaGrid
from workers.training.averaging.ema import Ema
from workers.training.averaging.none import NoAveraging
from workers.training.optimizers import Optimizer
from workers.training.optimizers._moments import TwoMoments
from workers.training.optimizers.adam import Adam
from workers.training.optimizers.adamw import AdamW
from workers.training.optimizers.sgd import StochasticGradientDescent
from workers.training.recipe import BoundRecipe, Recipe, State, apply_gradient, initial_state
from workers.training.schedules import Schedule
from workers.training.schedules.constant import Constant
from workers.training.schedules.cosine import Cosine
from workers.training.schedules.linear import Linear
from workers.training.schedules.warmup_cooldown import WarmupCooldown

SOURCE = Path(__file__).with_suffix(".cu")
FUNCTIONS = {torch.float32: "update_float32", torch.float64: "update_float64"}
_THREADS = 256
_OPTIMIZERS: tuple[type[Optimizer], ...] = (AdamW, Adam, StochasticGradientDescent)
_SCHEDULES: tuple[type[Schedule], ...] = (Constant, Linear, Cosine, WarmupCooldown)
_AVERAGINGS: dict[type[Averaging], int] = {NoAveraging: 0, Ema: 1, Bema: 1, BemaGrid: 2}
"""All three are numbered as in cuda_update.cu."""
_CLOSE = {torch.float32: (1e-4, 1e-6), torch.float64: (1e-9, 1e-12)}
"""Relative and absolute tolerance."""
_COMPARED_LANES, _COMPARED_STEPS = 3, 3
_LOG = logging.getLogger(__name__)


@torch.library.custom_op("graft::cuda_update", mutates_args=("made",), device_types="cuda")
def run_kernel(
    choices: Sequence[int], knobs: Tensor, constants: Sequence[Tensor], given: Sequence[Tensor], made: Sequence[Tensor]
) -> None:
    """Write an update into `made`, a state's tensors in the order of `given`.

    `choices`: lanes to averaging; `knobs` [KAPPA + 1, L]; `constants`: decays and learns; `given`:
    gradient, loss and a state's tensors, all contiguous. A tensor that there is none of is empty.
    """
    kernel = _kernel_of(given[0].dtype, given[0].device)
    kernel(choices[0], _THREADS, [*choices, knobs, *constants, *given, *made])


@run_kernel.register_fake
def _(
    choices: Sequence[int], knobs: Tensor, constants: Sequence[Tensor], given: Sequence[Tensor], made: Sequence[Tensor]
) -> None:
    """Do nothing: these tensors have shapes and no numbers."""


@functools.cache
def _kernel_of(dtype: torch.dtype, device: torch.device) -> Kernel:
    """Compile the kernel, in a third of a second; raises RuntimeError if that fails."""
    return Kernel(load_cubin(SOURCE, architecture_of(device)), FUNCTIONS[dtype], device)


def cuda_update_of(recipe: Recipe, layout: Layout, device: torch.device) -> CudaUpdate | None:
    """Return the update as one kernel; None if the recipe or the device has none."""
    optimizer, schedule, average = type(recipe.optimizer), type(recipe.optimizer.schedule), type(recipe.averaging)
    is_known = optimizer in _OPTIMIZERS and schedule in _SCHEDULES and average in _AVERAGINGS
    # Tensors of the device `meta` stand for a GPU's, to count what a step costs there.
    is_there = device.type in ("cuda", "meta") and recipe.dtype in FUNCTIONS
    if not (is_known and is_there and recipe.learning.is_plain):
        return None
    update = CudaUpdate(recipe, layout)
    if device.type == "cuda":
        parts = [plugins.structure_of(part) for part in (recipe.optimizer, recipe.averaging)]
        key = plugins.canonical_json([*parts, recipe.training.dtype, str(device)])
        if key not in _VERDICTS:
            _VERDICTS[key] = find_fault(update, recipe, layout, device)
            if fault := _VERDICTS[key]:
                _LOG.warning("updates are traced, not one kernel each: %s", fault)
        if _VERDICTS[key]:
            return None
    return update


_VERDICTS: dict[str, str | None] = {}
"""Recipe and device that the kernel was compared for -> why it is not used; None if it is."""


def find_fault(update: CudaUpdate, recipe: Recipe, layout: Layout, device: torch.device) -> str | None:
    """Return why the kernel is not used for trials of this recipe on the device; None if it is."""
    numbers = Streams.of(torch.arange(_COMPARED_LANES), Purpose.INITIAL, 1)
    drawn = numbers.normal(1 + _COMPARED_STEPS, layout.total).to(device, recipe.dtype)
    knobs = dict[str, Tensor]()
    for path, value in recipe.knobs().items():
        knobs[path] = drawn.new_full((_COMPARED_LANES,), value, dtype=torch.float64)

    def trace(knobs: dict[str, Tensor], state: State, gradient: Tensor, loss: Tensor) -> State:
        return apply_gradient(recipe.bind(knobs), layout, state, gradient, loss)

    def train(step: Callable[..., State]) -> State:
        state = vmap(lambda parameters: initial_state(recipe, layout, parameters))(drawn[:, 0])
        for number in range(_COMPARED_STEPS):
            gradient = drawn[:, 1 + number]
            state = step(knobs, state, gradient, gradient.mean(-1))
        return state

    try:
        computed, expected = train(update), train(vmap(trace))
    except RuntimeError as error:
        return shorten(" ".join(str(error).split()) or type(error).__name__, 200)
    pairs = zip(tree_leaves(computed), tree_leaves(expected), strict=True)
    if all(torch.allclose(leaf, other, *_CLOSE[recipe.dtype]) for leaf, other in pairs):
        return None
    return "the kernel gives other numbers than the traced update"


@final
class CudaUpdate:
    """The update of `workers.training.recipe.apply_gradient`, for L lanes on a GPU."""

    def __init__(self, recipe: Recipe, layout: Layout) -> None:
        self._bound = BoundRecipe(recipe)
        optimizer, none = recipe.optimizer, layout.decays.new_empty(0)
        self._constants = [layout.decays, none if layout.learns is None else layout.learns]
        self._choices = [
            _OPTIMIZERS.index(type(optimizer)),
            int(isinstance(optimizer, StochasticGradientDescent) and optimizer.nesterov),
            _SCHEDULES.index(type(optimizer.schedule)),
            _AVERAGINGS[type(recipe.averaging)],
        ]

    def __call__(self, knobs: dict[str, Tensor], state: State, gradient: Tensor, loss: Tensor) -> State:
        """Return the state after the update; the argument is left as it was."""
        none = gradient.new_empty(0)
        names = "first" if "first" in state.moments else "buffer"
        moments = state.moments[names], state.moments.get("second", none)
        shadow = state.shadow.get("ema", none)
        progress = state.step, state.loss_sum, state.diverged_at
        # In the order of cuda_update.cu.
        given = [tensor.contiguous() for tensor in (state.parameters, *moments, shadow, *progress)]
        made = [torch.empty_like(tensor) for tensor in given]
        lanes, total = state.parameters.shape
        averages = shadow.numel() // state.parameters.numel()
        choices = [lanes, total, averages, *self._choices]
        stacked = torch.stack(_knobs_of(self._bound.of(knobs)))
        gradient, loss = gradient.contiguous(), loss.to(gradient.dtype).contiguous()  # may be double
        run_kernel(choices, stacked, self._constants, [gradient, loss, *given], made)
        parameters, first, second, average, step, loss_sum, diverged_at = made
        after = {names: first} | ({"second": second} if "second" in state.moments else {})
        shadows = {**state.shadow, "ema": average} if "ema" in state.shadow else state.shadow
        return State(parameters, after, shadows, step, loss_sum, diverged_at)


def _knobs_of(recipe: Recipe) -> list[Tensor]:
    """Return the knobs, [L] each, in the order of cuda_update.cu; any number for a missing one."""
    optimizer, schedule, averaging = recipe.optimizer, recipe.optimizer.schedule, recipe.averaging
    knobs: list[Any] = [recipe.training.steps, optimizer.learning_rate, optimizer.clip_norm]
    none: Any = optimizer.clip_norm
    if isinstance(optimizer, TwoMoments):
        knobs += [optimizer.weight_decay, optimizer.beta1, optimizer.beta2, optimizer.epsilon]
    else:
        assert isinstance(optimizer, StochasticGradientDescent)
        knobs += [optimizer.weight_decay, optimizer.momentum, none, none]
    if isinstance(schedule, Linear | Cosine):
        knobs += [schedule.warmup, schedule.end_multiplier]
    else:
        knobs += [schedule.warmup, schedule.cooldown] if isinstance(schedule, WarmupCooldown) else [none, none]
    if isinstance(averaging, Ema | Bema):
        knobs += [averaging.rho, averaging.kappa]
    else:
        knobs += [averaging.rho if isinstance(averaging, BemaGrid) else none, none]
    return knobs
