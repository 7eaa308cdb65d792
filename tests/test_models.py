"""What every model promises: gradients, causality, names and sizes of its parameters, and lanes on their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from spaces import plugins
from tests.test_transformer import VARIANTS
from workers.models import Model, in_use
from workers.models.minimal import Minimal
from workers.parameters import Constant, Given, Normal, Parameter, Parameters, Uniform, under, within
from workers.scorers import Scorer, masked_softmax, scaled_logits
from workers.tasks.set_complement import SetComplement
from workers.train import Layout

TASK = SetComplement(length=4, vocabulary=7)
SIZES: dict[str, dict[str, Any]] = {
    "minimal": {"width": 6, "key_width": 3, "value_width": 5},
    "transformer": {"width": 6, "mlp_multiple": 2},
}


def members() -> list[Any]:
    """Every model, the transformer in each of its variants."""
    found = [pytest.param({"name": name, **SIZES[name]}, id=name) for name in plugins.names(Model)]
    for variant, settings in VARIANTS.items():
        model = {"name": "transformer", **SIZES["transformer"], **settings}
        if settings.get("position") == {"name": "rotary"}:
            model["heads"] = 3
        found.append(pytest.param(model, id=f"transformer: {variant}"))
    return found


def drawn(model: Model, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: p.shape for name, p in model.parameters(TASK).items()}
    return {n: 0.6 * torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


@pytest.fixture(params=members())
def model(request: pytest.FixtureRequest) -> Model:
    built = plugins.build(Model, request.param)
    built.check(TASK)
    return built


INPUTS = torch.tensor([[0, 3, 5, 1], [6, 2, 1, 0]])


def test_gradients_are_those_of_finite_differences(model: Model) -> None:
    parameters = drawn(model)
    names = list(parameters)

    def logits(*tensors: Tensor) -> Tensor:
        return model.logits(dict(zip(names, tensors, strict=True)), INPUTS[:1, :3], {})

    inputs = tuple(tensor.requires_grad_() for tensor in parameters.values())
    assert torch.autograd.gradcheck(logits, inputs, fast_mode=True)


def test_logits_have_one_row_per_position_and_are_blind_to_the_future(model: Model) -> None:
    parameters = drawn(model)
    one = model.logits(parameters, INPUTS, {})
    assert one.shape == (2, 4, 7)
    for length in range(1, 4):
        changed = INPUTS.clone()
        changed[:, length:] = (changed[:, length:] + 1) % 7
        other = model.logits(parameters, changed, {})
        torch.testing.assert_close(one[:, :length], other[:, :length], rtol=0, atol=1e-12)
        assert not torch.allclose(one[:, length], other[:, length])
        shorter = model.logits(parameters, INPUTS[:, :length], {})
        torch.testing.assert_close(one[:, :length], shorter, rtol=0, atol=1e-12)


def test_sequences_of_a_batch_do_not_see_each_other(model: Model) -> None:
    parameters = drawn(model)
    together = model.logits(parameters, INPUTS, {})
    for row in range(2):
        alone = model.logits(parameters, INPUTS[row : row + 1], {})
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-12)


def test_every_parameter_is_read(model: Model) -> None:
    parameters = {name: tensor.requires_grad_() for name, tensor in drawn(model).items()}
    logits = model.logits(parameters, INPUTS, {})
    gradients = torch.autograd.grad(logits.square().sum(), list(parameters.values()))
    assert all(bool(gradient.any()) for gradient in gradients)


def test_stacked_lanes_are_models_on_their_own(model: Model) -> None:
    lanes = [drawn(model, seed) for seed in range(3)]
    stacked = {name: torch.stack([lane[name] for lane in lanes]) for name in lanes[0]}
    knobs = {path: torch.tensor([value, value, value], dtype=torch.float64) for path, value in plugins.knobs(model)}

    def logits(knobs: dict[str, Tensor], parameters: dict[str, Tensor]) -> Tensor:
        return plugins.bind(model, knobs).logits(parameters, INPUTS, {})

    found = vmap(logits)(knobs, stacked)
    for lane in range(3):
        torch.testing.assert_close(found[lane], model.logits(lanes[lane], INPUTS, {}), rtol=1e-12, atol=1e-12)


# -- parts that models share -----------------------------------------------------------------------------------------


class Scaled(Scorer):
    """Softmax of queries and keys with a learned factor per head, not told to be one of the logits alone."""

    def parameters(self, heads: int) -> dict[str, Parameter]:
        return {"factor": Parameter(shape=(heads,), start=Constant(value=1.0), decay=False)}

    def weights(self, query: Tensor, key: Tensor, visible: Tensor, learned: Parameters) -> Tensor:
        return masked_softmax(learned["factor"][:, None, None] * scaled_logits(query, key), visible)


def test_the_minimal_transformer_gives_queries_and_keys_to_a_scorer_that_wants_them() -> None:
    """Its scorer's parameter starts at 1, where it is softmax, which takes the way by tokens."""
    model, softmax = Minimal(**SIZES["minimal"], scorer=Scaled()), Minimal(**SIZES["minimal"])
    assert model.parameters(TASK)["scorer.factor"].shape == (1,)
    parameters = drawn(model) | {"scorer.factor": torch.ones(1, dtype=torch.float64)}
    expected = softmax.logits(parameters, INPUTS, {})
    torch.testing.assert_close(model.logits(parameters, INPUTS, {}), expected, rtol=1e-12, atol=1e-12)
    keep = {"residual": torch.ones(2, 4, 6, dtype=torch.bool)}
    torch.testing.assert_close(model.logits(parameters, INPUTS, keep), expected, rtol=1e-12, atol=1e-12)
    doubled = parameters | {"scorer.factor": torch.full((1,), 2.0, dtype=torch.float64)}
    hotter = parameters | {"query": 2 * parameters["query"]}
    torch.testing.assert_close(model.logits(doubled, INPUTS, {}), softmax.logits(hotter, INPUTS, {}))


def test_parameters_start_as_they_say() -> None:
    starts = {
        "normal": Normal(deviation=0.5),
        "uniform": Uniform(bound=3.0),
        "constant": Constant(value=1.5),
        "given": Given(numbers=(1.0, 0.1, 2.0)),
    }
    layout = Layout({name: Parameter(shape=(2000, 3), start=start) for name, start in starts.items()})
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
        model = plugins.build(Model, {"name": "transformer", **SIZES["transformer"], "logit_cap": cap})
        bound = plugins.bind(model, {path: torch.tensor(value) for path, value in plugins.knobs(model)})
        assert in_use(model.logit_cap) == in_use(bound.logit_cap) == (cap > 0)
