"""Trials of native steps have the same bits alone, and in packs that are refilled, resized, stopped and resumed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from spaces.records import Ancestor, Report, Trial
from tests.support.native_layered import AFFINE, COMPLEMENT, LANGUAGE, MASKED, REGRESSION
from tests.support.trials import config, trial
from workers.engine.checkpoints import Archive
from workers.engine.pack import Pack
from workers.engine.pack.lane_data import draw_training_batches
from workers.engine.step import NativeStep
from workers.numerics import native
from workers.training.recipe import Recipe

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")

STEPS, EVERY = 14, 5
DROPOUTS = ("embedding_dropout", "attention_dropout", "mlp_dropout", "weight_dropout")
RETRIEVAL = {"name": "max_retrieval", "smallest": 1, "items": 9, "largest": 16}

Knobs = Callable[[random.Random], dict[str, Any]]


def layered(name: str, **fields: Any) -> Knobs:
    """Return a layered model whose rates of dropout, norms and, where it has one, knobs of its scorer are random."""

    def draw(numbers: random.Random) -> dict[str, Any]:
        rates = {site: numbers.uniform(0.05, 0.4) for site in DROPOUTS}
        return {"name": name, "width": 12, "heads": 2, "norm_epsilon": numbers.uniform(1e-6, 0.1), **rates, **fields}

    return draw


def ssa(numbers: random.Random) -> dict[str, Any]:
    model = layered("transformer", pre_norm=False, canon="ABCD", activation={"name": "swiglu"})(numbers)
    return model | {"scorer": {"name": "ssa_fixed", "b": numbers.uniform(0.2, 2), "n": numbers.uniform(1, 2)}}


def rotary(numbers: random.Random) -> dict[str, Any]:
    model = layered("regressor", query_key_norm=True, activation={"name": "spline"})(numbers)
    return model | {"position": {"name": "rotary", "base": numbers.uniform(5, 500)}}


def pooling(numbers: random.Random) -> dict[str, Any]:
    return {
        "name": "attention_pooling",
        "width": 12,
        "scorer": {"name": "softmax", "temperature": numbers.random() + 1},
    }


def linearised(numbers: random.Random) -> dict[str, Any]:
    return {"name": "linearised_attention", "temperature": numbers.uniform(0.5, 2)}


def linear(numbers: random.Random) -> dict[str, Any]:
    return {**linearised(numbers), "centred": False}


FAMILIES: dict[str, tuple[dict[str, Any], Knobs]] = {
    "language": (LANGUAGE, layered("transformer", tied=True)),
    "set complement": (COMPLEMENT, ssa),
    "masked": (MASKED, layered("encoder", bias=False, norm="rms_norm")),
    "curriculum": (AFFINE | {"curriculum_every": 4, "curriculum_start": 3}, rotary),
    "pooling": (RETRIEVAL, pooling),
    "linearised": (REGRESSION, linearised),
    "linear": (REGRESSION, linear),
}
AVERAGINGS = {"linearised": {"name": "bema_grid", "kappas": 2, "etas": 2}, "masked": {"name": "ema", "kappa": 0.6}}
OPTIMIZERS = {"set complement": {"name": "muon"}, "pooling": {"name": "sgd"}}


def trials_of(family: str, count: int) -> list[Trial]:
    """Trials of one structure, every knob of which is random; the last ones are longer."""
    task, model = FAMILIES[family]
    numbers = random.Random(family)
    trials: list[Trial] = []
    for number in range(count):
        rate = {"learning_rate": 10 ** numbers.uniform(-3, -1.5), "clip_norm": numbers.uniform(0.1, 2)}
        optimizer = {**OPTIMIZERS.get(family, {"name": "adamw"}), **rate}
        averaging = AVERAGINGS.get(family)
        settings = config(steps=STEPS + number, every=EVERY, dtype="float32", optimizer=optimizer, averaging=averaging)
        settings["task"], settings["model"] = task, model(numbers)
        settings["training"] |= {"batch": 7, "validation_batch": 12}
        trials.append(trial(number, settings))
    assert len({candidate.structure for candidate in trials}) == 1
    return trials


Seen = dict[tuple[int, int], Report]


def train(pack: Pack, seen: Seen, most: int = 1000) -> None:
    """Return reports by number and step, whichever start of the trial they are of."""
    seen.update({(report.number, report.step): replace(report, fence=0) for report in pack.train(most)})


def alone(candidate: Trial) -> Seen:
    pack, seen = Pack(candidate, width=2), Seen()
    pack.fill([candidate])
    while pack.running:
        train(pack, seen)
    return seen


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_refilled_resized_stopped_and_resumed(family: str, tmp_path: Path) -> None:
    *first, second, third = trials = trials_of(family, 5)
    archive, seen = Archive(str(tmp_path), "study"), Seen()
    pack = Pack(first[0], width=3)
    assert isinstance(pack._step, NativeStep)  # pyright: ignore[reportPrivateUsage]
    pack.fill(first)
    train(pack, seen, 4)
    pack.resize(7)
    pack.fill([second])
    train(pack, seen, 1)
    train(pack, seen, 3)
    snapshot = pack.snapshot()
    assert snapshot
    saved = {checkpoint.number: checkpoint for checkpoint in archive.write("worker", snapshot)}
    train(pack, seen, 2)  # is lost, and made again
    resumed = [
        replace(candidate, fence=1, checkpoints=(saved[candidate.number],)) for candidate in (second, *reversed(first))
    ]
    other = Pack(second, width=4, archive=archive)
    other.fill(resumed)
    assert [lane.step for lane in other.lanes if lane] == [4, 8, 8, 8]
    while other.running:
        train(other, seen)
        if third.number not in other.running and other.free and (third.number, EVERY) not in seen:
            other.fill([third])
    assert seen == {key: report for candidate in trials for key, report in alone(candidate).items()}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("family", FAMILIES)
def test_free_lanes_at_the_end_are_left_out_of_the_gradient(family: str) -> None:
    """Whatever stands in them, the first lane's step is the same to the bit."""
    candidate, other = trials_of(family, 2)
    pack = Pack(candidate, width=3)
    pack.fill([candidate, other])
    step, tensors, lanes = pack._step, pack._tensors, pack.lanes  # pyright: ignore[reportPrivateUsage]
    [batch] = draw_training_batches(Recipe.of(candidate.config), lanes, tensors)
    whole = step(tensors.knobs, tensors.seeds, tensors.state, batch)
    tensors.state.parameters[1:] = torch.nan
    alone = step(tensors.knobs, tensors.seeds, tensors.state, batch, 1)
    assert torch.equal(alone.parameters[0], whole.parameters[0])
    assert not alone.loss_sum[1:].any()
    assert whole.loss_sum[:2].all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
def test_copies_of_a_population(family: str) -> None:
    """A copy takes over its parent's state among neighbours, or, alone, trains along its line."""
    parent, neighbour, knobs = trials_of(family, 3)
    line = (Ancestor(parent.number, parent.seed, parent.config, EVERY),)
    copy = replace(knobs, number=9, seed=12_345, lineage=line)
    pack, seen = Pack(parent, width=3), Seen()
    pack.fill([parent, neighbour])
    train(pack, seen, EVERY)
    pack.fill([copy])
    while pack.running:
        train(pack, seen)
    expected = alone(copy)
    assert {step for _, step in expected} == {10, 15, 16}
    assert {key: report for key, report in seen.items() if key[0] == 9} == expected
