"""A trial trained and evaluated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.oracles.pieces.averages import Shadow
from tests.oracles.pieces.optimizers import Moments
from tests.oracles.pieces.parameters import Batch, Values, start_parameters
from tests.oracles.pieces.parts import build
from tests.oracles.pieces.streams import DROPOUT, VALIDATION_DATA, keep_mask, open_stream

State = tuple[Values, Moments, Shadow]
Key = tuple[int, str, str, str]
"""Step, metric, variant and condition."""


class Stage:
    """A configuration with its seed."""

    def __init__(self, seed: int, config: Mapping[str, Any]) -> None:
        self.seed, self.training = seed, config["training"]
        self.task, self.model, self.optimizer, self.averaging, self.learning = (
            build(family, config[family]) for family in ("task", "model", "optimizer", "averaging", "learning")
        )
        self.shapes = self.learning.shapes(self.model.parameters(self.task))

    def start(self) -> State:
        """Return the state before the first step."""
        values = start_parameters(self.shapes, self.seed, 0, getattr(torch, self.training["dtype"]))
        return values, self.learning.start(self.optimizer, self.shapes, values), self.averaging.start(values)

    def step(self, state: State, n: int) -> tuple[State, float]:
        """Return the state after update n = 0, 1, ..., and the loss before it."""
        batch = self.learning.batch(self.task, self.seed, self.training["batch"], n)
        sites = self.model.sites(self.task, self.training["batch"], batch["inputs"].shape[1])
        keep = {
            name: keep_mask(open_stream(self.seed, DROPOUT, n, site), rate, shape)
            for site, (name, (shape, rate)) in enumerate(sites.items())
            if rate
        }

        def loss_of(values: Values, batch: Batch) -> Tensor:
            return self.task.loss(self.model.outputs(values, batch, keep), batch)

        values, moments = self.learning.reset(self.optimizer, self.shapes, state[:2], self.seed, n)
        gradients, loss = self.learning.gradients(self.shapes, values, batch, loss_of)
        values, moments = self.learning.descend(
            self.optimizer, self.shapes, (values, moments), gradients, n, self.training["steps"]
        )
        return (values, moments, self.averaging.consume(state[2], values, n)), float(loss)

    def evaluate(self, state: State, n: int, sets: Mapping[str, Batch]) -> dict[Key, float]:
        """Return every metric after n updates: of raw and averaged parameters, on all sets, as all evaluations have
        it.
        """
        values, _, shadow = state
        metrics: dict[Key, float] = {}
        for variant, rest, weights in (("raw", "", values), *self.averaging.variants(shadow, values, n)):
            for condition, batch in sets.items():
                for label, model in self.model.evaluations().items():
                    where = " ".join(part for part in (condition, label, rest) if part)
                    for name, value in self._average(model, weights, batch).items():
                        metrics[n, name, variant, where] = value
        return metrics

    def _average(self, model: Any, values: Values, batch: Batch) -> Mapping[str, float]:
        """Return each metric's mean over a set, of which a part is evaluated at a time."""
        count, length = batch["inputs"].shape[:2]
        together = self.task.evaluated_together
        size = max(1, 2**14 // length // together) * together
        sums: dict[str, float] = {}
        for start in range(0, count, size):
            part = {name: tensor[start : start + size] for name, tensor in batch.items()}
            metrics = self.learning.evaluate(
                values, lambda tensors, part=part: self.task.metrics(model.outputs(tensors, part, {}), part)
            )
            for name, numbers in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(numbers.double().sum())
        return self.task.summarize({name: total / count for name, total in sums.items()})


def train(
    given: Sequence[Mapping[str, Any]], evaluation_seed: int, steps: Collection[int]
) -> tuple[dict[Key, float], str | None]:
    """Return all metrics at these steps, and how the trial diverged, if it did.

    `given` are seed, configuration and last step (`until`) of the trial, after those of the trials whose state it took
    over. The caller sets torch to count numbers below the smallest normal one as zero.
    """
    stages = [Stage(stage["seed"], stage["config"]) for stage in given]
    last, state = stages[-1], stages[0].start()
    opened = (open_stream(evaluation_seed, VALIDATION_DATA, 0, site) for site in (0, 1))
    plain, shifted, count = *opened, last.training["validation_batch"]
    sets = {"": last.task.validation(plain, count), **last.task.shifted_sets(shifted, count)}
    history: dict[Key, float] = {}
    n = 0
    for stage, end in zip(stages, (part["until"] for part in given), strict=True):
        losses: list[float] = []
        while n < end:
            state, loss = stage.step(state, n)
            n += 1
            losses.append(loss)
            if not math.isfinite(loss):
                return history, f"the training loss was not finite at step {n}"
            if n % stage.training["validate_every"] and n != stage.training["steps"]:
                continue
            if stage is last and n in steps:
                with torch.no_grad():
                    metrics = stage.evaluate(state, n, sets)
                history |= metrics
                if not all(map(math.isfinite, metrics.values())):
                    return history, f"a validation metric was not finite at step {n}"
                history[n, "loss", "raw", ""] = sum(losses) / len(losses)
            losses = []
    return history, None
