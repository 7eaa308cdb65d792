"""Max retrieval and the set model of paper 001: sets against plain loops, the model against torch's own layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import spaces
from graft.plugins.families import families
from spaces import plugins
from spaces.errors import PluginError
from tests.support.plug_ins import example
from tests.support.trials import FIRST_STEP, trial
from workers.data.tasks import Batch, Task
from workers.data.tasks.max_retrieval import EVALUATED_ITEMS, MaxRetrieval
from workers.engine.pack import Pack
from workers.networks.models.attention_pooling import AttentionPooling
from workers.networks.scorers import Scorer
from workers.networks.scorers.adaptive_temperature import AdaptiveTemperature
from workers.networks.scorers.softmax import Softmax
from workers.numerics.layout import Layout
from workers.numerics.randomness import Purpose, Streams

TASK = MaxRetrieval(largest=100)
LANES = 3


def streams(step: int = 0, purpose: Purpose = Purpose.TRAINING_DATA) -> Streams:
    return Streams.of(torch.arange(LANES) + 5, purpose, step)


def check_sets(batch: Batch, size: int) -> None:
    """Features and answers, set by set."""
    inputs, lengths = batch["inputs"].numpy(), batch["lengths"].numpy()
    assert inputs.dtype == np.float32
    assert inputs.shape[2:] == (size, 11)
    assert batch["query"].shape == (*lengths.shape, 1)
    for index in np.ndindex(*lengths.shape):
        items = inputs[index]
        assert ((items[:, 0] >= 0) & (items[:, 0] < 1)).all()
        assert sorted(set(items[:, 1:].flatten())) == [0, 1]
        assert (items[:, 1:].sum(-1) == 1).all()
        best = max(range(lengths[index]), key=lambda item: items[item, 0])
        assert batch["target"][index] == items[best, 1:].argmax()
        if "relevant" in batch:
            assert batch["relevant"][index].nonzero().tolist() == [[best]]


# -- the task --------------------------------------------------------------------------------------------------------


def test_the_answer_is_the_class_of_the_item_of_highest_priority() -> None:
    for step in range(5):
        check_sets(TASK.training(streams(step), 20, FIRST_STEP), 16)
    check_sets(TASK.validation(streams(), 20), 16)
    for condition, batch in TASK.shifted_sets(streams(), 20).items():
        check_sets(batch, int(condition.removeprefix("items=")))


def test_sets_of_a_batch_have_the_same_size_and_each_lane_its_own() -> None:
    sizes = [TASK.training(streams(step), 4, FIRST_STEP)["lengths"] for step in range(400)]
    assert all((drawn == drawn[:, :1]).all() for drawn in sizes)
    counts = torch.stack([drawn[:, 0] for drawn in sizes]).flatten().bincount(minlength=17)
    assert counts[:5].sum() == 0
    assert scipy.stats.chisquare(counts[5:]).pvalue > 0.01
    assert any(len(set(drawn[:, 0].tolist())) == LANES for drawn in sizes)


def test_priorities_classes_and_queries_are_uniform_and_do_not_depend_on_each_other() -> None:
    drawn = TASK.validation(streams(), 4000)
    priorities, classes = drawn["inputs"][..., 0].flatten(), drawn["inputs"][..., 1:].argmax(-1).flatten()
    assert scipy.stats.kstest(priorities, "uniform").pvalue > 0.01
    assert scipy.stats.kstest(drawn["query"].flatten(), "uniform").pvalue > 0.01
    assert scipy.stats.chisquare(classes.bincount()).pvalue > 0.01
    assert abs(np.corrcoef(priorities, classes)[0, 1]) < 0.01
    assert scipy.stats.chisquare(drawn["relevant"].sum((0, 1))).pvalue > 0.01


def test_it_is_judged_on_twice_as_many_items_again_and_again() -> None:
    assert [*MaxRetrieval().shifted_sets(streams(), 1)] == [f"items={2**power}" for power in range(5, 15)]
    assert MaxRetrieval().longest == 16_384
    assert [*TASK.shifted_sets(streams(), 1)] == ["items=32", "items=64"]
    assert (TASK.context, TASK.longest) == (16, 64)
    assert not MaxRetrieval(largest=31).shifted_sets(streams(), 1)


def test_sizes_share_their_items_and_sets_of_many_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert EVALUATED_ITEMS // 16_384 == 128
    monkeypatch.setattr("workers.data.tasks.max_retrieval.EVALUATED_ITEMS", 256)
    sets = MaxRetrieval(largest=512).shifted_sets(streams(), 6)
    assert [batch["inputs"].shape[1] for batch in sets.values()] == [6, 4, 2, 1, 1]
    assert len({batch["inputs"].untyped_storage().data_ptr() for batch in sets.values()}) == 1
    for condition, batch in sets.items():
        check_sets(batch, int(condition.removeprefix("items=")))


def test_of_equal_priorities_one_wins_and_the_same_in_every_run() -> None:
    class Same(Streams):
        def words(self, count: int) -> Tensor:
            return super().words(count) & 0xFFFFFFFF  # the priority is in the highest bits

    drawn = TASK.validation(Same(state=streams().state), 30)
    assert (drawn["inputs"][..., 0] == 0).all()
    assert drawn["relevant"][..., -1].all()
    assert torch.equal(drawn["target"], drawn["inputs"][:, :, -1, 1:].argmax(-1))


def test_impossible_sizes_are_told() -> None:
    for sizes in ({"smallest": 17}, {"largest": 15}):
        with pytest.raises(PluginError, match=r"task\.items: 16 must be at least task\.smallest"):
            plugins.build(Task, {"name": "max_retrieval", **sizes})


def test_metrics_are_the_share_that_is_right_and_its_cross_entropy() -> None:
    batch = {"target": torch.tensor([2, 0, 9])}
    logits = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[0, 2] = 9
    logits[1, 4] = 9
    metrics = TASK.metrics(logits, batch)
    assert metrics["accuracy"][:2].tolist() == [1, 0]
    expected = nn.functional.cross_entropy(logits, batch["target"], reduction="none")
    torch.testing.assert_close(metrics["cross_entropy"], expected)
    torch.testing.assert_close(TASK.loss(logits, batch), expected.mean())
    assert torch.isnan(TASK.metrics(logits * torch.inf, batch)["accuracy"]).all()
    assert TASK.facts() == {"chance": 0.1}


# -- the model -------------------------------------------------------------------------------------------------------


def model_and_parameters(scorer: Scorer, width: int = 8) -> tuple[AttentionPooling, dict[str, Tensor]]:
    model, generator = AttentionPooling(width=width, scorer=scorer), torch.Generator().manual_seed(2)
    shapes = {name: parameter.shape for name, parameter in model.parameters(TASK).items()}
    return model, {name: torch.randn(*shape, generator=generator).double() / 2 for name, shape in shapes.items()}


def listing(parameters: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits [N, c] and attention weights [N, 1, n] of the listing in Appendix A.3, of torch's own layers."""

    def dense(name: str, vectors: Tensor) -> Tensor:
        return nn.functional.linear(vectors, parameters[name].mT, parameters[f"{name}_bias"])

    gelu = nn.GELU(approximate="tanh")
    x = gelu(dense("item_out", gelu(dense("item_in", batch["inputs"].double()))))
    q = dense("query_out", gelu(dense("query_in", batch["query"].double())))
    attention = nn.MultiheadAttention(q.shape[-1], 1, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([parameters["query"].mT, parameters["key_value"].mT]))
        attention.in_proj_bias.copy_(torch.cat([parameters["query_bias"], parameters["key_value_bias"]]))
        attention.out_proj.weight.copy_(parameters["output"].mT)
        attention.out_proj.bias.copy_(parameters["output_bias"])
        padding = torch.arange(x.shape[1]) >= batch["lengths"][:, None]
        mixed, weights = attention(q[:, None], x, x, key_padding_mask=padding)
    return dense("class_out", gelu(dense("class_in", mixed[:, 0]))), weights


def one_lane(batch: Batch) -> Batch:
    return {name: tensor[0] for name, tensor in batch.items()}


def test_outputs_are_those_of_the_papers_listing() -> None:
    model, parameters = model_and_parameters(Softmax())
    for drawn in (TASK.training(streams(), 6, FIRST_STEP), TASK.shifted_sets(streams(), 6)["items=64"]):
        batch = one_lane(drawn)
        logits, weights = listing(parameters, batch)
        torch.testing.assert_close(model.outputs(parameters, batch, {}), logits, rtol=1e-12, atol=1e-12)
        (layer,) = model.attention(parameters, batch)
        torch.testing.assert_close(layer.weights[:, 0], weights, rtol=1e-12, atol=1e-12)


def test_validation_sharpens_the_attention_of_the_same_weights() -> None:
    """The polynomial of Figure 4 by numpy and scipy."""
    model, parameters = model_and_parameters(AdaptiveTemperature())
    parameters["query"] = parameters["query"] / 4
    batch = one_lane(TASK.validation(streams(), 40))
    _, plain = listing(parameters, batch)
    evaluated = model.evaluations()
    assert [*evaluated] == ["", "scorer=trained"]
    sharpened, trained = (evaluated[label].attention(parameters, batch)[0].weights[:, 0] for label in evaluated)
    torch.testing.assert_close(trained, plain, rtol=1e-12, atol=1e-12)
    entropy = scipy.stats.entropy(plain.numpy(), axis=-1)
    beta = np.maximum(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], entropy), 1)
    beta[entropy <= 0.5] = 1
    assert (beta > 1.1).any()
    powers = plain.numpy() ** beta[..., None]
    np.testing.assert_allclose(sharpened, powers / powers.sum(-1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in plugins.names(Scorer) if name != "mixed"])
def test_weights_are_those_that_the_scorer_gives_queries_and_keys(name: str) -> None:
    """Logits are computed without keys where the scorer needs none."""
    model, parameters = model_and_parameters(plugins.build(Scorer, example(Scorer, name)))
    learned = {path.removeprefix("scorer."): value for path, value in parameters.items() if path.startswith("scorer.")}
    batch = one_lane(TASK.training(streams(), 6, FIRST_STEP))
    (layer,) = model.attention(parameters, batch)
    expected = model.scorer.weights(layer.query, layer.key, layer.visible, learned)
    torch.testing.assert_close(layer.weights, expected, rtol=1e-9, atol=1e-9)
    assert model.outputs(parameters, batch, {}).isfinite().all()


def test_it_has_the_sizes_of_appendix_a_and_starts_as_flax_does() -> None:
    parameters = AttentionPooling().parameters(MaxRetrieval())
    layout = Layout.of(parameters)
    dense = {"items": (11, 128), "query": (1, 128), "classes": (128, 10)}
    expected = sum(inputs * outputs + outputs for inputs, outputs in dense.values()) + 7 * (128 * 128 + 128)
    assert layout.total == expected == 118_666
    assert layout.decays.all()
    drawn = layout.split(layout.initial(torch.tensor([3]))[0])
    for name, values in drawn.items():
        if name.endswith("_bias"):
            assert not values.any()
        else:
            inputs = values.shape[0]
            assert float(values.std()) == pytest.approx(inputs**-0.5, rel=0.1 if inputs > 1 else 0.2)
            assert float(values.abs().max()) < 2 * inputs**-0.5 / 0.8796


# -- training --------------------------------------------------------------------------------------------------------


def configuration(**training: Any) -> dict[str, Any]:
    return {
        "task": {"name": "max_retrieval", "largest": 32},
        "model": {"name": "attention_pooling", "width": 32},
        "optimizer": {"name": "adam", "learning_rate": 0.004, "schedule": {"name": "constant"}},
        "averaging": {"name": "none"},
        "training": {"steps": 12, "batch": 16, "validate_every": 12, "validation_batch": 32, **training},
    }


def reports(numbers: list[int], config: dict[str, Any]) -> dict[int, Any]:
    """Metrics by (name, condition) of trials that train together."""
    trials = [trial(number, config) for number in numbers]
    pack = Pack(trials[0], width=len(numbers))
    pack.fill(trials)
    (results,) = iter(lambda: pack.train(10_000) if pack.running else None, None)
    return {r.number: {(m.name, m.condition): m.value for m in r.metrics} for r in results}


@pytest.mark.long
def test_packed_trials_have_the_very_numbers_of_trials_alone() -> None:
    """On sets of all sizes, without the adapted temperature and with it."""
    config = configuration(diagnostics=True)
    together = reports([0, 1, 2], config)
    assert len({metrics["cross_entropy", "items=32"] for metrics in together.values()}) == 3
    for number, metrics in together.items():
        assert reports([number], config)[number] == metrics
        conditions = {condition for name, condition in metrics if name == "accuracy"}
        assert conditions == {"", "scorer=trained", "items=32", "items=32 scorer=trained"}


@pytest.mark.long
def test_it_is_learned() -> None:
    results = reports([0, 1], configuration(steps=400, batch=64, validate_every=400, validation_batch=512))
    for metrics in results.values():
        assert metrics["accuracy", "scorer=trained"] > 0.6
        assert metrics["accuracy", "items=32 scorer=trained"] < metrics["accuracy", "scorer=trained"]


@pytest.mark.parametrize("name", ["max_retrieval", "quick/max_retrieval"])
def test_the_packaged_spaces_train_as_appendix_a_does(name: str) -> None:
    space = spaces.load(name, families())
    space.check(2)
    config = space.sample(0, lambda _: 0.5).config
    assert config["task"] | {"largest": 0} == plugins.config_of(MaxRetrieval()) | {"largest": 0}
    assert config["model"] == plugins.config_of(AttentionPooling())
    optimizer = config["optimizer"]
    assert (optimizer["name"], optimizer["schedule"]) == ("adam", {"name": "constant"})
    assert (optimizer["learning_rate"], optimizer["weight_decay"], optimizer["clip_norm"]) == (0.001, 0.001, 1e9)
    assert (optimizer["beta1"], optimizer["beta2"], optimizer["epsilon"]) == (0.9, 0.999, 1e-8)
    assert config["training"]["batch"] == 128
    if name == "max_retrieval":
        assert (config["training"]["steps"], config["task"]["largest"], space.search.trials) == (100_000, 16_384, 10)
