"""What models promise in every variant of the transformer, and the parts that they share."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graft.testing import Check, DoesNotApply, checks
from spaces import plugins
from spaces.errors import PluginError
from tests.support.plug_ins import example
from tests.support.transformer import VARIANTS
from workers.data.tasks import Task
from workers.data.tasks.set_complement import SetComplement
from workers.networks.models import Model, in_use
from workers.networks.models.linearised_attention import LinearisedAttention
from workers.networks.models.transformer import Transformer
from workers.networks.scorers import Scorer, masked_softmax, scaled_logits
from workers.numerics.layout import Layout
from workers.numerics.parameters import Constant, Given, Normal, Parameter, Parameters, Uniform, under, within

TASK = SetComplement(length=4, vocabulary=7)
MINIMAL, TRANSFORMER = (example(Model, name) for name in ("minimal", "transformer"))


def variants() -> list[Any]:
    """Return the transformer in each of its variants."""
    cases: list[Any] = []
    for variant, settings in VARIANTS.items():
        model = {**TRANSFORMER, **settings}
        if settings.get("position") == {"name": "rotary"}:
            model["heads"] = 3
        cases.append(pytest.param(model, id=variant))
    return cases


@pytest.mark.parametrize("configuration", variants())
@pytest.mark.parametrize(
    "check", [check for check in checks("model") if not check.trains], ids=lambda check: check.name
)
def test_the_transformer_keeps_the_contract_of_models_in_every_variant(
    configuration: dict[str, Any], check: Check
) -> None:
    with pytest.raises(DoesNotApply) if check.name == "sets" else nullcontext():
        check.run(configuration)


def drawn(model: Model, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: p.shape for name, p in model.parameters(TASK).items()}
    return {n: 0.6 * torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


COUNTING = {"name": "polynomial", "keys": "all"}
INPUTS = torch.tensor([[0, 3, 5, 1], [6, 2, 1, 0]])
BATCH = {"inputs": INPUTS}


def test_pooling_refuses_a_temperature_that_is_estimated_from_self_attention() -> None:
    pooling = plugins.build(
        Model, {"name": "attention_pooling", "scorer": {"name": "softmax_evaluation", "estimated": True}}
    )
    task = plugins.build(Task, {"name": "max_retrieval", "smallest": 1, "items": 9})
    with pytest.raises(PluginError, match=r"model\.scorer\.estimated: true .*; set it to false"):
        pooling.check(task)


@pytest.mark.parametrize("scorer", [COUNTING, {"name": "mixed", "second": COUNTING}], ids=lambda it: it["name"])
def test_keys_that_fill_up_sets_and_probes_are_not_counted(scorer: dict[str, Any], tmp_path: Path) -> None:
    """Sets and probes come in sizes of their own; windows of text are full."""
    (tmp_path / "one.txt").write_text("a cat\nthe cat\n")
    text = {"name": "masked_language", "corpus": {"name": "stories", "words": 5000}, "length": 12}
    for model, task, is_refused in [
        ("attention_pooling", {"name": "max_retrieval"}, True),
        ("encoder", {**text, "probes": str(tmp_path)}, True),
        ("encoder", text, False),
    ]:
        built = plugins.build(Model, {"name": model, "width": 8, "scorer": scorer})
        refusal = pytest.raises(
            PluginError, match=rf"^model.scorer: '{scorer['name']}' counts all keys, and in '{model}'"
        )
        with refusal if is_refused else nullcontext():
            built.check(plugins.build(Task, task))


def test_linearised_attention_is_validated_at_the_temperatures_themselves() -> None:
    """Also where the trial's own temperature is estimated."""
    of_trial = LinearisedAttention(estimated=True, temperature=3.0, temperatures="2")
    swept = of_trial.evaluations()
    assert swept["temperature=2"] == LinearisedAttention(temperature=2.0, temperatures="2")
    assert swept["temperature=estimated"] == of_trial


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
    parameters = layout.split(drawn[0])
    assert 0.95 < float(parameters["normal"].abs().max()) <= 1.0
    assert float(parameters["normal"].std()) == pytest.approx(0.5 * 0.8796, rel=0.03)
    assert 2.95 < float(parameters["uniform"].abs().max()) < 3
    assert float(parameters["uniform"].std()) == pytest.approx(3 / 3**0.5, rel=0.03)
    assert (parameters["constant"] == 1.5).all()
    assert torch.equal(parameters["given"], torch.tensor([1.0, 0.1, 2.0], dtype=torch.float64).expand(2000, 3))
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


def test_what_is_frozen_does_not_decay() -> None:
    parameters = {"fixed": Parameter(shape=(2, 2), frozen=True), "learned": Parameter(shape=(3,))}
    layout = Layout.of(parameters)
    assert layout.decays.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert layout.learns is not None
    assert layout.learns.tolist() == layout.decays.tolist()
