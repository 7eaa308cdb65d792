"""The trial trained, evaluated and compared with what is stored."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from graft.exports.scripts.pieces.averages import Shadow
from graft.exports.scripts.pieces.optimizers import Moments
from graft.exports.scripts.pieces.parameters import Batch, Values, start_parameters
from graft.exports.scripts.pieces.parts import build
from graft.exports.scripts.pieces.streams import DROPOUT, VALIDATION_DATA, keep_mask, open_stream
from graft.exports.scripts.pieces.trial import DIVERGENCE, EVALUATION_SEED, NOT_COMPUTED, STAGES, STORED

TOLERANCE = 1e-5
"""Largest difference that counts as agreement: relative to the larger number, absolute below 1."""

State = tuple[Values, Moments, Shadow]


class Stage:
    """A configuration with its seed."""

    def __init__(self, seed: int, config: Mapping[str, Any]) -> None:
        self.seed, self.training = seed, config["training"]
        self.task, self.model, self.optimizer, self.averaging, self.learning = (
            build(family, config[family]) for family in ("task", "model", "optimizer", "averaging", "learning")
        )
        self.shapes = self.learning.shapes(self.model.parameters(self.task))

    def start(self) -> State:
        """Before the first step."""
        values = start_parameters(self.shapes, self.seed, 0, getattr(torch, self.training["dtype"]))
        return values, self.learning.start(self.optimizer, self.shapes, values), self.averaging.start(values)

    def step(self, state: State, n: int) -> tuple[State, float]:
        """Return the state after update n = 0, 1, ..., and the loss before it."""
        batch = self.learning.batch(self.task, self.seed, self.training["batch"], n)
        sites = self.model.sites(self.task, self.training["batch"], batch["inputs"].shape[1])
        keep = {
            name: keep_mask(open_stream(self.seed, DROPOUT, n, place), rate, shape)
            for place, (name, (shape, rate)) in enumerate(sites.items())
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

    def evaluate(self, state: State, n: int, sets: Mapping[str, Batch]) -> dict[tuple[int, str, str, str], float]:
        """Return every metric after n updates: of raw and averaged parameters, on all sets, as all evaluations have
        it.
        """
        values, _, shadow = state
        found: dict[tuple[int, str, str, str], float] = {}
        for variant, rest, own in (("raw", "", values), *self.averaging.variants(shadow, values, n)):
            for condition, batch in sets.items():
                for label, model in self.model.evaluations().items():
                    where = " ".join(part for part in (condition, label, rest) if part)
                    for name, value in self._average(model, own, batch).items():
                        found[n, name, variant, where] = value
        return found

    def _average(self, model: Any, values: Values, batch: Batch) -> Mapping[str, float]:
        """Return each metric's mean over a set, of which a part is evaluated at a time."""
        count, length = batch["inputs"].shape[:2]
        together = self.task.evaluated_together
        size = max(1, 2**14 // length // together) * together
        sums: dict[str, float] = {}
        for start in range(0, count, size):
            part = {name: tensor[start : start + size] for name, tensor in batch.items()}
            metrics = self.learning.evaluate(
                values, lambda own, part=part: self.task.metrics(model.outputs(own, part, {}), part)
            )
            for name, numbers in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(numbers.double().sum())
        return self.task.summarize({name: total / count for name, total in sums.items()})


def train(until: int) -> tuple[dict[tuple[int, str, str, str], float], str | None]:
    """Return all metrics up to this step at the steps that are stored, and how the trial diverged, if it did."""
    torch.set_flush_denormal(True)  # numbers below the smallest normal one count as zero
    stages = [Stage(stage["seed"], stage["config"]) for stage in STAGES]
    last, state = stages[-1], stages[0].start()
    opened = (open_stream(EVALUATION_SEED, VALIDATION_DATA, 0, site) for site in (0, 1))
    plain, shifted, count = *opened, last.training["validation_batch"]
    sets = {"": last.task.validation(plain, count), **last.task.shifted_sets(shifted, count)}
    found: dict[tuple[int, str, str, str], float] = {}
    n, stored = 0, {step for step, *_ in STORED}
    for stage, end in zip(stages, (one["until"] for one in STAGES), strict=True):
        losses: list[float] = []
        while n < min(end, until):
            state, loss = stage.step(state, n)
            n += 1
            losses.append(loss)
            if not isfinite(loss):
                return found, f"the training loss was not finite at step {n}"
            if n % stage.training["validate_every"] and n != stage.training["steps"]:
                continue
            if stage is last and n in stored:
                with torch.no_grad():
                    metrics = stage.evaluate(state, n, sets)
                found |= metrics
                if not all(map(isfinite, metrics.values())):
                    return found, f"a validation metric was not finite at step {n}"
                found[n, "loss", "raw", ""] = sum(losses) / len(losses)
            losses = []
    return found, None


def differ(one: float | None, other: float | None) -> float:
    """|one - other|, relative to the larger of them where that is above 1; None: no finite number."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return abs(one - other) / max(1.0, abs(one), abs(other))


def main() -> int:
    """Print each stored metric beside the one computed here, and whether they agree; 1 if they do not."""
    last = int(sys.argv[1]) if len(sys.argv) > 1 else STAGES[-1]["until"]
    found, divergence = train(last)
    compared = {key: value for key, value in STORED.items() if key[0] <= last}
    print("stored\there\tdifference\tmetric")
    worst, agreed = 0.0, 0
    for key, value in compared.items():
        step, *name = key
        here = found.get(key)
        here = None if here is None or not isfinite(here) else here
        difference = differ(value, here)
        worst, agreed = max(worst, difference), agreed + (difference <= TOLERANCE)
        print(f"{value}\t{here}\t{difference:.1e}\t{'/'.join(part for part in name if part)} at step {step}")
    expected = DIVERGENCE if last >= STAGES[-1]["until"] else None
    print(f"{agreed} of {len(compared)} metrics agree within {TOLERANCE:g}; the largest difference is {worst:.1e}")
    if NOT_COMPUTED:
        print(f"stored, but not computed here: {', '.join(NOT_COMPUTED)}")
    if divergence != expected:
        print(f"stored: {expected or 'no divergence'}; here: {divergence or 'no divergence'}")
    return int(agreed < len(compared) or divergence != expected)


if __name__ == "__main__":
    sys.exit(main())
