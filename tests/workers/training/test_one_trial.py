"""One lane against plain PyTorch: nn.Module, torch.optim.AdamW, clip_grad_norm_, LambdaLR, written independently."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.trials import FIRST_STEP, config, random_knobs, set_parameters, trial
from workers.data.tasks.set_complement import SetComplement
from workers.engine.pack import Pack
from workers.numerics.randomness import Purpose, Streams, keep_mask
from workers.training.averaging import Variant
from workers.training.averaging.bema import Bema
from workers.training.averaging.bema_grid import BemaGrid
from workers.training.averaging.ema import Ema
from workers.training.schedules.linear import Linear


class PlainTransformer(nn.Module):
    """The minimal transformer as one would write it for a single model, one occurrence at a time."""

    def __init__(self, start: dict[str, Tensor], epsilon: float, rates: tuple[float, float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.rates = rates
        for name, value in start.items():
            self.register_parameter(name, nn.Parameter(value.clone()))
        self.epsilon = epsilon

    def forward(self, tokens: Tensor, keep: tuple[Tensor, Tensor] | None = None) -> Tensor:
        stream = nn.functional.embedding(tokens, self.embedding)
        if keep:
            stream = stream * keep[0] / (1 - self.rates[0])
        normed = nn.functional.rms_norm(stream, (stream.shape[-1],), self.norm, self.epsilon)
        query, key, value = normed @ self.query, normed @ self.key, normed @ self.value
        rows = value @ self.output
        if keep:
            rows = rows * keep[1] / (1 - self.rates[1])
        mixed = nn.functional.scaled_dot_product_attention(query, key, rows, is_causal=True)
        return (stream + mixed) @ self.unembedding


def dropout_mask(seed: int, step: int, site: int, rate: float, *shape: int) -> Tensor:
    """Return the mask of a trial at a step, drawn for it alone."""
    streams = Streams.of(torch.tensor([seed]), Purpose.DROPOUT, step, site)
    return keep_mask(streams, torch.tensor([rate], dtype=torch.float64), *shape)[0]


def train_plainly(start: dict[str, Tensor], settings: dict, seed: int) -> list[dict[str, Tensor]]:
    """Parameters before and after each step, by torch's own optimizer, clipping and scheduler."""
    optimizer, schedule = settings["optimizer"], settings["optimizer"]["schedule"]
    steps, warmup = settings["training"]["steps"], schedule["warmup"]
    rates = (settings["model"]["embedding_dropout"], settings["model"]["residual_dropout"])
    model = PlainTransformer(start, settings["model"]["norm_epsilon"], rates)
    free = [model.embedding, model.norm]
    decayed = [model.query, model.key, model.value, model.output, model.unembedding]
    adamw = torch.optim.AdamW(
        [{"params": decayed}, {"params": free, "weight_decay": 0.0}],
        lr=optimizer["learning_rate"],
        betas=(optimizer["beta1"], optimizer["beta2"]),
        eps=optimizer["epsilon"],
        weight_decay=optimizer["weight_decay"],
    )

    def factor(n: int) -> float:
        if n < warmup:
            return (n + 1) / (warmup + 1)
        return 1 - (1 - schedule["end_multiplier"]) * (n - warmup) / max(1, steps - warmup)

    scheduler = torch.optim.lr_scheduler.LambdaLR(adamw, factor)
    task = SetComplement(length=settings["task"]["length"], vocabulary=settings["task"]["vocabulary"])
    path = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    for step in range(steps):
        streams = Streams.of(torch.tensor([seed]), Purpose.TRAINING_DATA, step)
        batch = task.training(streams, settings["training"]["batch"], FIRST_STEP)
        shape = (*batch["inputs"][0].shape, settings["model"]["width"])
        masks = [dropout_mask(seed, step, site, rate, *shape) for site, rate in enumerate(rates)]
        logits = model(batch["inputs"][0], (masks[0], masks[1]) if any(rates) else None)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"][0].flatten())
        adamw.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), optimizer["clip_norm"])
        adamw.step()
        scheduler.step()
        path.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return path


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_lane_alone_equals_plain_pytorch(seed: int, dropout: bool) -> None:
    """With dropout, plain PyTorch is given the same masks, and applies them where paper 003 (3.2) says."""
    settings = config(steps=25, every=100, **random_knobs(random.Random(seed), dropout=dropout))
    candidate = trial(0, settings)
    pack = Pack(candidate, width=1)
    pack.fill([candidate])
    start = {name: p.clone() for name, p in pack.parameters(0).items()}
    path = train_plainly(start, settings, candidate.seed)
    for step in range(1, 25):
        pack.train(1)
        for name, value in pack.parameters(0).items():
            torch.testing.assert_close(value, path[step][name], rtol=1e-10, atol=1e-10)


def bema_by_numpy(path: np.ndarray, rho: float, kappa: float, eta: float) -> tuple[np.ndarray, np.ndarray]:
    """EMA and BEMA after the last point of `path` [n+1, P], from the definitions in paper 003, 4.5."""
    average = path[0].copy()
    for n in range(len(path) - 1):
        beta = (rho + n) ** (-kappa)
        average = (1 - beta) * average + beta * path[n + 1]
    last = len(path) - 1
    return average, (rho + last) ** (-eta) * (path[last] - path[0]) + average


@pytest.mark.parametrize(
    ("rho", "kappa", "eta"), [(1, 1, 0.5), (1, 0, 0), (10, 0.5, 0.2), (1e10, 1, 1), (3.7, 0.9, 0.1)]
)
def test_ema_and_bema_equal_an_independent_implementation(rho: float, kappa: float, eta: float) -> None:
    path = np.random.default_rng(0).normal(size=(200, 11))
    points = torch.tensor(path)
    bema = Bema(rho=rho, kappa=kappa, eta=eta)
    ema = Ema(rho=rho, kappa=kappa)
    corrected, plain = bema.start(points[0]), ema.start(points[0])
    for n in range(len(path) - 1):
        corrected = bema.update(corrected, points[n + 1], torch.tensor(n))
        plain = ema.update(plain, points[n + 1], torch.tensor(n))
    last = torch.tensor(len(path) - 1)
    expected_ema, expected_bema = bema_by_numpy(path, rho, kappa, eta)
    np.testing.assert_allclose(plain["ema"].numpy(), expected_ema, rtol=0, atol=1e-12)
    average = bema.average(corrected, points[-1], last, torch.tensor(0)).numpy()
    np.testing.assert_allclose(average, expected_bema, rtol=0, atol=1e-12)


def test_the_grid_is_bema_and_ema_for_each_pair_of_powers() -> None:
    points = torch.tensor(np.random.default_rng(0).normal(size=(40, 11)))
    grid = BemaGrid(rho=3.7, kappas=4, etas=2)
    shadow, last = grid.start(points[0]), torch.tensor(len(points) - 1)
    for n in range(len(points) - 1):
        shadow = grid.update(shadow, points[n + 1], torch.tensor(n))
    averages = {
        variant: grid.average(shadow, points[-1], last, torch.tensor(index)).numpy()
        for index, variant in enumerate(grid.variants)
    }
    assert len(averages) == 4 * 2 + 4
    for kappa in (0.25, 0.5, 0.75, 1.0):
        for eta in (0.5, 1.0):
            expected_ema, expected_bema = bema_by_numpy(points.numpy(), 3.7, kappa, eta)
            bema = averages[Variant("bema", f"kappa={kappa:g} eta={eta:g}")]
            np.testing.assert_allclose(bema, expected_bema, rtol=0, atol=1e-12)
            np.testing.assert_allclose(averages[Variant("ema", f"kappa={kappa:g}")], expected_ema, rtol=0, atol=1e-12)


def test_the_grid_of_a_trial_is_what_trials_with_each_pair_of_powers_get() -> None:
    settings = config(steps=12, every=12)
    grid = {**settings, "averaging": {"name": "bema_grid", "rho": 2.0, "kappas": 2, "etas": 2}}
    metrics = last_metrics(grid)
    assert len(metrics) == 3 * (1 + 4 + 2) + 1  # and the training loss
    for kappa in (0.5, 1.0):
        for eta in (0.5, 1.0):
            bema = {**settings, "averaging": {"name": "bema", "rho": 2.0, "kappa": kappa, "eta": eta}}
            alone = last_metrics(bema)
            for metric in ("tvd", "itp", "itr"):
                in_grid = metrics[metric, "bema", f"kappa={kappa:g} eta={eta:g}"]
                assert in_grid == pytest.approx(alone[metric, "bema", ""], abs=1e-12)
                assert metrics[metric, "raw", ""] == pytest.approx(alone[metric, "raw", ""], abs=1e-12)


def last_metrics(settings: dict) -> dict[tuple[str, str, str], float]:
    """Return what a trial with seed 5 reports at its end: (name, variant, condition) -> value."""
    candidate = trial(0, settings, seed=5)
    pack = Pack(candidate, width=1)
    pack.fill([candidate])
    [report] = pack.train(1000)
    return {(metric.name, metric.variant, metric.condition): metric.value for metric in report.metrics}


def test_rho_and_kappa_one_is_the_running_mean_of_what_came_after_the_start() -> None:
    path = torch.tensor(np.random.default_rng(1).normal(size=(50, 7)))
    ema = Ema(rho=1, kappa=1)
    shadow = ema.start(path[0])
    for n in range(len(path) - 1):
        shadow = ema.update(shadow, path[n + 1], torch.tensor(n))
    torch.testing.assert_close(shadow["ema"], path[1:].mean(0), rtol=0, atol=1e-12)


def test_the_bema_metrics_of_a_trial_are_those_of_the_bema_of_its_path() -> None:
    settings = config(steps=20, every=20, **random_knobs(random.Random(9), dropout=False))
    settings["averaging"] |= {"rho": 2.0, "kappa": 0.6, "eta": 0.3}
    candidate = trial(0, settings)
    pack = Pack(candidate, width=1)
    pack.fill([candidate])
    path = train_plainly({name: p.clone() for name, p in pack.parameters(0).items()}, settings, candidate.seed)
    reported = {(m.name, m.variant): m.value for m in pack.train(1000)[0].metrics}
    flat = np.stack([torch.cat([p.flatten() for p in point.values()]).numpy() for point in path])
    _, bema = bema_by_numpy(flat, 2.0, 0.6, 0.3)
    other = Pack(candidate, width=1)
    other.fill([candidate])
    names, sizes = list(path[0]), [p.numel() for p in path[0].values()]
    pieces = torch.tensor(bema).split(sizes)
    set_parameters(other, 0, {name: piece.view(path[0][name].shape) for name, piece in zip(names, pieces, strict=True)})
    evaluated = {(m.name, m.variant): m.value for m in other.evaluate([0])[0]}
    for metric in ("tvd", "itp", "itr"):
        assert reported[metric, "bema"] == pytest.approx(evaluated[metric, "raw"], abs=1e-10)


def test_the_linear_schedule_rises_to_the_peak_and_falls_to_its_end() -> None:
    schedule = Linear(warmup=4, end_multiplier=0.1)
    factors = [float(schedule.factor(torch.tensor(n), torch.tensor(10))) for n in range(11)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[4:] == pytest.approx(np.linspace(1, 0.1, 7))
    assert math.isclose(float(Linear(warmup=0).factor(torch.tensor(0), torch.tensor(10))), 1.0)
    beyond = Linear(warmup=100)
    assert float(beyond.factor(torch.tensor(9), torch.tensor(10))) == pytest.approx(10 / 101)


def test_the_model_runs_its_whole_warmup_when_it_is_longer_than_the_run() -> None:
    candidate = trial(0, config(steps=5, every=5, optimizer={"schedule": {"name": "linear", "warmup": 1000}}))
    pack = Pack(candidate, width=1)
    pack.fill([candidate])
    (report,) = pack.train(10)
    assert report.state == "finished"
    assert report.step == 5
