"""The counter-based streams: known answers, uniformity, independence of the place where they are drawn."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from scipy import special, stats

from workers.networks.models import HIGHEST_RATE
from workers.numerics import native, randomness
from workers.numerics.randomness import (
    GOLDEN,
    NativeSites,
    Purpose,
    SiteStreams,
    Streams,
    dropout_streams_and_thresholds,
    keep_mask,
    truncated_normal,
)

pytestmark = pytest.mark.fast

PUBLISHED = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
"""SplitMix64 from seed 1234567, the generator's published test vector."""


def streams(lanes: int, step: int = 0, purpose: Purpose = Purpose.TRAINING_DATA) -> Streams:
    return Streams.of(torch.arange(lanes) * 7919 + 11, purpose, step)


def test_words_are_splitmix64() -> None:
    words = Streams(state=torch.tensor([1234567])).words(5)[0].tolist()
    assert [word % 2**64 for word in words] == PUBLISHED


def test_a_lane_draws_the_same_alone_and_among_others() -> None:
    together = streams(9).words(100)
    for lane in range(9):
        single = Streams.of(torch.tensor([lane * 7919 + 11]), Purpose.TRAINING_DATA, 0)
        assert torch.equal(single.words(100)[0], together[lane])


def test_steps_given_as_number_and_as_tensor_agree() -> None:
    seeds = torch.tensor([5, 2**62, 77])
    by_tensor = Streams.of(seeds, Purpose.DROPOUT, torch.tensor([10**7, 10**7, 10**7]))
    assert torch.equal(Streams.of(seeds, Purpose.DROPOUT, 10**7).state, by_tensor.state)


def unmixed(word: int) -> int:
    """Return what SplitMix64's finalizer makes this 64-bit word of."""

    def unshift(z: int, shift: int) -> int:
        return z ^ (z >> shift) ^ (z >> 2 * shift)

    z = unshift(word, 31) * pow(0x94D049BB133111EB, -1, 2**64) % 2**64
    z = unshift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 2**64) % 2**64
    return unshift(z, 30)


@pytest.mark.parametrize("count", [1, 3, 256, 1000])
def test_normal_numbers_are_inverses_of_the_distribution(count: int) -> None:
    normal, uniform = streams(5).normal(count, 2), streams(5).uniform(count, 2)
    np.testing.assert_allclose(normal.numpy(), special.ndtri(uniform.numpy()), rtol=1e-13, atol=1e-14)
    alone = Streams(state=streams(5).state[2:3]).normal(count, 2)
    assert torch.equal(alone[0], normal[2])


@pytest.mark.parametrize("cell", [0, 1, 40, 113, 114, 115, 2**20, 2**40, 2**52 - 1, 2**52, 2**53 - 2, 2**53 - 10**6])
def test_normal_numbers_of_the_ends(cell: int) -> None:
    """114 cells of 2^-53 are e^-32, where another approximation begins."""
    stream = Streams(state=torch.tensor([randomness._wrap(unmixed(cell << 11) - GOLDEN)]))
    assert stream.uniform(1).item() == (cell + 0.5) / 2**53
    assert stream.normal(1).item() == pytest.approx(special.ndtri((cell + 0.5) / 2**53), rel=1e-13, abs=1e-15)


@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    step=st.integers(0, 2**40),
    site=st.integers(0, 200),
    rate=st.floats(0, HIGHEST_RATE),
)
def test_compiled_streams_are_torchs(seeds: list[int], step: int, site: int, rate: float) -> None:
    lane_seeds, steps = torch.tensor(seeds), torch.full((len(seeds),), step) + torch.arange(len(seeds))
    rates = torch.full((len(seeds),), rate, dtype=torch.float64)
    compiled = Streams.of(lane_seeds, Purpose.DROPOUT, steps, site)
    state, threshold = dropout_streams_and_thresholds(compiled, rates)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(randomness, "library", lambda _: None)
        expected = Streams.of(lane_seeds, Purpose.DROPOUT, steps, site)
        assert torch.equal(compiled.state, expected.state)
        for ours, torchs in zip((state, threshold), dropout_streams_and_thresholds(expected, rates), strict=True):
            assert torch.equal(ours, torchs)


@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
@given(
    seeds=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5),
    numbers=st.lists(st.integers(0, 200), unique=True, max_size=4),
    rate=st.floats(0, HIGHEST_RATE / 2),
)
def test_sites_are_drawn_at_their_places_as_one_by_one(seeds: list[int], numbers: list[int], rate: float) -> None:
    lane_seeds, steps = torch.tensor(seeds), 3 * torch.arange(len(seeds))
    rates = rate * (1 + torch.rand(len(numbers), len(seeds), dtype=torch.float64))
    places = torch.randperm(7)[: len(numbers)].tolist()
    streams = SiteStreams(seeds=lane_seeds, steps=steps)
    states, thresholds = NativeSites(numbers, places, 7).draw(streams, rates)
    expected = [torch.zeros_like(states), torch.zeros_like(thresholds)]
    for number, position, own_rates in zip(numbers, places, rates, strict=True):
        for wanted, drawn in zip(expected, dropout_streams_and_thresholds(streams[number], own_rates), strict=True):
            wanted[:, position] = drawn
    assert torch.equal(states, expected[0])
    assert torch.equal(thresholds, expected[1])


def test_streams_of_other_seeds_purposes_sites_and_steps_differ() -> None:
    states = {
        int(Streams.of(torch.tensor([seed]), purpose, step, site).state)
        for seed, purpose, step, site in itertools.product(range(20), Purpose, range(20), range(3))
    }
    assert len(states) == 20 * len(Purpose) * 20 * 3


def test_uniform_numbers_pass_kolmogorov_smirnov_within_and_across_lanes() -> None:
    numbers = streams(200).uniform(500)
    assert stats.kstest(numbers.flatten().numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(numbers[:, 0].numpy(), "uniform").pvalue > 1e-3
    assert 0 < numbers.min() < numbers.max() < 1


def test_bytes_are_uniform() -> None:
    counts = np.bincount(streams(10).bytes(10_001).flatten().numpy(), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_permutations_are_uniform_and_without_repetition() -> None:
    drawn = streams(4).permutations(6000, 4, 3)
    assert (drawn.sort(-1).values.diff(dim=-1) > 0).all()
    codes = (drawn * torch.tensor([16, 4, 1])).sum(-1).flatten().numpy()
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("rate", [0.0, 0.001, 0.1234, 0.5, HIGHEST_RATE])
def test_dropout_drops_at_exactly_its_rate_though_it_spends_one_byte(rate: float) -> None:
    """Over many calls the mean is the rate, also between the multiples of 1/256 that bytes alone could give."""
    rates = torch.full((4000,), rate, dtype=torch.float64)
    dropped = 1 - keep_mask(streams(4000, purpose=Purpose.DROPOUT), rates, 25, 10).double().mean((1, 2))
    error = float(dropped.mean() - rate)
    deviation = float(dropped.std() / 4000**0.5)
    assert abs(error) <= 4 * deviation + (0 if rate else 1e-12)


def test_the_dither_and_the_bytes_of_a_mask_share_no_word() -> None:
    state = torch.tensor([99])
    dither_word = Streams(state=state).words(1)
    mask_words = Streams(state=state + GOLDEN).words(1000)
    assert not torch.isin(dither_word, mask_words).any()


def test_truncated_normal_follows_scipy() -> None:
    drawn = truncated_normal(streams(20).uniform(1000).flatten(), deviation=0.02)
    expected = stats.truncnorm(-2, 2, scale=0.02)
    assert stats.kstest(drawn.numpy(), expected.cdf).pvalue > 1e-3
    assert float(drawn.abs().max()) <= 0.04
