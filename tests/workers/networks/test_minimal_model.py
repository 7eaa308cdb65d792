"""The minimal transformer: the hand-built solution of paper 003, and exactness of the table rewrite."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.support.trials import config, set_parameters, trial
from workers.engine.pack import Pack
from workers.networks.models.minimal import Minimal
from workers.networks.scorers.average import Average

PRECISION = 7.0


def hand_built(v: int) -> dict[str, Tensor]:
    """Return example 4.1: embeddings e_1 .. e_{v-1} and minus their sum; values scaled by v C; attention constant.

    The paper takes E' = E. A real RMSNorm makes every row's mean square 1, so E'_i = sqrt(v-1) e_i and E'_v = -1.
    """
    d = v - 1
    identity = torch.eye(d, dtype=torch.float64)
    return {
        "embedding": torch.cat([identity, -torch.ones(1, d, dtype=torch.float64)]),
        "norm": torch.ones(d, dtype=torch.float64),
        "query": torch.zeros(d, 1, dtype=torch.float64),
        "key": torch.zeros(d, 1, dtype=torch.float64),
        "value": v * PRECISION * identity,
        "output": identity,
        "unembedding": torch.cat([-identity, torch.zeros(d, 1, dtype=torch.float64)], dim=1),
    }


@pytest.mark.parametrize("v", [3, 5])
@pytest.mark.parametrize("scorer", ["softmax", "average"])
def test_example_4_1_is_exact_on_every_prefix(v: int, scorer: str) -> None:
    """Legal logits are equal, and every illegal one is lower by at least C v / (v - 1): the largest is C (v=3, s=1)."""
    model = Minimal(width=v - 1, key_width=1, value_width=v - 1, norm_epsilon=0.0)
    if scorer == "average":
        model = Minimal(width=v - 1, key_width=1, value_width=v - 1, norm_epsilon=0.0, scorer=Average())
    margins = []
    for length in range(1, v):
        for prefix in itertools.permutations(range(v), length):
            logits = model.outputs(hand_built(v), {"inputs": torch.tensor([prefix])}, {})[0, -1]
            legal = [t for t in range(v) if t not in prefix]
            assert float(logits[legal].max() - logits[legal].min()) < 1e-9
            margins.append(float(logits[legal].min() - logits[list(prefix)].max()))
    assert min(margins) >= v * PRECISION / (v - 1) - 1e-9
    assert min(margins) > PRECISION


@pytest.mark.parametrize("v", [3, 5])
def test_example_4_1_loaded_into_a_pack_has_no_illegal_token(v: int) -> None:
    settings = config(length=2, vocabulary=v, width=v - 1, key_width=1, value_width=v - 1, validation_batch=64)
    settings["model"]["norm_epsilon"] = 0.0
    candidate = trial(0, settings)
    pack = Pack(candidate, width=1)
    pack.fill([candidate])
    set_parameters(pack, 0, hand_built(v))
    metrics = {(m.name, m.variant): m.value for m in pack.evaluate([0])[0]}
    assert metrics["itr", "raw"] == 0
    assert metrics["itp", "raw"] < 1e-3
    assert metrics["tvd", "raw"] < 1e-3


def random_parameters(v: int, d: int, d_k: int, d_v: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "embedding": (v, d), "norm": (d,), "query": (d, d_k), "key": (d, d_k), "value": (d, d_v),
        "output": (d_v, d), "unembedding": (d, v),
    }  # fmt: skip
    return {n: torch.randn(*s, dtype=torch.float64, generator=generator) for n, s in shapes.items()}


def test_computing_by_token_equals_computing_by_occurrence() -> None:
    """With masks that keep everything and rates of zero, the two ways through the model are the same function."""
    model = Minimal(width=6, key_width=3, value_width=5)
    parameters = random_parameters(7, 6, 3, 5)
    inputs = torch.tensor([[0, 3, 5, 1], [6, 2, 1, 0]])
    everything = torch.ones(2, 4, 6, dtype=torch.bool)
    by_token = model.outputs(parameters, {"inputs": inputs}, {})
    for keep in (
        {"embedding": everything},
        {"residual": everything},
        {"embedding": everything, "residual": everything},
    ):
        torch.testing.assert_close(
            model.outputs(parameters, {"inputs": inputs}, keep), by_token, rtol=1e-12, atol=1e-12
        )


def test_dropped_rows_of_the_residual_site_vanish_and_the_rest_is_scaled() -> None:
    """Residual dropout acts on the row of each occurrence before attention mixes the rows (paper 003, 3.2)."""
    model = Minimal(width=6, key_width=3, value_width=5, residual_dropout=0.5, scorer=Average())
    parameters = random_parameters(7, 6, 3, 5)
    inputs = torch.tensor([[0, 3, 5]])
    keep = torch.ones(1, 3, 6, dtype=torch.bool)
    keep[0, 1] = False
    logits = model.outputs(parameters, {"inputs": inputs}, {"residual": keep})[0, 2]
    normed = torch.nn.functional.rms_norm(parameters["embedding"], (6,), parameters["norm"], 1e-6)
    rows = normed @ parameters["value"] @ parameters["output"]
    mixed = 2 * (rows[0] + rows[5]) / 3
    torch.testing.assert_close(logits, (parameters["embedding"][5] + mixed) @ parameters["unembedding"])


def test_a_prefix_is_blind_to_what_follows() -> None:
    model, parameters = Minimal(width=6, key_width=3, value_width=5), random_parameters(7, 6, 3, 5)
    logits = model.outputs(parameters, {"inputs": torch.tensor([[0, 3, 5, 1]])}, {})
    other = model.outputs(parameters, {"inputs": torch.tensor([[0, 3, 2, 6]])}, {})
    assert torch.equal(logits[:, :2], other[:, :2])
    assert not torch.equal(logits[:, 2], other[:, 2])


@pytest.mark.parametrize("sites", [("embedding",), ("residual",), ("embedding", "residual")])
def test_dropping_whole_tokens_is_the_same_mask_at_every_occurrence(sites: tuple[str, ...]) -> None:
    rates = {f"{site}_dropout": 0.4 for site in sites}
    parameters, inputs = random_parameters(7, 6, 3, 5), torch.tensor([[0, 3, 5, 1], [6, 2, 1, 0]])
    masks = {site: torch.rand(7, 6, generator=torch.Generator().manual_seed(1)) > 0.4 for site in sites}
    by_token = Minimal(width=6, key_width=3, value_width=5, dropout_unit="token", **rates)
    by_occurrence = Minimal(width=6, key_width=3, value_width=5, **rates)
    actual = by_token.outputs(parameters, {"inputs": inputs}, masks)
    expected = by_occurrence.outputs(
        parameters, {"inputs": inputs}, {site: mask[inputs] for site, mask in masks.items()}
    )
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
