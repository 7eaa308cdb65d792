"""Clipping, optimizer and averages of all lanes in C++, in one pass over [L, P]; for AdamW, Adam and SGD.

The same formulas as `workers.training.recipe.apply_gradient`, with the same scalars, which torch computes in float64;
update.cpp says in what the rounding differs. Muon, and averages and ways of learning that are not known here, are
traced.

Legend: L lanes, P parameters, k averages.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.func import vmap

from workers.numerics.layout import Layout
from workers.numerics.native import address, library
from workers.numerics.tracing import Traced
from workers.training.averaging import Averaging
from workers.training.averaging.bema import Bema
from workers.training.averaging.bema_grid import BemaGrid
from workers.training.averaging.ema import Ema, consumed
from workers.training.averaging.none import NoAveraging
from workers.training.optimizers import Optimizer, exact
from workers.training.optimizers._moments import TwoMoments, correction
from workers.training.optimizers.adam import Adam
from workers.training.optimizers.adamw import AdamW
from workers.training.optimizers.sgd import StochasticGradientDescent
from workers.training.recipe import Recipe, State, progress, update_key

_FUNCTIONS = {torch.float32: "update_float32", torch.float64: "update_float64"}
_OPTIMIZERS: tuple[type[Optimizer], ...] = (AdamW, Adam, StochasticGradientDescent)
"""In the order of update.cpp."""
_AVERAGINGS: tuple[type[Averaging], ...] = (NoAveraging, Ema, Bema, BemaGrid)

_SIZES = ("lanes", "parameters", "averages", "optimizer", "nesterov")
_TENSORS = (
    *("scalars", "decays", "learns", "gradient", "before", "first", "second", "shadow"),
    *("after", "first_after", "second_after", "shadow_after"),
)


class UpdatePlan(ctypes.Structure):
    """`Update` of update.cpp."""

    _fields_ = [(name, ctypes.c_int64) for name in _SIZES] + [(name, ctypes.c_void_p) for name in _TENSORS]


def update_of(recipe: Recipe, layout: Layout, device: torch.device) -> NativeUpdate | None:
    """The native update; None where the recipe or the device has none."""
    known = type(recipe.optimizer) in _OPTIMIZERS and type(recipe.averaging) in _AVERAGINGS
    if not known or not recipe.learning.is_plain or device.type != "cpu" or recipe.dtype not in _FUNCTIONS:
        return None
    native = library()
    return NativeUpdate(native, recipe, layout) if native else None


class NativeUpdate:
    """What `workers.training.recipe.apply_gradient` does, for L lanes."""

    def __init__(self, native: ctypes.CDLL, recipe: Recipe, layout: Layout) -> None:
        self._function = getattr(native, _FUNCTIONS[recipe.dtype])
        self._function.restype = None
        self._recipe, self._layout = recipe, layout
        self._scalars = Traced(("scalars", update_key(recipe)), vmap(self._one))
        optimizer = recipe.optimizer
        nesterov = isinstance(optimizer, StochasticGradientDescent) and optimizer.nesterov
        self._choices = {"optimizer": _OPTIMIZERS.index(type(optimizer)), "nesterov": int(nesterov)}

    @property
    def seconds(self) -> float:
        """How long the last recording took, of the scalars."""
        return self._scalars.seconds

    def __call__(self, knobs: dict[str, Tensor], state: State, gradient: Tensor, loss: Tensor) -> State:
        scalars, step, loss_sum, diverged_at = self._scalars(knobs, state.step, loss, state.loss_sum, state.diverged_at)
        names = [name for name in ("first", "second", "buffer") if name in state.moments]
        before = [state.parameters, *(state.moments[name] for name in names)]
        before = [tensor.contiguous() for tensor in before]
        after = [torch.empty_like(tensor) for tensor in before]
        shadow = state.shadow["ema"].contiguous() if "ema" in state.shadow else None
        shadow_after = torch.empty_like(shadow) if shadow is not None else None
        lanes, parameters = before[0].shape
        plan = UpdatePlan(**self._choices, lanes=lanes, parameters=parameters, averages=scalars.shape[1] - _SCALARS)
        gradient, scalars = gradient.contiguous(), scalars.contiguous()
        tensors = {
            "scalars": scalars,
            "decays": self._layout.decays,
            "learns": self._layout.learns,
            "gradient": gradient,
            "shadow": shadow,
            "shadow_after": shadow_after,
            **dict(zip(("before", "first", "second"), before, strict=False)),
            **dict(zip(("after", "first_after", "second_after"), after, strict=False)),
        }
        for name, tensor in tensors.items():
            setattr(plan, name, address(tensor) if tensor is not None else None)
        self._function(ctypes.byref(plan))
        return State(
            parameters=after[0],
            moments=dict(zip(names, after[1:], strict=True)),
            shadow={**state.shadow, "ema": shadow_after} if shadow_after is not None else state.shadow,
            step=step,
            loss_sum=loss_sum,
            diverged_at=diverged_at,
        )

    def _one(
        self, knobs: dict[str, Tensor], step: Tensor, loss: Tensor, loss_sum: Tensor, diverged_at: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        recipe = self._recipe.bind(knobs)
        steps = torch.as_tensor(recipe.training.steps)
        optimizer, averaging = recipe.optimizer, recipe.averaging
        rate = optimizer.learning_rate * optimizer.schedule.factor(step, steps)
        scalars = [exact(optimizer.clip_norm), *_of_optimizer(optimizer, rate, step)]
        weights = _weights(averaging, step)
        row = torch.cat([torch.stack([exact(scalar) for scalar in scalars]), weights])
        return row, *progress(step, loss, loss_sum, diverged_at)


_SCALARS = 7
"""Scalars of the optimizer, before the averages' weights."""


def _of_optimizer(optimizer: Optimizer, rate: Tensor, step: Tensor) -> list[Tensor]:
    """From RATE to EPSILON of update.cpp."""
    zero = torch.zeros((), dtype=torch.float64)
    if isinstance(optimizer, StochasticGradientDescent):
        return [rate, exact(optimizer.weight_decay), exact(optimizer.momentum), *[zero] * 3]
    assert isinstance(optimizer, TwoMoments)
    beta1, beta2, decay = exact(optimizer.beta1), exact(optimizer.beta2), exact(optimizer.weight_decay)
    return [
        rate / correction(beta1, step),
        rate * decay if isinstance(optimizer, AdamW) else decay,
        1 - beta1,
        1 - beta2,
        correction(beta2, step).sqrt(),
        exact(optimizer.epsilon),
    ]


def _weights(averaging: Averaging, step: Tensor) -> Tensor:
    """[k] with which each average consumes the new parameters."""
    if isinstance(averaging, Ema | Bema):
        return consumed(averaging.rho, averaging.kappa, step).reshape(1)
    if isinstance(averaging, BemaGrid):
        return consumed(averaging.rho, averaging.powers(step.device)[:, 0], step)
    return torch.zeros(0, dtype=torch.float64)
