"""What is measured on trained models for the papers: exact tables of set complement, estimated temperatures."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

import graft
from benchmarks.papers import calibrated, precision
from benchmarks.papers.plan import StudyPlan, read_plan
from benchmarks.papers.precision import Tables, measure
from benchmarks.papers.trials import train
from workers.networks.models.minimal import Minimal
from workers.networks.scorers.average import Average
from workers.networks.scorers.softmax import Softmax

TOKENS = 7
PRECISION = 3.0


def hard_coded() -> Tables:
    """Return the model of paper 003's example 4.1, which is precise by any C that it is given."""
    embedding = np.vstack([np.eye(TOKENS - 1), -np.ones(TOKENS - 1)])
    unembedding = -np.eye(TOKENS - 1, TOKENS)
    displacement = TOKENS * PRECISION * embedding @ unembedding
    return Tables(bias=embedding @ unembedding, displacement=displacement, attention=np.ones((TOKENS, TOKENS)))


def test_the_model_of_example_4_1_is_precise_at_every_length_and_absent_tokens_are_equal() -> None:
    figures = measure(hard_coded())
    lengths = np.arange(1, TOKENS)
    assert (figures.margins > PRECISION).all()
    np.testing.assert_allclose(figures.margins, TOKENS * PRECISION / lengths, atol=1 + 1e-9)
    np.testing.assert_allclose(figures.spreads, 0, atol=1e-9)
    assert figures.precision == pytest.approx(figures.margins[:2].min())
    assert figures.kept.min() >= 1


@pytest.mark.parametrize("scorer", [Softmax(), Average()])
def test_the_tables_give_the_logits_of_the_model_on_every_input(scorer: Softmax | Average) -> None:
    model = Minimal(width=5, key_width=3, value_width=4, scorer=scorer, norm_epsilon=1e-3)
    chance = torch.Generator().manual_seed(4)
    shapes = {"embedding": (TOKENS, 5), "norm": (5,), "query": (5, 3), "key": (5, 3), "value": (5, 4), "output": (4, 5)}
    shapes["unembedding"] = (5, TOKENS)
    weights = {name: torch.randn(*shape, generator=chance, dtype=torch.float64) for name, shape in shapes.items()}
    tables = Tables.of(
        {name: tensor.numpy() for name, tensor in weights.items()}, epsilon=1e-3, constant=isinstance(scorer, Average)
    )
    inputs = torch.stack([torch.randperm(TOKENS, generator=chance)[:4] for _ in range(20)])
    expected = model.outputs(weights, {"inputs": inputs}, {})[:, -1].numpy()
    present = np.zeros((20, TOKENS), bool)
    np.put_along_axis(present, inputs.numpy(), values=True, axis=1)
    logits = tables.logits(present)[np.arange(20), inputs[:, -1].numpy()]
    np.testing.assert_allclose(logits, expected, rtol=1e-10, atol=1e-12)


def test_margins_and_spreads_are_those_of_a_loop_over_the_inputs() -> None:
    chance = np.random.default_rng(5)
    bias, displacement, logits = chance.normal(size=(3, 5, 5))
    tables = Tables(bias=bias, displacement=displacement, attention=np.exp(logits))
    figures, balance = measure(tables), list[float]()
    for size in range(1, 5):
        margins, spreads = list[float](), list[float]()
        for order in permutations(range(5), size):
            weights = np.exp(logits[order[-1], list(order)])
            answer = bias[order[-1]] + weights / weights.sum() @ displacement[list(order)]
            absent = [answer[token] for token in range(5) if token not in order]
            margins.append(min(absent) - max(answer[token] for token in order))
            spreads.append(max(absent) - min(absent))
            balance += [max(absent) - answer[order[0]]] * (size == 1)
        assert figures.margins[size - 1] == pytest.approx(min(margins))
        assert figures.spreads[size - 1] == pytest.approx(max(spreads))
    assert figures.balance == pytest.approx(max(balance))
    assert figures.is_balanced == (max(balance) < 2 * figures.precision)


def test_temperatures_are_one_like_in_training_and_ratios_of_moments_under_a_shift() -> None:
    chance = torch.Generator().manual_seed(6)
    first, second, third, fourth = torch.rand(4, 5, 2, generator=chance) + 0.1
    training = [(first, second), (third, fourth)]
    first[:, 1] = -1.0  # a head whose positions have negative logits with themselves
    shifted = [(mean, 3 * square) for mean, square in training]
    for estimate in calibrated.estimate_by_shift(training, training):
        assert torch.equal(estimate, torch.ones(1, 2))
    same, wider = (calibrated.estimate_by_shift(training, other) for other in (training, shifted))
    assert wider[0].tolist() == [[pytest.approx(3.0), pytest.approx(3.0)]]
    assert len(same) == 2
    by_prompt = calibrated.estimate_by_prompt(training, shifted)
    assert by_prompt[0][:, 1].tolist() == [1.0] * 5
    assert by_prompt[1][:, 0].median() == pytest.approx(3.0)


@pytest.mark.long
def test_the_studies_are_measured_from_their_stored_trials(tmp_path: Path) -> None:
    """The error at temperature 1, and a width's tables, are those that validation reports."""
    url, plan = f"sqlite:///{tmp_path}/papers.db", read_plan()
    few = {"training.steps": 4, "training.validate_every": 2, "training.validation_batch": 16}
    small = {
        calibrated.STUDY: few | {"search.trials": 2, "search.group": 2},
        precision.STUDY: few
        | {
            "optimizer.schedule": "constant",
            "seeds": 2,
            "arms": {"constant": {"model.scorer": "average"}, "softmax": {}},
        },
    }
    studies = [
        StudyPlan(name=name, space=plan.studies[name].space, set={**plan.studies[name].set, **setting})
        for name, setting in small.items()
    ]
    train(studies, url)
    errors = calibrated.measure_study(graft.open(url)["papers-calibrated"])
    stored = graft.open(url)["papers-calibrated"].metrics()
    for shift in calibrated.SHIFTS:
        rows = stored.filter(name="error", condition=shift, step=4).sort("number")
        at_one = errors.filter(shift=shift, way="1").sort("number")
        assert at_one["error"].to_list() == pytest.approx(rows["value"].to_list(), rel=1e-6)
        best = errors.filter(shift=shift, way="best").sort("number")
        assert (best["error"] <= at_one["error"] * (1 + 1e-6)).all()
    assert "| input_scale=3 |" in calibrated.describe(errors)
    measured = precision.measure_study(graft.open(url)["papers-precision"])
    assert sorted(measured["scorer"].to_list()) == ["average", "average", "softmax", "softmax"]
    assert "| constant | 11, 11 |" in precision.describe(measured)
