"""The trial trained, evaluated and compared with what is stored."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from graft.exports.scripts.pieces.averages import Shadow
from graft.exports.scripts.pieces.optimizers import Moments
from graft.exports.scripts.pieces.parameters import Batch, Values, start_parameters
from graft.exports.scripts.pieces.parts import build
from graft.exports.scripts.pieces.streams import DROPOUT, INITIAL, VALIDATION_DATA, draw_uniform, keep_mask, open_stream
from graft.exports.scripts.pieces.trial import DIVERGENCE, EVALUATION_SEED, NOT_COMPUTED, STAGES, STORED

TOLERANCE = 1e-5
"""Largest difference that counts as agreement: relative to the larger number, absolute below 1."""

NEIGHBOURS = 4
"""Trainings from starts that differ by one last bit, which tell rounding from a mistake."""
MOST_OF_SPREAD = 4.0
"""How far beyond TOLERANCE a metric may be: so many times what one last bit of the start changes it by. Rounding comes
in at every step and not at the start alone; in trials of all families it made up to 1.4 times of that change."""

State = tuple[Values, Moments, Shadow]
Key = tuple[int, str, str, str]
"""Step, metric, variant and condition."""
Metrics = Mapping[Key, float | None]


class Stage:
    """A configuration with its seed."""

    def __init__(self, seed: int, config: Mapping[str, Any]) -> None:
        self.seed, self.training = seed, config["training"]
        self.task, self.model, self.optimizer, self.averaging, self.learning = (
            build(family, config[family]) for family in ("task", "model", "optimizer", "averaging", "learning")
        )
        self.shapes = self.learning.shapes(self.model.parameters(self.task))

    def start(self, nudge: int = 0) -> State:
        """Return the state before the first step, with each parameter moved by one last bit for a `nudge` above 0."""
        values = start_parameters(self.shapes, self.seed, 0, getattr(torch, self.training["dtype"]))
        if nudge:
            values = move_by_a_bit(values, nudge)
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

    def evaluate(self, state: State, n: int, sets: Mapping[str, Batch]) -> dict[Key, float]:
        """Return every metric after n updates: of raw and averaged parameters, on all sets, as all evaluations have
        it.
        """
        values, _, shadow = state
        found: dict[Key, float] = {}
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


def move_by_a_bit(values: Values, nudge: int) -> Values:
    """Return the parameters with each number replaced by one of its two neighbours, which `nudge` draws."""
    moved: dict[str, Tensor] = {}
    for site, (name, tensor) in enumerate(values.items()):
        is_up = torch.from_numpy(draw_uniform(open_stream(nudge, INITIAL, 0, site), *tensor.shape) < 0.5)
        moved[name] = tensor.nextafter(torch.where(is_up, math.inf, -math.inf).to(tensor))
    return moved


def train(until: int, nudge: int = 0) -> tuple[dict[Key, float], str | None]:
    """Return all metrics up to this step at the steps that are stored, and how the trial diverged, if it did."""
    torch.set_flush_denormal(True)  # numbers below the smallest normal one count as zero
    stages = [Stage(stage["seed"], stage["config"]) for stage in STAGES]
    last, state = stages[-1], stages[0].start(nudge)
    opened = (open_stream(EVALUATION_SEED, VALIDATION_DATA, 0, site) for site in (0, 1))
    plain, shifted, count = *opened, last.training["validation_batch"]
    sets = {"": last.task.validation(plain, count), **last.task.shifted_sets(shifted, count)}
    found: dict[Key, float] = {}
    n, stored = 0, {step for step, *_ in STORED}
    for stage, end in zip(stages, (one["until"] for one in STAGES), strict=True):
        losses: list[float] = []
        while n < min(end, until):
            state, loss = stage.step(state, n)
            n += 1
            losses.append(loss)
            if not math.isfinite(loss):
                return found, f"the training loss was not finite at step {n}"
            if n % stage.training["validate_every"] and n != stage.training["steps"]:
                continue
            if stage is last and n in stored:
                with torch.no_grad():
                    metrics = stage.evaluate(state, n, sets)
                found |= metrics
                if not all(map(math.isfinite, metrics.values())):
                    return found, f"a validation metric was not finite at step {n}"
                found[n, "loss", "raw", ""] = sum(losses) / len(losses)
            losses = []
    return found, None


def differ(one: float | None, other: float | None) -> float:
    """|one - other|, relative to the larger of them where that is above 1; None stands for no finite number."""
    known = [value for value in (one, other) if value is not None and math.isfinite(value)]
    if len(known) < 2:
        return float("inf") if known else 0.0
    return abs(known[0] - known[1]) / max(1.0, *map(abs, known))


def measure_spread(here: Metrics, others: Sequence[Metrics], keys: Iterable[Key]) -> dict[Key, float]:
    """Return for each key by how much the metrics of this name differ between `here` and the others, at most.

    All variants, conditions and steps up to the key's count: accuracies move rarely, and rounding grows.
    """
    spread: dict[str, float] = {}
    found: dict[Key, float] = {}
    ordered = sorted(keys)
    for step in sorted({key[0] for key in ordered}):
        now = [key for key in ordered if key[0] == step]
        for key in now:
            own = max(differ(here.get(key), other.get(key)) for other in others)
            spread[key[1]] = max(own, spread.get(key[1], 0.0))
        found |= {key: spread[key[1]] for key in now}
    return found


def main() -> int:
    """Print each stored metric beside the one computed here, and whether they agree; 1 if they do not.

    Where rounding is all that may differ, it is told from a mistake by trainings whose starts differ by one last bit.
    """
    last = int(sys.argv[1]) if len(sys.argv) > 1 else STAGES[-1]["until"]
    found, divergence = train(last)
    compared = {key: value for key, value in STORED.items() if key[0] <= last}
    differences = {key: differ(value, found.get(key)) for key, value in compared.items()}
    print("stored\there\tdifference\tmetric")
    for key, value in compared.items():
        print(f"{value}\t{found.get(key)}\t{differences[key]:.1e}\t{describe_key(key)}")
    outside = {key: difference for key, difference in differences.items() if difference > TOLERANCE}
    expected = DIVERGENCE if last >= STAGES[-1]["until"] else None
    agreed, worst = len(compared) - len(outside), max(differences.values(), default=0.0)
    print(f"{agreed} of {len(compared)} metrics agree within {TOLERANCE:g}; the largest difference is {worst:.1e}")
    if NOT_COMPUTED:
        print(f"stored, but not computed here: {', '.join(NOT_COMPUTED)}")
    if divergence != expected:
        print(f"stored: {expected or 'no divergence'}; here: {divergence or 'no divergence'}")
    if not outside and divergence == expected:
        return 0
    print(f"trained {NEIGHBOURS} times more, from starts that differ by one last bit:", flush=True)
    trained = [train(last, nudge) for nudge in range(1, NEIGHBOURS + 1)]
    spread = measure_spread(found, [metrics for metrics, _ in trained], compared)
    mistaken = [key for key in outside if outside[key] > MOST_OF_SPREAD * spread[key]]
    endings = {divergence, *(ending for _, ending in trained)}
    may_end_so = expected in endings or (None not in {expected, *endings} and len(endings) > 1)
    if not mistaken and may_end_so:
        print(f"all differences are rounding's: at most {MOST_OF_SPREAD:g} times what that bit changes")
        return 0
    for key in mistaken[:1]:
        print(
            f"{len(mistaken)} differences are larger than rounding's: {describe_key(key)} differs by "
            f"{outside[key]:.1e}, and that bit changes it by {spread[key]:.1e}"
        )
    if not may_end_so:
        print(f"none of them ends as it is stored: {expected or 'no divergence'}")
    return 1


def describe_key(key: Key) -> str:
    """Return a metric's name with variant, condition and step: `tvd/bema at step 3`."""
    return f"{'/'.join(part for part in key[1:] if part)} at step {key[0]}"


if __name__ == "__main__":
    sys.exit(main())
