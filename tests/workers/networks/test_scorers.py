"""The contract of every scorer, and each one against an independent formula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import entmax as oracle
import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from torch import Tensor

from spaces import plugins
from spaces.errors import PluginError
from workers.networks.scorers import LogitScorer, Scorer, scaled_logits
from workers.networks.scorers._estimated import EstimatedSoftmax
from workers.numerics.temperature import best_temperatures, fit_temperature

VARIANTS = plugins.examples(Scorer)
HEADS, QUERIES, CHANNELS = 4, 5, 3


def built(configuration: Mapping[str, Any]) -> Scorer:
    return plugins.build(Scorer, configuration)


def queries_and_keys(dtype: torch.dtype = torch.float64, scale: float = 1.5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(2, 2, HEADS, QUERIES, CHANNELS, generator=generator, dtype=torch.float64) * scale
    return drawn[0].to(dtype), drawn[1].to(dtype)


def causal() -> Tensor:
    return torch.ones(QUERIES, QUERIES, dtype=torch.bool).tril()


def full() -> Tensor:
    return torch.ones(QUERIES, QUERIES, dtype=torch.bool)


@pytest.mark.parametrize(
    ("name", "knob", "value"),
    [
        ("softmax", "temperature", 0.7), ("entmax", "alpha", 1.3), ("entmax", "alpha", 1.9), ("ssa_fixed", "b", 0.8),
        ("ssa_fixed", "n", 1.7), ("linear", "temperature", 2.0), ("linearised_softmax", "temperature", 2.0),
        ("length_scaled_softmax", "scale", 0.6),
    ],
)  # fmt: skip
def test_gradients_of_knobs_are_those_of_finite_differences(name: str, knob: str, value: float) -> None:
    scorer, (query, key) = built({"name": name}), queries_and_keys(scale=0.9)

    def weights(tensor: Tensor) -> Tensor:
        return plugins.replace(scorer, {knob: tensor}).weights(query, key, causal(), {})

    assert torch.autograd.gradcheck(weights, (torch.tensor(value).double().requires_grad_(),), eps=1e-7, atol=2e-5)


# -- oracles ---------------------------------------------------------------------------------------------------------


def logits(scale: float = 1.0) -> Tensor:
    return scaled_logits(*queries_and_keys(scale=scale))


def of_logits(configuration: dict[str, Any], z: Tensor, visible: Tensor) -> Tensor:
    scorer = built(configuration)
    assert isinstance(scorer, LogitScorer)
    start = {name: p.start.values(torch.zeros(1, HEADS).double())[0] for name, p in scorer.parameters(HEADS).items()}
    return scorer.of_logits(z, visible, start)


def row_by_row(function: Any, z: Tensor) -> Tensor:
    """Return a numpy function of each causal row's visible logits, zeros elsewhere."""
    out = np.zeros(z.shape)
    for index in np.ndindex(*z.shape[:-1]):
        seen = index[-1] + 1
        out[(*index, slice(None, seen))] = function(z[index].numpy()[:seen])
    return torch.from_numpy(out)


ROWS: dict[str, tuple[dict[str, Any], Any]] = {
    "softmax": ({"temperature": 0.4}, lambda z: scipy.special.softmax(z / 0.4)),
    "softmax_learned": ({"temperature": 0.4}, lambda z: scipy.special.softmax(z / 0.4)),
    "softmax_evaluation": ({"temperature": 0.4}, scipy.special.softmax),
    "length_scaled_softmax": ({}, lambda z: scipy.special.softmax(z * np.log(len(z)))),
    "average": ({}, lambda z: np.full(len(z), 1 / len(z))),
    "sigmoid": ({}, lambda z: scipy.special.expit(z - np.log(len(z)))),
    "ssa": ({}, lambda z: (p := (1 + abs(z)) ** (np.sign(z) * 1.5)) / p.sum()),
    "ssa_fixed": ({"b": 0.7, "n": 2.0}, lambda z: (p := (1 + 0.7 * abs(z)) ** (np.sign(z) * 2)) / p.sum()),
    "sa_softmax": (
        {},
        lambda z: scipy.special.softmax(z) * (z - min(z.min(), 0)) / (max(z.max(), 0) - min(z.min(), 0)),
    ),
    "polynomial": ({}, lambda z: z**3 / np.sqrt(len(z))),
    "relu": ({}, lambda z: np.maximum(z, 0) / len(z)),
    "tanh": ({}, lambda z: np.tanh(z) / len(z)),
    "square": ({}, lambda z: z * z / len(z)),
    "linear": ({"temperature": 2.0}, lambda z: z / len(z) / 2),
    "linearised_softmax": ({"temperature": 2.0}, lambda z: (1 + (z - z.mean()) / 2) / len(z)),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_those_of_the_written_formula(name: str) -> None:
    fields, formula = ROWS[name]
    weights = of_logits({"name": name, **fields}, logits(), causal())
    torch.testing.assert_close(weights, row_by_row(formula, logits()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("n", "b"), [(0.6, 1.0), (-2.0, 0.5), (1.0, -0.7), (0.999, 1e-3)])
def test_what_an_optimizer_takes_out_of_ssas_range_is_reflected_into_it(n: float, b: float) -> None:
    """The weights are those of 1 + |n - 1| and |b|; the slope leads back, and is none of zero at the bound itself."""
    scorer, z = built({"name": "ssa"}), logits()
    assert isinstance(scorer, LogitScorer)

    def weights(n: Tensor) -> Tensor:
        return scorer.of_logits(z, causal(), {"n": n, "b": torch.full((HEADS,), b, dtype=torch.float64)})

    start = torch.full((HEADS,), n, dtype=torch.float64, requires_grad=True)
    inside_n, inside_b = 1 + abs(n - 1), abs(b)
    expected = row_by_row(lambda z: (p := (1 + inside_b * abs(z)) ** (np.sign(z) * inside_n)) / p.sum(), z)
    torch.testing.assert_close(weights(start).detach(), expected, rtol=1e-10, atol=1e-12)
    probe = torch.randn(z.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    [slope] = torch.autograd.grad((weights(start) * probe).sum(), start)
    away = 1e-6 if n >= 1 else -1e-6
    moved = ((weights(start + away) - weights(start)) * probe).sum((0, 2, 3)).detach() / away
    torch.testing.assert_close(slope, moved, rtol=1e-4, atol=1e-9)
    assert (slope.abs() > 0).all()


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 2.0, 2.01, 3.0, 4.0])
@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_entmax_is_the_entmax_packages(alpha: float, scale: float) -> None:
    z = logits(scale).requires_grad_()
    actual, expected = (
        of_logits({"name": "entmax", "alpha": alpha}, z, full()),
        oracle.entmax_bisect(z, alpha, n_iter=80),
    )
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)
    probe = torch.randn(z.shape, generator=torch.Generator().manual_seed(2)).double()
    gradient, other = (torch.autograd.grad((weights * probe).sum(), z)[0] for weights in (actual, expected))
    torch.testing.assert_close(gradient, other, rtol=1e-6, atol=1e-7)


def test_sparsemax_and_entmax15_are_the_packages_with_their_zeros() -> None:
    z = logits(2.0)
    sparse = of_logits({"name": "sparsemax"}, z, full())
    torch.testing.assert_close(sparse, oracle.sparsemax(z, dim=-1), rtol=1e-9, atol=1e-10)
    assert (sparse == 0).float().mean() > 0.2
    assert torch.equal(sparse == 0, oracle.sparsemax(z, dim=-1) == 0)
    torch.testing.assert_close(
        of_logits({"name": "entmax"}, z, full()), oracle.entmax15(z, dim=-1), rtol=1e-8, atol=1e-9
    )
    known = of_logits({"name": "sparsemax"}, torch.tensor([[[0, 0.5, 1, -0.2]]]).double(), torch.ones(1, 4).bool())
    torch.testing.assert_close(known, torch.tensor([[[0, 0.25, 0.75, 0]]]).double())


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.99, 2.0, 2.01, 3.0, 4.0])
@pytest.mark.parametrize("keys", [2, 1024, 8192])
def test_entmax_of_equal_logits_is_uniform_with_its_gradient_in_float32(alpha: float, keys: int) -> None:
    z, visible = torch.zeros(1, 1, keys, requires_grad=True), torch.ones(1, keys, dtype=torch.bool)
    weights = of_logits({"name": "entmax", "alpha": alpha}, z, visible)
    torch.testing.assert_close(weights, torch.full_like(z, 1 / keys), rtol=5e-5, atol=0)
    probe = torch.linspace(-1, 1, keys)
    [gradient] = torch.autograd.grad((weights * probe).sum(), z)
    size = keys ** (alpha - 2)  # p^(2 - alpha), the slope of each weight
    torch.testing.assert_close(gradient[0, 0] / size, probe, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("alpha", [1.0, 1 + 1e-9, 1 + 1e-7])
def test_entmax_meets_softmax_as_alpha_falls_to_one(alpha: float) -> None:
    z = logits(2.0).requires_grad_()
    actual = of_logits({"name": "entmax", "alpha": alpha}, z, causal())
    expected = of_logits({"name": "softmax"}, z, causal())
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(weights.square().sum(), z)[0] for weights in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_norm_softmax_divides_unscaled_logits_by_the_smaller_of_root_width_and_spread() -> None:
    query, key = queries_and_keys(scale=0.8)
    raw = (query @ key.mT).numpy()
    weights = built({"name": "norm_softmax"}).weights(query, key, causal(), {})

    def row(s: Any) -> Any:
        spread = s.std()
        return scipy.special.softmax(s / min(math.sqrt(CHANNELS), spread)) if len(s) > 1 else np.ones(1)

    torch.testing.assert_close(weights, row_by_row(row, torch.from_numpy(raw)), rtol=1e-7, atol=1e-9)


def test_linearised_softmax_is_softmaxs_first_order_expansion() -> None:
    zero = torch.zeros(QUERIES, dtype=torch.float64)
    slope: Any = torch.autograd.functional.jacobian(lambda z: torch.softmax(z, -1), zero)
    z = logits()
    expected = 1 / QUERIES + z @ slope.mT
    torch.testing.assert_close(of_logits({"name": "linearised_softmax"}, z, full()), expected, rtol=1e-10, atol=1e-12)


def test_adaptive_temperature_is_figure_4s_in_validation_and_softmax_in_training() -> None:
    scorer = built({"name": "adaptive_temperature"})
    generator = torch.Generator().manual_seed(0)
    z = (
        torch.randn(HEADS, QUERIES, 40, generator=generator).double()
        * torch.tensor([0.1, 1.0, 3.0, 30.0])[:, None, None]
    )
    everything = torch.ones(QUERIES, 40, dtype=torch.bool)
    assert isinstance(scorer, LogitScorer)
    sharp = scorer.evaluations()[""]
    assert isinstance(sharp, LogitScorer)
    torch.testing.assert_close(scorer.of_logits(z, everything, {}), torch.softmax(z, -1), rtol=1e-10, atol=1e-12)
    betas: list[float] = []
    for row, weights in zip(
        z.view(-1, 40).numpy(), sharp.of_logits(z, everything, {}).view(-1, 40).numpy(), strict=True
    ):
        entropy = scipy.stats.entropy(scipy.special.softmax(row))
        beta = max(float(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], entropy)), 1.0) if entropy > 0.5 else 1.0
        betas.append(beta)
        np.testing.assert_allclose(weights, scipy.special.softmax(row * beta), rtol=1e-5, atol=1e-8)
    assert max(betas) > 2
    assert min(betas) == 1


def test_cosformer_is_the_dense_formula() -> None:
    query, key = queries_and_keys()
    actual = built({"name": "cosformer"}).weights(query, key, causal(), {})
    expected = torch.zeros_like(actual)
    for n, h, i in np.ndindex(2, HEADS, QUERIES):
        row = [
            float(query[n, h, i].relu() @ key[n, h, j].relu()) * math.cos(math.pi / 2 * (i - j) / QUERIES)
            for j in range(i + 1)
        ]
        expected[n, h, i, : i + 1] = torch.tensor(row, dtype=torch.float64) / max(sum(row), 1e-6)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    cosines = [1, 0.9659, 0.8660, 0.7071, 0.5, 0.2588]
    ones = torch.ones(6, 1).double()
    weights = built({"name": "cosformer"}).weights(ones, ones, torch.ones(6, 6, dtype=torch.bool), {})[0]
    torch.testing.assert_close(weights, torch.tensor(cosines).double() / sum(cosines), rtol=1e-3, atol=1e-4)


def test_the_spline_kernel_is_phi_of_queries_times_phi_of_keys() -> None:
    query, key = queries_and_keys()
    scorer = built({"name": "spline_kernel", "phi": {"name": "relu"}})
    kernel = torch.einsum("nhqc,nhkc->nhqk", query.clamp(min=0), key.clamp(min=0)) * causal()
    expected = kernel / kernel.sum(-1, keepdim=True).clamp(min=1e-6)
    torch.testing.assert_close(scorer.weights(query, key, causal(), {}), expected, rtol=1e-10, atol=1e-12)


def test_mixed_heads_are_their_scorers() -> None:
    nested = {"name": "mixed", "first": {"name": "mixed", "first": {"name": "tanh"}}, "second": {"name": "square"}}
    z = logits()
    weights = of_logits({**nested, "first_heads": 3}, z, causal())
    for heads, name in [(slice(0, 2), "tanh"), (slice(2, 3), "average"), (slice(3, 4), "square")]:
        assert torch.equal(weights[:, heads], of_logits({"name": name}, z, causal())[:, heads])
    half = of_logits({"name": "mixed"}, z, causal())
    assert torch.equal(half[:, 2:], of_logits({"name": "average"}, z, causal())[:, 2:])


def test_mixed_heads_refuse_a_scorer_of_queries_and_keys() -> None:
    with pytest.raises(PluginError, match="'cosformer' reads queries and keys; mixed takes scorers of logits"):
        built({"name": "mixed", "second": {"name": "cosformer"}})


def test_mixed_heads_refuse_to_leave_the_second_scorer_without_one() -> None:
    for fields, heads in (({}, 1), ({"first_heads": 9}, 2)):
        with pytest.raises(PluginError, match=r"model\.scorer\.first_heads: \d of \d heads leave none for"):
            built({"name": "mixed", **fields}).parameters(heads)


def test_a_spline_kernel_refuses_a_gated_phi() -> None:
    with pytest.raises(PluginError, match=r"model\.scorer\.phi: a gated activation"):
        built({"name": "spline_kernel", "phi": {"name": "swiglu"}})


def test_temperature_at_inference_is_the_validations_alone() -> None:
    scorer, z = built({"name": "softmax_evaluation", "temperature": 3.0}), logits()
    validation = scorer.evaluations()[""]
    assert isinstance(scorer, LogitScorer)
    assert isinstance(validation, LogitScorer)
    torch.testing.assert_close(validation.of_logits(z, full(), {}), torch.softmax(z / 3, -1), rtol=1e-10, atol=1e-12)
    mixed = built({"name": "mixed", "second": {"name": "softmax_evaluation", "temperature": 3.0}}).evaluations()[""]
    assert isinstance(mixed, LogitScorer)
    torch.testing.assert_close(mixed.of_logits(z, full(), {})[:, 2:], torch.softmax(z / 3, -1)[:, 2:])


def test_refitting_the_adaptive_temperature_finds_the_best_temperatures() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(400, 12, generator=generator).double() * torch.linspace(0.5, 4, 400)[:, None].double()
    target = torch.randint(12, (400,), generator=generator)
    entropies, betas = [], []
    for row, right in zip(z.numpy(), target.tolist(), strict=True):
        if row.argmax() != right:
            grid = np.arange(1, 101) / 10
            best = max(grid, key=lambda temperature: scipy.special.softmax(row / temperature)[right])
            entropies.append(scipy.stats.entropy(scipy.special.softmax(row)))
            betas.append(1 / best)
    expected = np.polyfit(entropies, betas, 4)
    coefficients = fit_temperature(best_temperatures(z, target))
    np.testing.assert_allclose([coefficients[f"a{power}"] for power in (4, 3, 2, 1, 0)], expected, rtol=1e-6)


def test_a_temperature_is_estimated_from_the_moments_of_each_sequence() -> None:
    """Paper 004, Appendix J, in plain loops; where the mean logit of positions with themselves is negative it is 1."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 2, 5, 5, generator=generator).double() + torch.eye(5).double()
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    actual = EstimatedSoftmax(factor=0.5).weigh(logits, visible, {})
    estimates: list[float] = []
    for z, weights in zip(logits.flatten(0, 1).tolist(), actual.flatten(0, 1).tolist(), strict=True):
        rows = [[value - np.mean(row[: at + 1]) for value in row[: at + 1]] for at, row in enumerate(z)]
        first = np.mean([row[-1] for row in rows])
        second = np.mean([value**2 for row in rows for value in row[:-1]])
        estimates.append(0.5 * second / first)
        temperature = estimates[-1] if estimates[-1] > 0 else 1
        for at, row in enumerate(z):
            expected = scipy.special.softmax(np.array(row[: at + 1]) / temperature)
            np.testing.assert_allclose(weights[at], [*expected, *[0] * (4 - at)], atol=1e-12)
    assert min(estimates) < 0 < max(estimates)


def test_padding_does_not_change_an_estimated_temperature() -> None:
    z = torch.randn(2, 1, 7, 7, generator=torch.Generator().manual_seed(2)).double() + 2 * torch.eye(7).double()
    visible = (torch.arange(7) < 5).expand(7, 7)
    scorer, alone = EstimatedSoftmax(), torch.ones(5, 5, dtype=torch.bool)
    torch.testing.assert_close(
        scorer.weigh(z, visible, {})[..., :5, :5], scorer.weigh(z[..., :5, :5], alone, {}), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("estimated", [False, True])
def test_an_estimated_temperature_is_of_all_positions_and_so_not_padded(estimated: bool) -> None:
    evaluated = {"name": "softmax_evaluation", "estimated": estimated}
    for scorer in (built(evaluated), built({"name": "mixed", "second": evaluated})):
        assert isinstance(scorer, LogitScorer)
        assert scorer.may_pad is not estimated


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_keys_that_nobody_sees_change_weights_only_where_all_keys_count(variant: dict[str, Any]) -> None:
    scorer, (query, key) = built(variant), queries_and_keys()
    start = {name: parameter.start.values(torch.full((1, math.prod(parameter.shape)), 0.5).double())
             for name, parameter in scorer.parameters(HEADS).items()}  # fmt: skip
    learned = {name: start[name].reshape(parameter.shape) for name, parameter in scorer.parameters(HEADS).items()}
    weights = scorer.weights(query, key, causal(), learned)[..., :3, :3]
    alone = scorer.weights(query[..., :3, :], key[..., :3, :], causal()[:3, :3], learned)
    assert torch.allclose(weights, alone, atol=1e-12) is not scorer.counts_all_keys


def test_refitting_needs_queries_that_differ() -> None:
    z = torch.eye(6).double().repeat(20, 1)
    with pytest.raises(ValueError, match=r"entropies of .* are too alike to fit degree 4"):
        fit_temperature(best_temperatures(z, (z.argmax(-1) + 1) % 6))


def test_refitting_needs_queries_that_miss() -> None:
    z = torch.eye(6).double()
    with pytest.raises(ValueError, match="0 of 6 queries miss their target"):
        fit_temperature(best_temperatures(z, torch.arange(6)))
