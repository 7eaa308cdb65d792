"""Positions: every member against a formula written out in numpy, and what each promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from spaces.errors import PluginError
from workers.networks.positions import Position
from workers.networks.positions.alibi import Alibi, slopes
from workers.networks.positions.learned import Learned
from workers.networks.positions.rotary import Rotary
from workers.networks.positions.sinusoidal import Sinusoidal

pytestmark = pytest.mark.fast


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def scores(position: Position, query: Tensor, key: Tensor) -> Tensor:
    """Logits [h, s, s] of queries and keys [h, s, c], with the positions' turning and bias."""
    heads, length, channels = query.shape
    logits = position.rotate(query) @ position.rotate(key).mT / channels**0.5
    bias = position.bias(heads, random(1, length, heads * channels))
    return logits if bias is None else logits + bias


def test_learned_positions_are_rows_of_a_table_as_long_as_the_longest_input() -> None:
    assert Learned().parameters(8, 11)["table"].shape == (11, 8)
    assert Learned(longest=20).parameters(8, 11)["table"].shape == (20, 8)
    table, stream = random(11, 8), random(2, 5, 8)
    expected = stream + torch.nn.functional.embedding(torch.arange(5), table)
    assert torch.equal(Learned().add_to(stream, {"table": table}), expected)


def test_learned_positions_refuse_a_table_that_is_too_short() -> None:
    Learned(longest=11).check(11, 4)
    with pytest.raises(PluginError, match=r"longest: 10 must be 0 or at least 11, the task's longest input"):
        Learned(longest=10).check(11, 4)


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoids_are_those_of_the_formula(width: int) -> None:
    expected = np.empty((9, width))
    for t in range(9):
        for channel in range(width):
            angle = t / 1000 ** (2 * (channel // 2) / (width + width % 2))
            expected[t, channel] = 0.1 * (np.cos(angle) if channel % 2 else np.sin(angle))
    actual = Sinusoidal(base=1000.0, scale=0.1).add_to(torch.zeros(1, 9, width, dtype=torch.float64), {})
    np.testing.assert_allclose(actual[0].numpy(), expected, atol=1e-13)


def test_rotary_multiplies_complex_pairs_by_their_phase() -> None:
    vectors = random(3, 9, 6)
    pairs = vectors[..., :3].numpy() + 1j * vectors[..., 3:].numpy()
    phase = np.exp(1j * np.arange(9)[:, None] * 10000.0 ** (-2 * np.arange(3) / 6))
    turned = pairs * phase
    expected = torch.tensor(np.concatenate([turned.real, turned.imag], axis=-1))
    torch.testing.assert_close(Rotary().rotate(vectors), expected)


def test_rotary_logits_depend_on_the_distance_alone_and_keep_lengths() -> None:
    query, key = (random(1, 1, 8).expand(1, 10, 8) * factor for factor in (1.0, -0.5))
    logits = scores(Rotary(base=50.0), query, key)[0]
    for distance in range(-9, 10):
        diagonal = logits.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    vectors = random(2, 10, 8)
    torch.testing.assert_close(Rotary().rotate(vectors).norm(dim=-1), vectors.norm(dim=-1))


def test_rotary_refuses_heads_of_odd_width() -> None:
    with pytest.raises(PluginError, match="rotary needs heads of an even width, but width / heads is 5"):
        Rotary().check(10, 5)


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2**-1, 2**-2, 2**-3, 2**-4, 2**-5, 2**-6, 2**-7, 2**-8]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_slopes_are_those_of_its_paper(heads: int, expected: list[float]) -> None:
    """8 heads: section 3 of Press et al.; the others: what the authors' get_slopes returns."""
    assert slopes(heads) == pytest.approx(expected)


def test_alibi_grows_linearly_with_the_distance() -> None:
    bias = Alibi().bias(8, torch.zeros(1, 5, 16))
    for head in range(8):
        for query in range(5):
            for key in range(query + 1):
                assert bias[head, query, key] == pytest.approx(-(2.0 ** -(head + 1)) * (query - key))
