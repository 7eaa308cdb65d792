"""Clipping, optimizer and averages of all lanes in C++, over [L, P]: AdamW, Adam, SGD, Muon.

The formulas and scalars (float64, by torch) are those of `workers.training.recipe.apply_gradient`;
update.hpp says where its rounding differs. Other averages and ways of learning are traced, as are
plug-ins from outside. Legend: L lanes, P parameters, k averages.
"""

from __future__ import annotations

import ctypes
from typing import final

import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from workers.numerics.blocks import LEAST, Blocks
from workers.numerics.layout import Layout
from workers.numerics.native import address, library
from workers.numerics.tensors import Versions, are_of, versions_of
from workers.numerics.tracing import Traced
from workers.training.averaging import Averaging
from workers.training.averaging.bema import Bema
from workers.training.averaging.bema_grid import BemaGrid
from workers.training.averaging.ema import Ema, decay_weight
from workers.training.averaging.none import NoAveraging
from workers.training.optimizers import Optimizer, exact
from workers.training.optimizers._moments import TwoMoments, correction
from workers.training.optimizers.adam import Adam
from workers.training.optimizers.adamw import AdamW
from workers.training.optimizers.muon import Muon
from workers.training.optimizers.sgd import StochasticGradientDescent
from workers.training.recipe import Recipe, State, scalars_key, scalars_paths

_LIBRARIES = {torch.float32: "update_float32", torch.float64: "update_float64"}
_OPTIMIZERS: tuple[type[Optimizer], ...] = (AdamW, Adam, StochasticGradientDescent, Muon)
"""The optimizers, in the order of update.hpp."""
_AVERAGINGS: tuple[type[Averaging], ...] = (NoAveraging, Ema, Bema, BemaGrid)

_SIZES = ("lanes", "parameters", "averages", "optimizer", "nesterov", "iterations", "matrices")
_TENSORS = (
    *("scalars", "decays", "learns", "gradient", "before", "first", "second", "shadow", "buffer", "turned"),
    *("after", "first_after", "buffer_after", "second_after", "shadow_after", "loss", "step", "loss_sum"),
    *("diverged_at", "step_after", "diverged_after", "loss_sum_after"),
)


class UpdatePlan(ctypes.Structure):
    """`Update` of update.hpp."""

    _fields_ = [(name, ctypes.c_int64) for name in _SIZES] + [(name, ctypes.c_void_p) for name in _TENSORS]


class Turned(ctypes.Structure):
    """`Turned` of update.hpp: a matrix that Muon orthogonalises."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("start", "rows", "columns", "step")),
        ("adjustment", ctypes.c_double),
    ]


def update_of(recipe: Recipe, layout: Layout, device: torch.device) -> NativeUpdate | None:
    """Return the native update; None if the recipe or the device has none."""
    is_known = knows(recipe) and recipe.learning.is_plain and recipe.dtype in _LIBRARIES
    native = library(_LIBRARIES[recipe.dtype]) if is_known and device.type == "cpu" else None
    return NativeUpdate(native, recipe, layout) if native else None


def knows(recipe: Recipe) -> bool:
    """Return True if the scalars of the optimizer and the average are computed here."""
    return type(recipe.optimizer) in _OPTIMIZERS and type(recipe.averaging) in _AVERAGINGS


def libraries_of(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the native libraries of update and random numbers, the largest first."""
    update = (_LIBRARIES[recipe.dtype],) if knows(recipe) and recipe.dtype in _LIBRARIES else ()
    return *update, "normals", "permutations", "streams"


class NativeUpdate:
    """The update of `workers.training.recipe.apply_gradient`, for L lanes."""

    def __init__(self, native: ctypes.CDLL, recipe: Recipe, layout: Layout) -> None:
        self._function = getattr(native, _LIBRARIES[recipe.dtype])
        self._layout = layout
        self._scalars = Scalars(recipe, torch.device("cpu"))
        self._blocks = Blocks()
        optimizer = recipe.optimizer
        nesterov = isinstance(optimizer, StochasticGradientDescent | Muon) and optimizer.nesterov
        self._choices = {"optimizer": _OPTIMIZERS.index(type(optimizer)), "nesterov": int(nesterov)}
        self._buffer = "first" if isinstance(optimizer, StochasticGradientDescent) else "buffer"
        if isinstance(optimizer, Muon):
            matrices = [Turned(*matrix) for matrix in optimizer.matrices_of(layout)]
            self._turned = (Turned * len(matrices))(*matrices)
            self._choices |= {"iterations": optimizer.iterations, "matrices": len(matrices)}

    @property
    def seconds(self) -> float:
        """Seconds of the last recording of the scalars."""
        return self._scalars.seconds

    def __call__(self, knobs: dict[str, Tensor], state: State, gradient: Tensor, loss: Tensor) -> State:
        """Return the state after the update by gradients [U, P] and losses [U] of U first lanes.

        Other lanes' are undefined. Large moments and averages are written in place.
        """
        scalars = self._scalars(knobs, state.step)
        before = {name: moment.contiguous() for name, moment in state.moments.items()}
        after = {name: _place_after(moment) for name, moment in before.items()}
        parameters = state.parameters.contiguous()
        moved = self._blocks.empty_like(parameters)
        shadow = state.shadow["ema"].contiguous() if "ema" in state.shadow else None
        shadow_after = _place_after(shadow) if shadow is not None else None
        lanes, total = gradient.shape
        plan = UpdatePlan(**self._choices, lanes=lanes, parameters=total, averages=scalars.shape[1] - SCALARS)
        progress = {name: getattr(state, name).contiguous() for name in ("step", "loss_sum", "diverged_at")}
        step, loss_sum, diverged_at = (tensor.clone() for tensor in progress.values())
        assert gradient.dtype == state.parameters.dtype, "a gradient is of the parameters' precision"
        gradient, loss = gradient.contiguous(), loss.to(gradient.dtype).contiguous()  # may be double
        tensors = {
            **progress,
            "step_after": step,
            "loss_sum_after": loss_sum,
            "diverged_after": diverged_at,
            "loss": loss,
            "scalars": scalars,
            "decays": self._layout.decays,
            "learns": self._layout.learns,
            "gradient": gradient,
            "shadow": shadow,
            "shadow_after": shadow_after,
            "before": parameters,
            "after": moved,
        }
        for name, moment in before.items():
            field = self._buffer if name == "buffer" else name
            tensors |= {field: moment, f"{field}_after": after[name]}
        for name, tensor in tensors.items():
            setattr(plan, name, address(tensor) if tensor is not None else None)
        if self._choices.get("matrices"):
            plan.turned = ctypes.addressof(self._turned)
        if self._function(ctypes.byref(plan)):
            raise MemoryError("the native update")
        self._scalars.note_step(step)
        shadows = state.shadow if shadow_after is None else {**state.shadow, "ema": shadow_after}
        return State(moved, after, shadows, step, loss_sum, diverged_at)


def _place_after(before: Tensor) -> Tensor:
    """Return the target of moments or averages: large ones themselves, as memory is the bound."""
    return before if before.nbytes >= LEAST else torch.empty_like(before)


AHEAD = 64
"""Steps whose scalars are computed together; sixty operations cost as much on thousands."""


@final
class Scalars:
    """The rates, decays and weights of each lane's update at its own step.

    They follow from knobs and steps alone: unless something writes into either, as a trial that
    takes a lane does, those of the next steps are known.
    """

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self._optimizer, self._averaging, self._training = recipe.optimizer, recipe.averaging, recipe.training
        self._paths = scalars_paths(recipe)
        self._traced = Traced(("scalars", scalars_key(recipe), str(device)), vmap(vmap(self._one, (None, 0))))
        self._knobs: Versions = []
        self._step: Versions = []
        self._ahead: list[Tensor] = []

    @property
    def seconds(self) -> float:
        """Seconds of the last recording."""
        return self._traced.seconds

    def __call__(self, knobs: dict[str, Tensor], step: Tensor) -> Tensor:
        """Return float64 [L, scalars + averages], as update.hpp reads them."""
        inputs = [knobs[path] for path in self._paths]
        if not (self._ahead and are_of(self._step, [step]) and are_of(self._knobs, inputs)):
            self._ahead = [*self.of_next(knobs, step).flip(0)]  # the next one is the last
            self._knobs = versions_of(inputs)
        return self._ahead.pop()

    def of_next(self, knobs: dict[str, Tensor], step: Tensor) -> Tensor:
        """Return float64 [AHEAD, L, scalars + averages] of this and later steps on their device."""
        steps = step[:, None] + torch.arange(AHEAD, device=step.device)
        inputs = {path: knobs[path] for path in self._paths}
        return self._traced(inputs, steps).transpose(0, 1).contiguous()

    def note_step(self, step: Tensor) -> None:
        """Note which tensor holds the steps after the update."""
        self._step = versions_of([step])

    def _one(self, knobs: dict[str, Tensor], step: Tensor) -> Tensor:
        optimizer = plugins.bind(self._optimizer, knobs, "optimizer")
        averaging = plugins.bind(self._averaging, knobs, "averaging")
        steps = torch.as_tensor(plugins.bind(self._training, knobs, "training").steps)
        rate = optimizer.scheduled_rate(step, steps)
        scalars = [exact(optimizer.clip_norm), *_of_optimizer(optimizer, rate, step)]
        weights = torch.zeros(0, dtype=torch.float64, device=step.device)  # [k]
        if isinstance(averaging, Ema | Bema):
            weights = decay_weight(averaging.rho, averaging.kappa, step).reshape(1)
        elif isinstance(averaging, BemaGrid):
            weights = decay_weight(averaging.rho, averaging.powers(step.device)[:, 0], step)
        return torch.cat([torch.stack([exact(scalar) for scalar in scalars]), weights])


SCALARS = 10
"""Scalars of the optimizer, before the averages' weights."""


def _of_optimizer(optimizer: Optimizer, rate: Tensor, step: Tensor) -> list[Tensor]:
    """Return the scalars from STEP_SIZE to MATRIX_MOMENTUM of update.hpp."""
    zero = torch.zeros_like(rate)
    if isinstance(optimizer, StochasticGradientDescent):
        return [rate, exact(optimizer.weight_decay), exact(optimizer.momentum), *[zero] * 6]
    assert isinstance(optimizer, TwoMoments)
    beta1, beta2, decay = exact(optimizer.beta1), exact(optimizer.beta2), exact(optimizer.weight_decay)
    own_rate = rate * exact(optimizer.other_rate) if isinstance(optimizer, Muon) else rate
    return [
        own_rate / correction(beta1, step),
        decay if isinstance(optimizer, Adam) else own_rate * decay,
        1 - beta1,
        1 - beta2,
        correction(beta2, step).sqrt(),
        exact(optimizer.epsilon),
        *([rate, rate * decay, exact(optimizer.momentum)] if isinstance(optimizer, Muon) else [zero] * 3),
    ]
