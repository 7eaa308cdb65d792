"""What every model promises: gradients, causality, names and sizes of its parameters, and lanes on their own."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from spaces.errors import PluginError
from tests.plug_ins import example
from tests.test_transformer import VARIANTS
from workers.data.tasks import Batch, SetTask, Task, TokenTask, VectorTask
from workers.data.tasks.set_complement import SetComplement
from workers.networks.models import Model, in_use
from workers.networks.models.transformer import Transformer
from workers.networks.scorers import Scorer, masked_softmax, scaled_logits
from workers.numerics.layout import Layout
from workers.numerics.parameters import Constant, Given, Normal, Parameter, Parameters, Uniform, under, within
from workers.numerics.randomness import Streams


class Numbers(VectorTask):
    """Sequences of vectors, for tests of models that read them."""

    context, features, outputs = 4, 3, 2

    def training(self, streams: Streams, batch: int, step: Tensor) -> Batch:
        raise NotImplementedError

    def validation(self, streams: Streams, batch: int) -> Batch:
        raise NotImplementedError

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError

    def metrics(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError


class Questions(SetTask):
    """Sets with a question, for tests of models that read them."""

    context, features, query_features, classes = 4, 3, 2, 5
    training, validation, loss, metrics = Numbers.training, Numbers.validation, Numbers.loss, Numbers.metrics


class BothSides(SetComplement):
    """A task over tokens whose inputs do not tell the answers, for tests of models that see both sides."""

    causal = False  # pyright: ignore[reportAssignmentType]


TASK = SetComplement(length=4, vocabulary=7)
BOTH_SIDES = BothSides(length=4, vocabulary=7)
TASKS: list[Task] = [TASK, BOTH_SIDES, Numbers(), Questions()]
MINIMAL, TRANSFORMER = (example(Model, name) for name in ("minimal", "transformer"))


def members() -> list[Any]:
    """Every model, the transformer in each of its variants."""
    found = [pytest.param(configuration, id=configuration["name"]) for configuration in plugins.examples(Model)]
    for variant, settings in VARIANTS.items():
        model = {**TRANSFORMER, **settings}
        if settings.get("position") == {"name": "rotary"}:
            model["heads"] = 3
        found.append(pytest.param(model, id=f"transformer: {variant}"))
    return found


def task_of(model: Model) -> Task:
    """The task of the kind that the model reads."""
    for task in TASKS:
        with suppress(PluginError):
            model.check(task)
            return task
    raise AssertionError("a model reads one kind of task")


def batch_of(task: Task) -> Batch:
    """Two sequences of four positions, or sets of four items."""
    if isinstance(task, TokenTask):
        return {"inputs": INPUTS}
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    if isinstance(task, VectorTask):
        return {"inputs": inputs}
    query = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    return {"inputs": inputs, "query": query, "lengths": torch.tensor([4, 3])}


def drawn(model: Model, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: p.shape for name, p in model.parameters(task_of(model)).items()}
    return {n: 0.6 * torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


@pytest.fixture(params=members())
def model(request: pytest.FixtureRequest) -> Model:
    return plugins.build(Model, request.param)


@pytest.fixture
def batch(model: Model) -> Batch:
    return batch_of(task_of(model))


INPUTS = torch.tensor([[0, 3, 5, 1], [6, 2, 1, 0]])
BATCH = {"inputs": INPUTS}


def test_gradients_are_those_of_finite_differences(model: Model, batch: Batch) -> None:
    parameters = drawn(model)
    names = list(parameters)
    one = {name: tensor[:1] for name, tensor in batch.items()}

    def outputs(*tensors: Tensor) -> Tensor:
        return model.outputs(dict(zip(names, tensors, strict=True)), one, {})

    inputs = tuple(tensor.requires_grad_() for tensor in parameters.values())
    assert torch.autograd.gradcheck(outputs, inputs, fast_mode=True)


def test_outputs_have_the_shape_that_the_task_wants(model: Model, batch: Batch) -> None:
    task, outputs = task_of(model), model.outputs(drawn(model), batch, {})
    if isinstance(task, SetTask):
        assert outputs.shape == (2, task.classes)
    else:
        assert outputs.shape == (2, 4, task.tokens if isinstance(task, TokenTask) else 2)


def test_causal_models_are_blind_to_the_future_and_others_are_not(model: Model, batch: Batch) -> None:
    if isinstance(task_of(model), SetTask):
        return
    parameters, inputs = drawn(model), batch["inputs"]
    one = model.outputs(parameters, batch, {})
    for length in range(1, 4):
        changed = inputs.clone()
        changed[:, length:] = (changed[:, length:] + 1) % 7
        other = model.outputs(parameters, {"inputs": changed}, {})
        assert not torch.allclose(one[:, length], other[:, length])
        assert torch.allclose(one[:, :length], other[:, :length], rtol=0, atol=1e-12) == model.causal
        shorter = model.outputs(parameters, {"inputs": inputs[:, :length]}, {})
        assert torch.allclose(one[:, :length], shorter, rtol=0, atol=1e-12) == model.causal


def test_what_lies_beyond_a_length_is_not_seen(model: Model, batch: Batch) -> None:
    parameters, whole = drawn(model), {**batch, "lengths": torch.tensor([3, 2])}
    changed = {**whole, "inputs": batch["inputs"].clone()}
    changed["inputs"][0, 3:], changed["inputs"][1, 2:] = 1, 4
    one, other = model.outputs(parameters, whole, {}), model.outputs(parameters, changed, {})
    if isinstance(task_of(model), SetTask):
        one, other = one[:, None], other[:, None]
    torch.testing.assert_close(one[0, :3], other[0, :3], rtol=0, atol=1e-12)
    torch.testing.assert_close(one[1, :2], other[1, :2], rtol=0, atol=1e-12)


def test_sets_have_no_order(model: Model, batch: Batch) -> None:
    if not isinstance(task_of(model), SetTask):
        return
    parameters = drawn(model)
    turned = {**batch, "inputs": torch.cat([batch["inputs"][:, :3].flip(1), batch["inputs"][:, 3:]], 1)}
    expected = model.outputs(parameters, batch, {})
    torch.testing.assert_close(model.outputs(parameters, turned, {}), expected, rtol=0, atol=1e-12)


def test_sequences_of_a_batch_do_not_see_each_other(model: Model, batch: Batch) -> None:
    parameters = drawn(model)
    together = model.outputs(parameters, batch, {})
    for row in range(2):
        alone = model.outputs(parameters, {name: tensor[row : row + 1] for name, tensor in batch.items()}, {})
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-12)


def test_every_parameter_is_read(model: Model, batch: Batch) -> None:
    parameters = {name: tensor.requires_grad_() for name, tensor in drawn(model).items()}
    outputs = model.outputs(parameters, batch, {})
    gradients = torch.autograd.grad(outputs.square().sum(), list(parameters.values()))
    assert all(bool(gradient.any()) for gradient in gradients)


def test_stacked_lanes_are_models_on_their_own(model: Model, batch: Batch) -> None:
    lanes = [drawn(model, seed) for seed in range(3)]
    stacked = {name: torch.stack([lane[name] for lane in lanes]) for name in lanes[0]}
    knobs = {path: torch.tensor([value, value, value], dtype=torch.float64) for path, value in plugins.knobs(model)}

    def outputs(knobs: dict[str, Tensor], parameters: dict[str, Tensor]) -> Tensor:
        return plugins.bind(model, knobs).outputs(parameters, batch, {})

    found = vmap(outputs)(knobs, stacked)
    for lane in range(3):
        torch.testing.assert_close(found[lane], model.outputs(lanes[lane], batch, {}), rtol=1e-12, atol=1e-12)


def test_a_model_refuses_tasks_of_another_kind(model: Model) -> None:
    own, refused = task_of(model), 0
    for task in TASKS:
        if task is not own:
            with pytest.raises(PluginError, match=r"model\.name: .* (reads (tokens|vectors|sets), but the task|sees )"):
                model.check(task)
            refused += 1
    assert refused == 3


# -- parts that models share -----------------------------------------------------------------------------------------


class Scaled(Scorer):
    """Softmax of queries and keys with a learned factor per head, not told to be one of the logits alone."""

    def parameters(self, heads: int) -> dict[str, Parameter]:
        return {"factor": Parameter(shape=(heads,), start=Constant(value=1.0), decay=False)}

    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(learned["factor"][:, None, None] * scaled_logits(query, key), visible)


def test_the_minimal_transformer_gives_queries_and_keys_to_a_scorer_that_wants_them() -> None:
    """Its scorer's parameter starts at 1, where it is softmax, which takes the way by tokens."""
    softmax = plugins.build(Model, MINIMAL)
    model = plugins.replace(softmax, {"scorer": Scaled()})
    assert model.parameters(TASK)["scorer.factor"].shape == (1,)
    parameters = drawn(model) | {"scorer.factor": torch.ones(1, dtype=torch.float64)}
    expected = softmax.outputs(parameters, BATCH, {})
    torch.testing.assert_close(model.outputs(parameters, BATCH, {}), expected, rtol=1e-12, atol=1e-12)
    keep = {"residual": torch.ones(2, 4, 6, dtype=torch.bool)}
    torch.testing.assert_close(model.outputs(parameters, BATCH, keep), expected, rtol=1e-12, atol=1e-12)
    doubled = parameters | {"scorer.factor": torch.full((1,), 2.0, dtype=torch.float64)}
    hotter = parameters | {"query": 2 * parameters["query"]}
    torch.testing.assert_close(model.outputs(doubled, BATCH, {}), softmax.outputs(hotter, BATCH, {}))


def test_parameters_start_as_they_say() -> None:
    starts = {
        "normal": Normal(deviation=0.5),
        "uniform": Uniform(bound=3.0),
        "constant": Constant(value=1.5),
        "given": Given(numbers=(1.0, 0.1, 2.0)),
    }
    layout = Layout.of({name: Parameter(shape=(2000, 3), start=start) for name, start in starts.items()})
    drawn = layout.initial(torch.tensor([3, 4]))
    assert drawn.shape == (2, 24_000)
    found = layout.split(drawn[0])
    assert 0.95 < float(found["normal"].abs().max()) <= 1.0
    assert float(found["normal"].std()) == pytest.approx(0.5 * 0.8796, rel=0.03)
    assert 2.95 < float(found["uniform"].abs().max()) < 3
    assert float(found["uniform"].std()) == pytest.approx(3 / 3**0.5, rel=0.03)
    assert (found["constant"] == 1.5).all()
    assert torch.equal(found["given"], torch.tensor([1.0, 0.1, 2.0], dtype=torch.float64).expand(2000, 3))
    assert torch.equal(layout.initial(torch.tensor([4]))[0], drawn[1])


def test_parts_name_their_parameters_within_the_whole() -> None:
    whole = {"a": 1, "scorer.b": 2, "scorer.c.d": 3, "scorers.e": 4}
    assert within("scorer", whole) == {"b": 2, "c.d": 3}
    assert under("scorer", {"b": 2, "c.d": 3}) == {"scorer.b": 2, "scorer.c.d": 3}


def test_a_switch_that_is_off_stays_the_number_zero_when_knobs_become_tensors() -> None:
    for cap in (0.0, 2.0):
        model = plugins.build(Model, {**TRANSFORMER, "logit_cap": cap})
        assert isinstance(model, Transformer)
        bound = plugins.bind(model, {path: torch.tensor(value) for path, value in plugins.knobs(model)})
        assert in_use(model.logit_cap) == in_use(bound.logit_cap) == (cap > 0)


def test_the_attention_that_models_show_is_the_one_they_use() -> None:
    """The minimal transformer's outputs, made of the weights that it shows."""
    for scorer in ("softmax", "ssa", "cosformer"):
        model = plugins.build(Model, {**MINIMAL, "scorer": {"name": scorer}})
        parameters = drawn(model)
        [shown] = model.attention(parameters, BATCH)
        assert shown.query_from
        made = shown.query_from.vectors[:, None] @ shown.query_from.matrices
        torch.testing.assert_close(made, shown.query, rtol=1e-12, atol=1e-12)
        stream = parameters["embedding"][INPUTS]
        rows = shown.query_from.vectors * parameters["norm"] @ parameters["value"] @ parameters["output"]
        expected = (stream + shown.weights[:, 0] @ rows) @ parameters["unembedding"]
        torch.testing.assert_close(model.outputs(parameters, BATCH, {}), expected, rtol=1e-12, atol=1e-12)
