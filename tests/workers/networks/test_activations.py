"""Activations: every member against torch.nn.functional, numpy or a formula, its gradients, and splines in full."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from spaces import plugins
from spaces.errors import PluginError
from tests.support.plug_ins import example, shipped
from workers.networks.activations import Activation
from workers.networks.activations._spline import gather_knots, interpolate, positions, symmetrise
from workers.networks.activations.chebyshev import Chebyshev
from workers.networks.activations.gaussian_wavelet import GaussianWavelet
from workers.networks.activations.gelu import Gelu
from workers.networks.activations.polynomial import Polynomial
from workers.networks.activations.sinc import Sinc
from workers.networks.activations.spline import Spline
from workers.networks.models import Model
from workers.numerics.native import available
from workers.numerics.parameters import Parameters

functional = nn.functional


def build(name: str, **fields: object) -> Activation:
    return plugins.build(Activation, {**example(Activation, name), **fields})


def learned_by(activation: Activation, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: p.shape for name, p in activation.parameters().items()}
    return {n: torch.randn(*s, generator=generator, dtype=torch.float64) for n, s in shapes.items()}


def values_for(activation: Activation, *shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(*shape, 4 * activation.inputs, generator=generator, dtype=torch.float64)


def halves(gate: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Parameters], Tensor]:
    return lambda x, _: gate(x[..., :4]) * x[..., 4:]


def by_numpy(x: Tensor, knots: Tensor, low: float = -20, high: float = 20) -> Tensor:
    return torch.tensor(np.interp(x.numpy(), np.linspace(low, high, len(knots)), knots.numpy()))


def series_of(fit: Callable[..., np.polynomial.Polynomial], x: Tensor, there: np.ndarray, knots: Tensor) -> Tensor:
    series = fit(there, by_numpy(torch.tensor(there), knots).numpy(), 18, domain=[-20, 20])
    return torch.tensor(series(x.clamp(-20, 20).numpy()))


EVENLY = np.linspace(-20, 20, 121)
NODES = 20 * np.polynomial.chebyshev.chebpts1(121)

ORACLES: Mapping[str, Callable[[Tensor, Parameters], Tensor]] = {
    "identity": lambda x, _: x,
    "relu": lambda x, _: functional.relu(x),
    "relu_squared": lambda x, _: functional.relu(x) ** 2,
    "gelu": lambda x, _: functional.gelu(x),
    "tanh": lambda x, _: torch.tensor(np.tanh(x.numpy())),
    "sinc": lambda x, _: torch.tensor(np.sinc(x.numpy() / np.pi)),
    "gaussian_wavelet": lambda x, _: torch.tensor(np.cos(x.numpy()) * np.exp(-(x.numpy() ** 2))),
    "glu": lambda x, _: functional.glu(x.roll(4, -1)),
    "reglu": halves(functional.relu),
    "geglu": halves(functional.gelu),
    "swiglu": halves(functional.silu),
    "gated": lambda x, _: torch.tensor(np.tanh(x[..., :4].numpy())) * x[..., 4:],
    "spline": lambda x, learned: by_numpy(x, learned["knots"]),
    "polynomial": lambda x, learned: series_of(np.polynomial.Polynomial.fit, x, EVENLY, learned["knots"]),
    "chebyshev": lambda x, learned: series_of(np.polynomial.Chebyshev.fit, x, NODES, learned["knots"]),
}


def test_every_activation_has_an_independent_implementation() -> None:
    assert ORACLES.keys() == shipped(Activation)


@pytest.mark.parametrize("name", ORACLES)
def test_values_are_those_of_an_independent_implementation(name: str) -> None:
    activation = build(name)
    values, learned = values_for(activation, 50), learned_by(activation)
    tolerance = 1e-8 if name in ("polynomial", "chebyshev") else 1e-12
    expected = ORACLES[name](values, learned)
    torch.testing.assert_close(activation.apply(values, learned), expected, rtol=tolerance, atol=tolerance)


def test_a_gate_may_be_a_spline_that_learns() -> None:
    gated = plugins.build(Activation, {"name": "gated", "gate": {"name": "spline", "knots": 9, "low": -2, "high": 2}})
    values, learned = values_for(gated, 50), learned_by(gated)
    assert learned.keys() == {"gate.knots"}
    expected = by_numpy(values[..., :4], learned["gate.knots"], -2, 2) * values[..., 4:]
    torch.testing.assert_close(gated.apply(values, learned), expected)
    with pytest.raises(PluginError, match="a gated activation is no function of one number"):
        plugins.build(Activation, {"name": "gated", "gate": {"name": "swiglu"}})


def test_gelu_has_a_tanh_form() -> None:
    x = torch.linspace(-4, 4, 50, dtype=torch.float64)
    torch.testing.assert_close(Gelu(form="tanh").apply(x, {}), functional.gelu(x, approximate="tanh"))
    assert not torch.equal(Gelu(form="tanh").apply(x, {}), Gelu().apply(x, {}))


def test_frequency_and_sharpness_stretch_the_waves() -> None:
    x = torch.linspace(-3, 3, 41, dtype=torch.float64)
    torch.testing.assert_close(Sinc(frequency=2.5).apply(x, {}), torch.sinc(2.5 * x / math.pi))
    wave = GaussianWavelet(frequency=4.0, sharpness=0.5).apply(x, {})
    torch.testing.assert_close(wave, torch.exp(-x.square() / 4) * torch.cos(4 * x))


def test_the_derivative_of_sinc_keeps_its_digits_near_zero() -> None:
    """sin'(x)/x - sin(x)/x^2 would lose them all: near 0 the derivative is -x/3 + x^3/30."""
    x = torch.tensor([0.0, 1e-6, 1e-3, 0.04, 0.06], requires_grad=True)
    (slope,) = torch.autograd.grad(Sinc().apply(x, {}).sum(), x)
    torch.testing.assert_close(slope, (-x / 3 + x**3 / 30).detach(), rtol=1e-4, atol=0)


# -- splines ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    knots=st.lists(st.floats(-50, 50), min_size=2, max_size=40),
    low=st.floats(-30, 29),
    length=st.floats(0.1, 60),
    points=st.lists(st.floats(-100, 100), min_size=1, max_size=30),
)
def test_a_spline_is_what_numpy_interpolates(
    knots: list[float], low: float, length: float, points: list[float]
) -> None:
    there, high = torch.tensor(points, dtype=torch.float64), low + length
    values = torch.tensor(knots, dtype=torch.float64)
    expected = by_numpy(there, values, low, high)
    torch.testing.assert_close(interpolate(there, values, low, high), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
def test_the_compiled_spline_is_the_one_of_torchs_operations_with_its_gradients(count: int) -> None:
    """In stacked lanes, each with its own knots and range; points beyond the ends, at a knot, and none."""
    if not available():
        pytest.skip("no compiler")
    generator = torch.Generator().manual_seed(count)
    points = 12 * torch.randn(3, count, generator=generator, dtype=torch.float64)
    points[:, 0] = torch.tensor([1e3, -1e3, 20.0])
    knots = torch.randn(3, 31, generator=generator, dtype=torch.float64)
    low, high = -torch.tensor([5.0, 10, 20]).double(), torch.tensor([6.0, 10, 15]).double()
    upstream = torch.randn(3, count, generator=generator, dtype=torch.float64)

    def compiled(points: Tensor, knots: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return interpolate(points, knots, low, high)

    def plain(points: Tensor, knots: Tensor, low: Tensor, high: Tensor) -> Tensor:
        return gather_knots(points, knots, low, 30 / (high - low))

    def with_gradients(spline: Any) -> Any:
        def one(points: Tensor, knots: Tensor, low: Tensor, high: Tensor, upstream: Tensor) -> Any:
            values, pull = torch.func.vjp(lambda *parts: spline(*parts, low, high), points, knots)
            return values, *pull(upstream)

        return torch.func.vmap(one)(points, knots, low, high, upstream)

    actual, expected = with_gradients(compiled), with_gradients(plain)
    for mine, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)
    nothing = torch.full((2,), math.nan, dtype=torch.float64)
    assert interpolate(nothing, knots[0], -1.0, 1.0).isnan().all()


@pytest.mark.parametrize("count", [2, 121, 361])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-12)])
def test_a_spline_goes_through_its_knots(count: int, dtype: torch.dtype, tolerance: float) -> None:
    """In float32 to the rounding of the position: an input near 20 is itself known to 2e-6, of a cell of 1/9."""
    knots = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    there = torch.tensor(np.linspace(-20, 20, count))
    actual = interpolate(there.to(dtype), knots.to(dtype), -20.0, 20.0)
    torch.testing.assert_close(actual.double(), knots, rtol=0, atol=tolerance)


def test_a_spline_in_float32_differs_from_numpy_by_rounding_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    knots = torch.randn(361, generator=generator)
    points = 8 * torch.randn(20_000, generator=generator)
    expected = by_numpy(points.double(), knots.double())
    torch.testing.assert_close(interpolate(points, knots, -20.0, 20.0).double(), expected, rtol=0, atol=2e-4)


def test_a_spline_of_half_precision_points_is_as_exact_as_they_are() -> None:
    knots = torch.randn(361, generator=torch.Generator().manual_seed(0))
    points = (8 * torch.randn(2000, generator=torch.Generator().manual_seed(1))).bfloat16()
    expected = by_numpy(points.double(), knots.double()).bfloat16()
    torch.testing.assert_close(interpolate(points, knots, -20.0, 20.0), expected, rtol=0.01, atol=2e-3)


def test_a_spline_starts_as_gelu_or_zero_on_evenly_spaced_knots() -> None:
    uniform = torch.full((2, 361), 0.5, dtype=torch.float64)
    start = Spline(knots=361).parameters()["knots"].start.values(uniform)
    grid = torch.tensor(np.linspace(-20, 20, 361))
    torch.testing.assert_close(start, functional.gelu(grid).expand(2, -1), rtol=0, atol=1e-12)
    assert not Spline(start="zero").parameters()["knots"].start.values(uniform).any()
    assert torch.equal(positions(361, -20, 20)[[0, 180, 360]], torch.tensor([-20.0, 0.0, 20.0]).double())


def test_a_spline_of_gelu_is_gelu_up_to_the_curvature_of_a_cell() -> None:
    """|error| <= spacing^2 / 8 * max |f''|, and GELU's second derivative is at most 0.8 (at 0)."""
    spline = Spline()
    knots = spline.parameters()["knots"].start.values(torch.full((121,), 0.5, dtype=torch.float64))
    points = torch.linspace(-25, 19.9, 5000, dtype=torch.float64)
    distance = (spline.apply(points, {"knots": knots}) - functional.gelu(points)).abs()
    assert 0.8 / 72 * 0.5 < float(distance.max()) <= 0.8 / 72


def test_a_range_upside_down_is_refused_with_both_ends() -> None:
    with pytest.raises(PluginError, match=r"low: 3 must be below model\.activation\.high 2"):
        Spline(low=3.0, high=2.0)
    with pytest.raises(PluginError, match=r"low: 3 must be below model\.activation\.high 2"):
        Chebyshev(low=3.0, high=2.0)


# -- polynomials -----------------------------------------------------------------------------------------------------


def test_approximations_refuse_what_cannot_be_fitted() -> None:
    with pytest.raises(PluginError, match=r"points: 10 must be above model\.activation\.degree 10"):
        Polynomial(degree=10, points=10)
    with pytest.raises(PluginError, match="a gated activation is no function of one number"):
        Polynomial(of=build("swiglu"))


def test_chebyshev_interpolation_is_numpys_and_its_error_falls_with_the_degree() -> None:
    errors = []
    for degree in (4, 8, 16, 32):
        series = Chebyshev(degree=degree, points=degree + 1, of=build("tanh"), low=-3.0, high=5.0)
        oracle = np.polynomial.Chebyshev.interpolate(np.tanh, degree, domain=[-3, 5])
        np.testing.assert_allclose(series.coefficients(torch.zeros(1).double(), {}).numpy(), oracle.coef, atol=1e-13)
        grid = np.linspace(-3, 5, 10_001)
        distance = oracle(grid) - np.tanh(grid)
        assert series.error({}) == pytest.approx((np.sqrt(np.mean(distance**2)), np.abs(distance).max()), rel=1e-6)
        errors.append(series.error({})[1])
    assert all(later < sooner / 3 for sooner, later in pairwise(errors))


@pytest.mark.parametrize("kind", [Polynomial, Chebyshev])
def test_a_polynomial_of_low_degree_is_reproduced(kind: type[Polynomial] | type[Chebyshev]) -> None:
    fitted = kind(degree=6, of=build("identity"), low=-2.0, high=3.0)
    x = torch.linspace(-2, 3, 30, dtype=torch.float64)
    torch.testing.assert_close(fitted.apply(x, {}), x, rtol=0, atol=1e-12)
    assert fitted.error({})[1] < 1e-12


def test_beyond_the_range_a_polynomial_keeps_its_end_or_is_zero() -> None:
    x = torch.tensor([-9.0, -1.0, 2.0, 9.0], dtype=torch.float64)
    constant = Chebyshev(degree=3, of=build("identity"), low=-1.0, high=2.0)
    torch.testing.assert_close(constant.apply(x, {}), x.clamp(-1, 2))
    zero = Chebyshev(degree=3, of=build("identity"), low=-1.0, high=2.0, beyond="zero")
    torch.testing.assert_close(zero.apply(x, {}), torch.tensor([0.0, -1.0, 2.0, 0.0], dtype=torch.float64))


def test_chebyshev_keeps_more_digits_than_powers_in_single_precision() -> None:
    knots = {"knots": torch.sin(torch.linspace(-6, 6, 121))}
    series, powers = (kind(degree=18, low=-15.0, high=15.0).error(knots)[1] for kind in (Chebyshev, Polynomial))
    exact = Chebyshev(degree=18, low=-15.0, high=15.0).error({"knots": knots["knots"].double()})[1]
    assert series < exact + 1e-5
    assert powers > series


# -- symmetry --------------------------------------------------------------------------------------------------------


def by_hand(knots: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the best correlation and the average, by loops over the three images and every shift."""
    n, best, average = len(knots), -math.inf, knots
    for image in (knots[::-1], -knots, -knots[::-1]):
        for shift in range(-(n - 1), n):
            moved = [image[i - shift] if 0 <= i - shift < n else 0.0 for i in range(n)]
            if np.dot(knots, moved) > best + 1e-9:
                best = float(np.dot(knots, moved))
                average = (knots + [image[min(max(i - shift, 0), n - 1)] for i in range(n)]) / 2
    return best / float(knots @ knots), average


@pytest.mark.parametrize("seed", range(8))
def test_the_symmetrised_spline_is_that_of_a_search_by_hand(seed: int) -> None:
    knots = np.random.default_rng(seed).normal(size=15)
    symmetry = symmetrise(torch.tensor(knots))
    correlation, average = by_hand(knots)
    assert symmetry.correlation == pytest.approx(correlation)
    np.testing.assert_allclose(symmetry.knots.numpy(), average, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "axis", "sign"), [(lambda x: np.exp(-((x - 1) ** 2)), "x", 1), (lambda x: np.sin(x), "xy", -1)]
)
def test_what_is_symmetric_about_a_point_stays_and_says_how(
    function: Callable[[np.ndarray], np.ndarray], axis: str, sign: int
) -> None:
    knots = torch.tensor(function(np.linspace(-5, 5, 101)))
    symmetry = symmetrise(knots)
    assert symmetry.axis == axis
    assert symmetry.correlation == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(symmetry.knots, knots, rtol=0, atol=1e-6)
    moved = symmetry.knots.roll(-symmetry.shift // 2) if sign == 1 else symmetry.knots
    torch.testing.assert_close(moved, sign * moved.flip(0), rtol=0, atol=1e-6)


def test_a_polynomial_in_powers_has_a_highest_degree() -> None:
    with pytest.raises(PluginError, match=r"degree: 21 must be at most 20 .* choose chebyshev"):
        Polynomial(degree=21)
    Chebyshev(degree=36)


VALUES = "0.3 -0.2 0.1 0.5 0.9"


def test_a_given_spline_starts_at_its_values_and_frozen_has_nothing_to_learn() -> None:
    numbers = [float(word) for word in VALUES.split()]
    there = torch.linspace(-3, 3, 50, dtype=torch.float64)
    expected = by_numpy(there, torch.tensor(numbers, dtype=torch.float64), -2.0, 2.0)
    fields: dict[str, Any] = {"knots": 5, "low": -2.0, "high": 2.0, "start": "given", "values": VALUES}
    learned, frozen = Spline(**fields), Spline(**fields, frozen=True)
    start = learned.parameters()["knots"].start.values(torch.full((1, 5), 0.5, dtype=torch.float64))[0]
    torch.testing.assert_close(learned.apply(there, {"knots": start}), expected, rtol=1e-12, atol=1e-12)
    [kept] = frozen.parameters().values()
    assert kept.frozen
    assert torch.equal(kept.start.values(torch.full((1, 5), 0.5, dtype=torch.float64))[0], start)
    cleaned = Spline(**fields, frozen=True, symmetrised=True).parameters()["knots"]
    knots = symmetrise(torch.tensor(numbers, dtype=torch.float64)).knots
    assert torch.equal(cleaned.start.values(torch.full((1, 5), 0.5, dtype=torch.float64))[0], knots)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"values": "1 2"}, "'gelu' must be 'given' with values"),
        ({"frozen": True}, "'gelu' must be 'given'"),
        ({"start": "given", "values": "1 2"}, "2 numbers must be 5, one a knot"),
        ({"start": "given", "values": "1 2 x 4 5"}, "must be numbers"),
        ({"start": "given", "values": "1 2 nan 4 5"}, "must be finite numbers"),
        ({"start": "given", "values": "0 0 0 0 0", "symmetrised": True}, "not all 0"),
    ],
)
def test_values_that_do_not_fit_a_spline_are_told(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(PluginError, match=words):
        Spline(knots=5, **fields)


def test_an_approximation_tells_how_far_off_it_is() -> None:
    for member in (Chebyshev(degree=9), Polynomial(degree=9, of=Gelu())):
        there = torch.linspace(-20, 20, 10_001, dtype=torch.float64)
        knots = Spline().parameters()["knots"].start.values(torch.full((1, 121), 0.5, dtype=torch.float64))[0]
        distance = member.apply(there, {"knots": knots}) - member.of.apply(there, {"knots": knots})
        facts = member.facts()
        assert facts["approximation_error"] == pytest.approx(float(distance.square().mean().sqrt()), rel=1e-6)
        assert facts["largest_approximation_error"] == pytest.approx(float(distance.abs().max()), rel=1e-6)
    model = plugins.build(Model, {"name": "transformer", "width": 4, "activation": {"name": "chebyshev", "degree": 9}})
    assert plugins.facts(model)["activation.approximation_error"] == Chebyshev(degree=9).facts()["approximation_error"]
