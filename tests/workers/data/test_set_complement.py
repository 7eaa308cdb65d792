"""Set complement: data, loss and metrics against a dense re-derivation in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from spaces import plugins
from spaces.errors import PluginError
from tests.support.trials import FIRST_STEP
from workers.data.tasks import Task
from workers.data.tasks.set_complement import SetComplement
from workers.numerics.randomness import Purpose, Streams

TASK = SetComplement(length=3, vocabulary=6)


def streams(lanes: int = 2) -> Streams:
    return Streams.of(torch.arange(lanes) + 5, Purpose.TRAINING_DATA, 0)


def test_training_sequences_have_no_repetition_and_targets_follow_inputs() -> None:
    batch = TASK.training(streams(), 500, FIRST_STEP)
    assert batch["inputs"].shape == batch["targets"].shape == (2, 500, 3)
    assert torch.equal(batch["inputs"][..., 1:], batch["targets"][..., :-1])
    whole = torch.cat([batch["inputs"], batch["targets"][..., -1:]], -1)
    assert (whole.sort(-1).values.diff(dim=-1) > 0).all()
    assert whole.min() == 0
    assert whole.max() == 5


def test_validation_sequences_have_length_v_minus_one_and_are_uniform() -> None:
    inputs = TASK.validation(streams(1), 12_000)["inputs"][0]
    assert inputs.shape == (12_000, 5)
    assert (inputs.sort(-1).values.diff(dim=-1) > 0).all()
    counts = np.unique(inputs[:, 0] * 6 + inputs[:, 1], return_counts=True)[1]
    assert len(counts) == 30
    assert stats.chisquare(counts).pvalue > 1e-3


def metrics_by_hand(logits: np.ndarray, sequence: np.ndarray) -> dict[str, float]:
    """Equations 16-18 of paper 003 prefix by prefix, then the mean over the prefixes."""
    rows = []
    for s in range(1, len(sequence) + 1):
        seen = set(sequence[:s].tolist())
        p = np.exp(logits[s - 1] - logits[s - 1].max())
        p /= p.sum()
        exact = np.array([0 if t in seen else 1 / (len(p) - s) for t in range(len(p))])
        rows.append(
            (0.5 * np.abs(p - exact).sum(), sum(p[t] for t in seen), float(int(logits[s - 1].argmax()) in seen))
        )
    return dict(zip(("tvd", "itp", "itr"), np.mean(rows, axis=0), strict=True))


def test_metrics_equal_the_definitions() -> None:
    inputs = TASK.validation(streams(1), 50)["inputs"][0]
    logits = torch.randn(50, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    metrics = TASK.metrics(logits, {"inputs": inputs})
    for row in range(50):
        expected = metrics_by_hand(logits[row].numpy(), inputs[row].numpy())
        for name, value in expected.items():
            assert float(metrics[name][row]) == pytest.approx(value, abs=1e-12)


def test_the_exact_answer_scores_zero_and_uniform_logits_score_their_known_value() -> None:
    inputs = TASK.validation(streams(1), 20)["inputs"][0]
    seen = torch.nn.functional.one_hot(inputs, 6).cumsum(1).bool()
    perfect = torch.zeros(20, 5, 6, dtype=torch.float64).masked_fill(seen, -1e4)
    assert all(float(v.abs().max()) < 1e-12 for v in TASK.metrics(perfect, {"inputs": inputs}).values())
    flat = TASK.metrics(torch.zeros(20, 5, 6, dtype=torch.float64), {"inputs": inputs})
    assert float(flat["itp"][0]) == pytest.approx(np.mean([s / 6 for s in range(1, 6)]))
    assert float(flat["tvd"][0]) == pytest.approx(np.mean([s / 6 for s in range(1, 6)]))


def test_loss_is_the_cross_entropy_of_the_sampled_next_tokens() -> None:
    batch = {name: tensor[0] for name, tensor in TASK.training(streams(1), 30, FIRST_STEP).items()}
    logits = torch.randn(30, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
    torch.testing.assert_close(TASK.loss(logits, batch), expected)


def test_the_generalisation_gap_is_recorded() -> None:
    assert TASK.facts() == {"generalisation_gap": 2, "chance": 0.5}


def test_a_vocabulary_too_small_for_the_length_is_refused_in_one_line() -> None:
    with pytest.raises(PluginError, match=r"^task.length: 6 must be below task.vocabulary 6: .*distinct tokens$"):
        plugins.build(Task, {"name": "set_complement", "length": 6, "vocabulary": 6})
