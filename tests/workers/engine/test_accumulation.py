"""A step in parts is that of the whole batch, one in bfloat16 near that of float32; in a pack both are as alone."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from spaces.errors import PluginError
from tests.support.trials import FIRST_STEP, config, traced_step, trial
from workers.engine.pack import Pack
from workers.engine.retraining import retrain, weights
from workers.engine.step import describe_step
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tensors import inverse_root
from workers.training.recipe import Recipe, gradient_of, layout_of

GPT = {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_multiple": 2, "scorer": {"name": "ssa"}}
DROPOUTS = {"embedding_dropout": 0.2, "attention_dropout": 0.2, "mlp_dropout": 0.2, "weight_dropout": 0.1}
STORIES = {"name": "masked_language", "corpus": {"name": "stories", "words": 5000}, "length": 12, "rare": 5,
           "tokenizer": {"name": "character"}}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "tokens, dropout": {"model": {**GPT, **DROPOUTS}},
    "masks of tokens": {"model": {"name": "minimal", "width": 8, "key_width": 4, "value_width": 6,
                                  "embedding_dropout": 0.3, "dropout_unit": "token"}},
    "other counts in each part": {"task": STORIES, "model": {**GPT, "name": "encoder"}},
    "regression": {"task": {"name": "affine", "points": 6}, "model": {**GPT, "name": "regressor"}},
}  # fmt: skip


def with_training(case: str, **training: Any) -> dict[str, Any]:
    made = {**config(steps=4, every=4, batch=12, validation_batch=8), **CASES[case]}
    return {**made, "training": {**made["training"], **training}}


def learned(configuration: dict[str, Any]) -> dict[str, Any]:
    return weights(trial(0, configuration), variant="raw", steps=4, device="cpu", watch=lambda _: None)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", CASES)
def test_a_batch_in_parts_trains_as_the_whole_one(case: str) -> None:
    """In float64, up to the order of sums. A native step takes both as a whole, a traced one does not."""
    whole, native = learned(with_training(case)), learned(with_training(case, accumulate=3))
    with patch("workers.engine.pack.step_of", traced_step):
        traced = learned(with_training(case, accumulate=3))
    for name, array in whole.items():
        for parts in (native, traced):
            torch.testing.assert_close(torch.tensor(parts[name]), torch.tensor(array), rtol=1e-7, atol=1e-9)


def test_a_part_without_a_weighted_position_adds_nothing() -> None:
    """The loss of such a part is 0 / 0, which is no divergence of the trial."""
    results: list[tuple[Tensor, Tensor]] = []
    for parts in (1, 4):
        task = {"name": "haystack", "pairs": 2, "markers": 16}
        recipe = Recipe.of({**with_training("tokens, dropout", accumulate=parts), "model": GPT, "task": task})
        drawn = recipe.task.training(Streams.of(torch.tensor([3]), Purpose.TRAINING_DATA, 0), 12, FIRST_STEP)
        batch = {name: tensor[0].clone() for name, tensor in drawn.items()}
        batch["wanted"][6:] = False
        layout = layout_of(recipe)
        start = layout.initial(torch.tensor([1]))[0].to(recipe.dtype)
        results.append(gradient_of(recipe, layout, start, batch, {}))
    for whole, in_parts in zip(*results, strict=True):
        assert bool(whole.isfinite().all())
        torch.testing.assert_close(in_parts, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("training", [{"accumulate": 3}, {"autocast": "bfloat16", "dtype": "float32"}], ids=str)
def test_a_trial_in_a_pack_has_the_bits_of_the_trial_alone(training: dict[str, Any]) -> None:
    trials = [trial(number, with_training("tokens, dropout", **training), seed=number) for number in range(3)]
    pack = Pack(trials[0], width=4)
    pack.fill(trials)
    reports = pack.train(4)
    for candidate in trials:
        [alone] = retrain(candidate, steps=4, device="cpu", watch=lambda _: None)
        [packed] = [report for report in reports if report.number == candidate.number]
        if "autocast" not in training:
            assert packed.metrics == alone.metrics
            continue
        # torch's products of bfloat16 on a CPU may round by the number of lanes.
        for metric, other in zip(packed.metrics, alone.metrics, strict=True):
            assert metric[:3] == other[:3]
            assert metric.value == pytest.approx(other.value, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_root_of_a_norm_has_the_same_bits_at_any_place(dtype: torch.dtype) -> None:
    """Torch rounds roots in bfloat16 differently where a tensor ends, and lanes end at other places in a pack."""
    squares = torch.rand(99, generator=torch.Generator().manual_seed(1)).to(dtype) + 0.01
    roots = inverse_root(squares)
    assert roots.dtype == dtype
    assert all(torch.equal(inverse_root(squares[:size]), roots[:size]) for size in range(1, 99))


def test_bfloat16_changes_products_alone() -> None:
    plain = learned(with_training("tokens, dropout", dtype="float32"))
    cast = learned(with_training("tokens, dropout", dtype="float32", autocast="bfloat16"))
    distances = [abs(cast[name] - array).max() for name, array in plain.items()]
    assert 0 < max(distances) < 0.02
    assert all(array.dtype == "float32" for array in cast.values())


def test_bfloat16_is_traced_and_what_does_not_fit_is_refused() -> None:
    assert describe_step(with_training("tokens, dropout", accumulate=3), "cpu") == "native"
    cast = with_training("tokens, dropout", autocast="bfloat16", dtype="float32")
    assert describe_step(cast, "cpu") == "traced: the native steps know no training.autocast"
    for training, reason in [
        ({"accumulate": 5}, r"training\.accumulate: 5 must divide training\.batch 12"),
        ({"autocast": "bfloat16"}, r"training\.autocast: bfloat16 needs training\.dtype float32"),
    ]:
        with pytest.raises(PluginError, match=reason):
            Recipe.of(with_training("tokens, dropout", **training))
    padded = with_training("masks of tokens", accumulate=3, pad_shapes=True)
    with pytest.raises(PluginError, match="must be 1: its tensors are padded"):
        Recipe.of(padded)
