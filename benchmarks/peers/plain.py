"""Training one model at a time in plain PyTorch, as one writes it without a framework, with everything torch offers.

Nothing of Graft is used, so that it is an oracle too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.peers.problem import Batch, Knobs, PlainModel, Problem


class Bema:
    """BEMA of a model's parameters (paper 003, 4.5), all of them in one operation per step."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, rho: float, kappa: float, eta: float) -> None:
        self._current = [p.detach() for p in parameters]
        self._initial = [p.clone() for p in self._current]
        self._average = [p.clone() for p in self._current]
        self._rho, self._kappa, self._eta = rho, kappa, eta
        self._step = 0

    def update(self) -> None:
        torch._foreach_lerp_(self._average, self._current, (self._rho + self._step) ** -self._kappa)
        self._step += 1

    def parameters(self) -> list[Tensor]:
        """Return the averaged parameters, in the model's order."""
        moved = torch._foreach_sub(self._current, self._initial)
        return list(torch._foreach_add(self._average, moved, alpha=(self._rho + self._step) ** -self._eta))


@final
class PlainTrial:
    """One trial: model, fused AdamW, gradient clipping, schedule, BEMA."""

    def __init__(self, problem: Problem, knobs: Knobs, *, seed: int, steps: int, device: str) -> None:
        torch.manual_seed(seed)
        self._problem, self._steps, self._device = problem, steps, device
        self._model = problem.model(knobs).to(device)
        self._parameters = list(self._model.parameters())
        self._clip_norm = knobs["optimizer.clip_norm"]
        self._optimizer = adamw(self._model, knobs)
        self._schedule = linear_schedule(self._optimizer, knobs, steps)
        self._bema = Bema(self._parameters, **{name: knobs[f"averaging.{name}"] for name in ("rho", "kappa", "eta")})

    def train(self, steps: int) -> float:
        """Train for so many steps; the mean training loss."""
        self._model.train()
        total = torch.zeros((), device=self._device)
        for _ in range(steps):
            batch = self._problem.training(self._device)
            loss = self._problem.loss(self._model(batch[0]), batch)
            self._optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm, foreach=True)
            self._optimizer.step()
            self._schedule.step()
            self._bema.update()
            total += loss.detach()
        return total.item() / steps

    def reports(self, every: int, validation_batch: int) -> Iterator[tuple[int, dict[str, float]]]:
        """Train to the end; the step and the metrics of each validation on the way, and of the end."""
        validation = self._problem.validation(validation_batch, self._device)
        for start in range(0, self._steps, every):
            stop = min(start + every, self._steps)
            loss = self.train(stop - start)
            yield stop, {"loss": loss, **self.validate(validation)}

    @torch.no_grad()
    def validate(self, validation: Batch) -> dict[str, float]:
        """Metrics by name, `tvd/raw` and `tvd/bema`."""
        self._model.eval()
        names = [name for name, _ in self._model.named_parameters()]
        metrics: dict[str, float] = {}
        for variant, parameters in {"raw": self._parameters, "bema": self._bema.parameters()}.items():
            logits = functional_call(self._model, dict(zip(names, parameters, strict=True)), (validation[0],))
            for name, value in self._problem.metrics(logits, validation).items():
                metrics[f"{name}/{variant}"] = value.item()
        return metrics


def adamw(model: PlainModel, knobs: Knobs) -> torch.optim.AdamW:
    """AdamW in one kernel."""
    decayed = model.decayed()
    exempt = {id(parameter) for parameter in decayed}
    free = [parameter for parameter in model.parameters() if id(parameter) not in exempt]
    return torch.optim.AdamW(
        [{"params": decayed}, {"params": free, "weight_decay": 0.0}],
        lr=knobs["optimizer.learning_rate"],
        betas=(knobs["optimizer.beta1"], knobs["optimizer.beta2"]),
        eps=knobs["optimizer.epsilon"],
        weight_decay=knobs["optimizer.weight_decay"],
        fused=True,
    )


def linear_schedule(optimizer: torch.optim.Optimizer, knobs: Knobs, steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """Linear warm-up, then linear decay to `end_multiplier`."""
    warmup, end = knobs["optimizer.schedule.warmup"], knobs["optimizer.schedule.end_multiplier"]

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return 1 - (1 - end) * (step - warmup) / max(1, steps - warmup)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
