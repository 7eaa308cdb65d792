"""Steps for which there is no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from spaces.records import Directives, Offer, Trial
from tests.support.trials import replace_step
from tests.support.worker import FakeController
from workers.engine.pack import Pack
from workers.engine.pack.lanes import NARROWEST
from workers.engine.speed.widths import WIDEST

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class StepWithoutRoom:
    """A pack's step that runs out of memory every seventh time, in a pack that is too wide."""

    def __init__(self, step: Any, pack: Cramped) -> None:
        self._step, self._pack = step, pack

    def __call__(self, *arguments: Any) -> Any:
        state = self._step(*arguments)
        if self._pack.width > self._pack.stepping and int(state.step.max()) % 7 == 0:
            raise FULL
        return state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


class Cramped(Pack):
    """A pack whose device has memory for so many lanes."""

    making = WIDEST
    stepping = WIDEST
    resizing = WIDEST

    def __init__(self, trial: Trial, *, width: int, device: str) -> None:
        if max(width, NARROWEST) > self.making:
            raise FULL
        super().__init__(trial, width=width, device=device)
        replace_step(self, StepWithoutRoom(self._step, self))

    def resize(self, width: int) -> None:
        if width > self.resizing:
            raise FULL
        super().resize(width)


class RequeueingController(FakeController):
    """Takes back what runs, is not over, and is not held."""

    def exchange(self, reports: Any, offer: Offer) -> Directives:
        held = {start.number for start in offer.holds}
        over = {report.number for report in reports if report.state != "running"}
        assert held <= self.running - over
        self.dropped.append(sorted(self.running - over - held))
        self.running -= set(self.dropped[-1])
        self.waiting = [self.all[number] for number in self.dropped[-1]] + self.waiting
        return replace(super().exchange(reports, offer), waiting_per_running=9.0)

    def __init__(self, trials: list[Trial]) -> None:
        super().__init__(trials)
        self.all = {trial.number: trial for trial in trials}
        self.dropped: list[list[int]] = []
