"""Diagnostics against dense formulas of numpy and scipy, the bound of paper 001 on random weights, rows of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graft.plugins.collecting import plugins_asked_for
from spaces import plugins
from spaces.plugins.active import using
from tests.support.databases import raw
from tests.support.launches import search
from tests.support.trials import config
from tests.support.trials import trial as support_trial
from workers.data.tasks import Batch, Task
from workers.engine.retraining import retrain
from workers.networks.diagnostics import Diagnostic, diagnose
from workers.networks.models import Affine, Attention, Model
from workers.numerics.randomness import Purpose, Streams

HEADS, QUERIES, CHANNELS, WIDTH = 3, 4, 2, 5
TOKENS: Batch = {"inputs": torch.zeros(2, QUERIES, dtype=torch.int64)}
NO_OUTPUTS = torch.zeros(2, QUERIES, 7)


def values(name: str, layers: Sequence[Attention], batch: Batch, outputs: Tensor = NO_OUTPUTS) -> dict[str, np.ndarray]:
    tensors = plugins.build(Diagnostic, {"name": name}).values(layers, batch, outputs)
    return {part: tensor.numpy() for part, tensor in tensors.items()}


def layer(seed: int, scale: float = 2.0) -> Attention:
    """Return a causal layer of softmax attention without biases."""
    generator = torch.Generator().manual_seed(seed)
    vectors, matrices = (
        scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((2, QUERIES, WIDTH), (2, HEADS, WIDTH, CHANNELS))
    )
    query, key = (torch.einsum("nsd,hdc->nhsc", vectors, matrix) for matrix in matrices)
    visible = torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()
    logits = query @ key.mT / CHANNELS**0.5
    none = torch.zeros(HEADS, CHANNELS, dtype=torch.float64)
    sources = (Affine(vectors, matrix, none) for matrix in matrices)
    return Attention(query, key, logits.masked_fill(~visible, -torch.inf).softmax(-1), visible, *sources)


LAYERS = [layer(0), layer(1)]


def by_loops(of_row: Any, rows: Any) -> dict[str, np.ndarray]:
    """`of_row(layer, sequence, head, query)` averaged over the queries `rows(sequence)`."""
    averages = {
        f"layer={index} head={head}": np.array(
            [np.mean([of_row(attention, n, head, query) for query in rows(n)]) for n in range(2)]
        )
        for index, attention in enumerate(LAYERS)
        for head in range(HEADS)
    }
    return {"": np.mean([*averages.values()], axis=0), **averages}


def check(name: str, of_row: Any) -> None:
    """With sequences that are whole, and with some that end earlier."""
    for lengths in ([QUERIES, QUERIES], [2, 3]):
        batch = TOKENS if lengths[0] == QUERIES else {**TOKENS, "lengths": torch.tensor(lengths)}
        actual = values(name, LAYERS, batch)
        expected = by_loops(of_row, lambda n, lengths=lengths: range(lengths[n]))
        assert [*actual] == [*expected]
        for part, value in expected.items():
            np.testing.assert_allclose(actual[part], value, rtol=1e-12, atol=1e-12, err_msg=part)


# -- formulas --------------------------------------------------------------------------------------------------------


def test_entropy_is_scipys() -> None:
    def entropy(attention: Attention, n: int, head: int, query: int) -> float:
        logits = (attention.query[n, head, query] @ attention.key[n, head, : query + 1].T / CHANNELS**0.5).numpy()
        return float(scipy.stats.entropy(scipy.special.softmax(logits)))

    check("attention_entropy", entropy)


def test_spread_is_the_range_of_the_logits_that_a_query_sees() -> None:
    def spread(attention: Attention, n: int, head: int, query: int) -> float:
        return float(
            np.ptp((attention.query[n, head, query] @ attention.key[n, head, : query + 1].T / CHANNELS**0.5).numpy())
        )

    check("logit_spread", spread)


def test_bound_is_that_of_proposition_3_1() -> None:
    def bound(attention: Attention, n: int, head: int, query: int) -> float:
        assert attention.query_from
        assert attention.key_from
        largest = [
            np.linalg.svd(source.matrices[head])[1].max() for source in (attention.query_from, attention.key_from)
        ]
        lengths = np.linalg.norm(attention.query_from.vectors[n], axis=-1)
        return 2 * largest[0] * largest[1] * lengths[query] * lengths[: query + 1].max() / CHANNELS**0.5

    check("logit_spread_bound", bound)


def test_target_weight_is_the_share_of_the_relevant_keys() -> None:
    relevant = torch.tensor([[True, False, False, True], [False, True, False, False]])

    def weight(attention: Attention, n: int, head: int, query: int) -> float:
        return float(sum(attention.weights[n, head, query, key] for key in range(QUERIES) if relevant[n, key]))

    actual, expected = (
        values("target_weight", LAYERS, {**TOKENS, "relevant": relevant}),
        by_loops(weight, lambda _: range(4)),
    )
    wanted = torch.tensor([[False, False, True, True], [False, False, False, True]])
    asking = values("target_weight", LAYERS, {**TOKENS, "relevant": relevant, "wanted": wanted})
    asked = by_loops(weight, lambda n: wanted[n].nonzero()[:, 0].tolist())
    for part in expected:
        np.testing.assert_allclose(actual[part], expected[part], rtol=1e-12)
        np.testing.assert_allclose(asking[part], asked[part], rtol=1e-12)


def test_weights_that_do_not_sum_to_one_count_by_their_size() -> None:
    weights = torch.tensor([[3.0, -1.0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)[None, None]
    attention = LAYERS[0]._replace(weights=weights)
    batch: Batch = {"inputs": TOKENS["inputs"][:1], "relevant": torch.tensor([[False, True, False, False]])}
    expected = scipy.stats.entropy([0.75, 0.25])
    np.testing.assert_allclose(values("attention_entropy", [attention], batch)[""], [(expected + 0) / 2], rtol=1e-12)
    np.testing.assert_allclose(values("target_weight", [attention], batch)[""], [(0.25 + 0) / 2], rtol=1e-12)


def test_boundary_values_are_the_range_of_numbers_and_not_of_logits() -> None:
    outputs = torch.tensor([[[1.0, -2.0], [5.0, 0.0]], [[-3.0, -4.0], [-9.0, -4.0]]])
    numbers: Batch = {"inputs": torch.zeros(2, 2, 3)}
    boundaries = values("boundary_values", [], numbers, outputs)
    assert {part: value.tolist() for part, value in boundaries.items()} == {"highest": [5, -3], "lowest": [-2, -9]}
    assert values("boundary_values", [], {"inputs": torch.zeros(2, 2, dtype=torch.int64)}, outputs) == {}
    assert values("boundary_values", [], {**numbers, "query": torch.zeros(2, 1)}, outputs[:, 0]) == {}


@pytest.mark.parametrize("name", plugins.names(Diagnostic))
def test_nothing_is_said_of_models_without_attention(name: str) -> None:
    assert values(name, [], TOKENS) == {}


# -- models ----------------------------------------------------------------------------------------------------------

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("haystack", {"name": "transformer"}),
    ("haystack", {"name": "transformer", "bias": False, "pre_norm": False}),
    ("haystack", {"name": "transformer", "position": {"name": "rotary"}}),
    ("haystack", {"name": "transformer", "position": {"name": "alibi"}, "canon": "AC"}),
    ("haystack", {"name": "transformer", "norm": "rms_norm"}),
    ("max_retrieval", {"name": "attention_pooling"}),
]
UNBOUNDED: list[dict[str, Any]] = [{"query_key_norm": True}, {"canon": "AB"}]


def drawn(task: str, config: dict[str, Any], seed: int, scale: float) -> tuple[Model, dict[str, Tensor], Batch]:
    """Return a model with normal parameters of this scale and a batch to judge it on."""
    sizes = {"width": 8} if config["name"] == "attention_pooling" else {"width": 8, "heads": 2, "depth": 2}
    model = plugins.build(Model, {**sizes, **config})
    built = plugins.build(Task, {"name": task, **({"pairs": 3, "markers": 16} if task == "haystack" else {})})
    model.check(built)
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: parameter.shape for name, parameter in model.parameters(built).items()}
    parameters = {name: scale * torch.randn(*s, generator=generator, dtype=torch.float64) for name, s in shapes.items()}
    batch = built.validation(Streams.of(torch.tensor([seed]), Purpose.VALIDATION_DATA, 0), 5)
    return model, parameters, {name: tensor[0] for name, tensor in batch.items()}


@pytest.mark.parametrize(("task", "config"), MODELS)
@given(seed=st.integers(0, 2**31), scale=st.floats(0.01, 10))
@settings(max_examples=15)
def test_the_spread_never_exceeds_its_bound(task: str, config: dict[str, Any], seed: int, scale: float) -> None:
    model, parameters, batch = drawn(task, config, seed, scale)
    layers = model.attention(parameters, batch)
    spread, bound = (values(name, layers, batch) for name in ("logit_spread", "logit_spread_bound"))
    assert [*spread] == [*bound]
    for part in spread:
        assert (spread[part] > 0).all()
        assert (spread[part] <= bound[part] * (1 + 1e-12)).all(), part


def test_the_bound_is_met_by_opposite_keys_along_the_largest_stretch() -> None:
    vectors = torch.tensor([[[3.0, 0.0], [-3.0, 0.0]]], dtype=torch.float64)
    matrices = torch.tensor([[[2.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    source = Affine(vectors, matrices, torch.zeros(1, 2, dtype=torch.float64))
    mapped = (vectors @ matrices[0])[:, None]
    attention = Attention(
        mapped, mapped, torch.full((1, 1, 2, 2), 0.5), torch.ones(2, 2, dtype=torch.bool), source, source
    )
    batch: Batch = {"inputs": torch.zeros(1, 2, dtype=torch.int64)}
    spread, bound = (values(name, [attention], batch)[""] for name in ("logit_spread", "logit_spread_bound"))
    np.testing.assert_allclose(spread, [2 * 6 * 6 / 2**0.5], rtol=1e-12)
    np.testing.assert_allclose(bound, spread, rtol=1e-12)


@pytest.mark.parametrize(("task", "config"), MODELS)
def test_queries_and_keys_are_affine_in_what_they_are_made_of(task: str, config: dict[str, Any]) -> None:
    """Up to a rotation by position, which leaves norms as they are."""
    model, parameters, batch = drawn(task, config, 3, 0.5)
    for attention in model.attention(parameters, batch):
        for vectors, source in ((attention.query, attention.query_from), (attention.key, attention.key_from)):
            assert source
            mapped = torch.einsum("nsd,hdc->nhsc", source.vectors, source.matrices) + source.biases[:, None]
            torch.testing.assert_close(vectors.norm(dim=-1), mapped.norm(dim=-1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("change", UNBOUNDED)
def test_no_bound_is_given_where_more_than_a_matrix_makes_queries(change: dict[str, Any]) -> None:
    model, parameters, batch = drawn("haystack", {"name": "transformer", **change}, 3, 0.5)
    measures = diagnose(model, parameters, batch, model.outputs(parameters, batch, {}))
    assert {name.split()[0] for name in measures} == {"attention_entropy", "logit_spread", "target_weight"}


def test_haystack_marks_the_value_that_answers() -> None:
    _, _, batch = drawn("haystack", {"name": "transformer"}, 5, 1)
    for row in range(5):
        inputs, target = batch["inputs"][row], batch["targets"][row][batch["wanted"][row]]
        (asking,) = batch["wanted"][row].nonzero()
        (position,) = batch["relevant"][row].nonzero()
        assert inputs[position - 1] == inputs[asking]
        assert position < asking
        assert inputs[position] == target
        assert not (inputs[: int(position) - 1 : 2] == inputs[asking]).any()


# -- diagnostics of one's own ---------------------------------------------------------------------------------------

CONSTANT = '''
from dataclasses import dataclass

import torch

from workers.networks.diagnostics import Diagnostic


@dataclass(frozen=True, kw_only=True)
class Constant(Diagnostic):
    """Always the same."""

    def values(self, layers, batch, outputs):
        return {{"": torch.full_like(outputs[:, 0, 0], {value})}}
'''


def test_a_study_reports_its_own_diagnostics_whatever_was_recorded_before(tmp_path: Path) -> None:
    """One process evaluates trials of one structure without a plug-in, then with two versions of it."""
    watched = config(steps=1, every=1, validation_batch=4)
    watched["training"]["diagnostics"] = True
    file, reported = tmp_path / "constant.py", list[list[float]]()
    for value in (None, 1.0, 2.0):
        file.write_text(CONSTANT.format(value=value))
        with using(plugins_asked_for([str(file)] if value else [])):
            [report] = retrain(support_trial(0, watched), steps=1, device="cpu", watch=lambda _: None)
        reported.append([metric.value for metric in report.metrics if metric[:2] == ("constant", "raw")])
    assert reported == [[], [1.0], [2.0]]


# -- a study ---------------------------------------------------------------------------------------------------------

SPACE = """
study: looking
task: {name: max_retrieval, largest: 32}
model: {name: attention_pooling, width: 8}
optimizer: {name: adam}
averaging: none
training: {steps: 2, batch: 4, validation_batch: 8, diagnostics: true}
search: {sampler: random, trials: 2, group: 2, objective: {maximize: accuracy/raw}}
"""


@pytest.mark.long
def test_a_study_that_asks_for_them_has_them_in_its_database(tmp_path: Path) -> None:
    (tmp_path / "looking.yaml").write_text(SPACE)
    search(tmp_path, "launch", "looking.yaml")
    rows = raw(
        f"sqlite:///{tmp_path}/graft.db", "SELECT name, condition, count(*), min(value) FROM metrics GROUP BY 1, 2"
    )
    metrics = {(name, condition): value for name, condition, count, value in rows if count == 2}
    heads = {"attention_entropy", "logit_spread", "logit_spread_bound", "target_weight"}
    conditions = {"", "scorer=trained", "items=32", "items=32 scorer=trained"}
    for condition in conditions:
        names = {name for name, where in metrics if where == condition} - {"loss"}
        assert names == {"accuracy", "cross_entropy", *heads, *(f"{name} layer=0 head=0" for name in heads)}
    assert {condition for _, condition in metrics} == conditions
    assert 0 < metrics["attention_entropy", ""] < np.log(16)
