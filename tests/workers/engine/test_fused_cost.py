"""The estimate of a fused step against what the emulator counts, and which step an estimate of a study chooses."""

from __future__ import annotations

from typing import Any

import pytest

from graft.launching.planning.gpu_estimate import describe_gpu_estimate, estimate_gpu
from graft.plugins.families import families
from spaces import load
from tests.support.emulated_gpu import count_phases
from tests.support.trials import config
from workers.engine.speed.cost import GPUS
from workers.engine.speed.fused_cost import FusedCost, count_fused_step
from workers.numerics import native
from workers.training.recipe import Recipe

H100 = GPUS["h100"]
BOTH = {"embedding_dropout": 0.3, "residual_dropout": 0.2}


def minimal(**model: Any) -> Recipe:
    sizes = {"length": 8, "vocabulary": 17, "width": 32, "key_width": 16, "value_width": 24, "batch": 128}
    return Recipe.of(config(dtype="float32", model=model, **sizes))


CASES = {
    "no dropout": minimal(),
    "embedding dropout": minimal(embedding_dropout=0.3),
    "residual dropout": minimal(residual_dropout=0.2),
    "both": minimal(**BOTH),
    "both, of tokens": minimal(**BOTH, dropout_unit="token"),
}


def cost_of(recipe: Recipe) -> FusedCost:
    cost = count_fused_step(recipe.pad(), H100)
    assert cost
    return cost


@pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
@pytest.mark.parametrize("name", CASES)
def test_phases_are_those_that_the_emulator_counts(name: str) -> None:
    phases, _ = count_phases(CASES[name])
    assert cost_of(CASES[name]).phases == pytest.approx(phases, rel=0.1)


def test_multiplications_are_those_counted_by_hand() -> None:
    """2,064 of each of 1,024 positions, and 8,424 with both dropouts; what the weights alone need comes to it."""
    for recipe, each in ((minimal(), 2064), (minimal(**BOTH), 8424)):
        assert 1024 * each <= cost_of(recipe).multiplications <= 1024 * each + 250_000


def test_a_gpu_is_filled_by_a_block_a_lane_and_waits_for_the_last_ones() -> None:
    cost = cost_of(minimal())
    assert cost.lanes_at_once(H100) == 264
    rates = {lanes: cost.rate(H100, lanes) for lanes in (16, 132, 264, 265, 528)}
    assert rates[132] == pytest.approx(rates[16] * 132 / 16)
    assert rates[132] < rates[264] == pytest.approx(rates[528])
    assert rates[265] == pytest.approx(rates[264] * 265 / 528)


@pytest.mark.long
def test_a_small_study_is_told_what_it_leaves_idle_and_the_faster_step_gives_its_time() -> None:
    change = {"search.trials": "64", "training.dtype": "float32", "training.pad_shapes": "true"}
    estimate = estimate_gpu(load("quick/set_complement", families(), change), "h100")
    fused = [structure for structure in estimate.counted if structure.fused_rate]
    assert fused
    for structure in fused:
        assert structure.step == ("fused" if structure.fused_rate > structure.used.model_steps_per_second else "traced")
        assert structure.seconds == pytest.approx(
            structure.model_steps / max(structure.fused_rate, structure.used.model_steps_per_second)
        )
        assert "of the GPU idle: " in structure.fused
        assert structure.filled == (
            structure.lanes / structure.blocks if structure.step == "fused" else structure.used.occupancy
        )
        assert structure.full_rate > 4 * structure.model_steps_per_second
    lines = [text for _, text in describe_gpu_estimate(estimate)]
    assert any(f"trials by the {fused[0].step} step: " in line for line in lines)


def test_a_small_study_is_told_how_many_blocks_its_packs_fill_side_by_side() -> None:
    estimate = estimate_gpu(load("quick/set_complement", families(), {"search.trials": "64"}), "h100")
    assert [structure.lanes for structure in estimate.counted] == [19, 11, 15, 19]
    lines = dict(reversed([*describe_gpu_estimate(estimate)]))
    assert [text for label, text in describe_gpu_estimate(estimate) if " side by side: " in text] == [
        "4 packs of 11 to 19 lanes side by side: 24% of its 264 blocks at work (an estimate, not measured)"
    ]
    longest = max(structure.seconds for structure in estimate.counted)
    assert estimate.seconds == pytest.approx(
        (max(longest, sum(structure.seconds for structure in estimate.counted) / 4),) * 2
    )
    assert lines["time"].endswith(" model-steps/s in all, if every trial trains to its end (an estimate)")
