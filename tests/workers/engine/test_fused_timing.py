"""Which step trains a pack on a GPU is decided by its width, and told; with a GPU that is only named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from graft.plugins.collecting import plugins_asked_for
from graft.stored.fingerprints import StoredFingerprint, describe_gpu_rates
from spaces.plugins.active import using
from tests.support.emulated_gpu import HOPPER
from tests.support.trials import config
from workers.engine import fused
from workers.engine.fused import device, trust
from workers.engine.fused.trust import Answer
from workers.engine.step import describe_step
from workers.numerics.cuda import minimal
from workers.training.recipe import Recipe

THERE = torch.device("cuda", 0)


class Gpu:
    """Answers what a process that times both steps would: the fused one gains with lanes."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.room = 4096

    def __call__(self, command: Sequence[str], _: float) -> Answer:
        if command[3] == "check":
            return Answer()
        lanes = min(int(command[5]), self.room)
        assert json.loads(command[6])["model"]["name"] == "minimal"
        self.asked.append(int(command[5]))
        return Answer({"fused": 2.0 * lanes, "traced": 200.0, "lanes": lanes})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    made = Gpu()
    monkeypatch.setattr(device.torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(device, "architecture_of", lambda _: "sm_90")
    monkeypatch.setattr(device, "limits_of", lambda _: HOPPER)
    monkeypatch.setattr(minimal, "key", lambda _: "key")
    monkeypatch.setattr(trust, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(trust, "run_check", made)
    forget()
    yield made
    forget()


def forget() -> None:
    """As another process, which knows what is kept on disk alone."""
    trust.find_fault.cache_clear()
    trust._RATES.clear()


def settings(**training: Any) -> dict[str, Any]:
    configuration = config(dtype="float32")
    return {**configuration, "training": {**configuration["training"], **training}}


def test_the_step_that_is_faster_at_about_the_packs_width_trains(gpu: Gpu) -> None:
    recipe = Recipe.of(settings()).pad()
    reasons = {lanes: fused.find_obstacle(recipe, THERE, lanes) for lanes in (2, 40, 90, 256, 1000, 4096)}
    assert [lanes for lanes, reason in reasons.items() if reason] == [2, 40]
    assert reasons[2] == "the fused step has 0.16 times the traced step's speed (32 and 200 model-steps/s, 16 lanes)"
    assert gpu.asked == [16, 128, 1024]
    description = "fused, 10 times the traced step's speed (2,048 and 200 model-steps/s, 1,024 lanes)"
    assert describe_step(settings(), "cuda:0", 900) == description
    assert describe_step(settings(), "cuda:0", 8).startswith("traced: the fused step has 0.16 times")


def test_trials_of_one_structure_are_timed_once(gpu: Gpu) -> None:
    """Whatever their learning rates, seeds and steps are, and in whichever process."""
    others = [settings(), settings(steps=70, validate_every=7), {**settings(), "optimizer": {"name": "adamw"}}]
    others[2]["optimizer"]["learning_rate"] = 0.5
    for configuration in others:
        forget()
        fused.find_obstacle(Recipe.of(configuration).pad(), THERE, 1000)
    assert gpu.asked == [1024]
    fused.find_obstacle(Recipe.of(settings(batch=17)).pad(), THERE, 1000)
    assert gpu.asked == [1024, 1024]


HALVING = """from dataclasses import dataclass
from workers.training.schedules.constant import Constant

@dataclass(frozen=True, kw_only=True)
class Halving(Constant):
    "A schedule that the process that times steps does not know."
"""


def test_a_schedule_from_outside_is_timed_as_a_constant_one(tmp_path: Path) -> None:
    (tmp_path / "halving.py").write_text(HALVING)
    optimizer = {**settings()["optimizer"], "schedule": {"name": "halving"}}
    with using(plugins_asked_for([str(tmp_path / "halving.py")])):
        recipe = Recipe.of({**settings(), "optimizer": optimizer}).pad()
        timing = device._timing_of(recipe, 1000)
    assert json.loads(timing.configuration)["optimizer"]["schedule"] == {"name": "constant"}
    assert Recipe.of(json.loads(timing.configuration)).pad().model == recipe.model, "without plug-ins"


def test_rates_at_fewer_lanes_than_asked_for_are_used_and_not_kept(gpu: Gpu) -> None:
    gpu.room = 64
    recipe = Recipe.of(settings()).pad()
    assert "(128 and 200 model-steps/s, 64 lanes)" in (fused.find_obstacle(recipe, THERE, 1000) or "")
    gpu.room = 4096
    forget()
    assert fused.find_obstacle(recipe, THERE, 1000) is None
    assert gpu.asked == [1024, 1024]


def test_a_trial_that_a_gpu_trained_tells_what_was_timed_there(gpu: Gpu, tmp_path: Path) -> None:
    conditions = [StoredFingerprint(processor="cuda 9.0, NVIDIA H100", step_kind="fused cuda 9.0", sources={})]
    assert list(describe_gpu_rates(settings(), conditions)) == []
    for lanes in (1000, 16):
        fused.find_obstacle(Recipe.of(settings()).pad(), THERE, lanes)
    (tmp_path / "fused-broken.json").write_text("{")
    assert list(describe_gpu_rates(settings(), conditions)) == [
        "on NVIDIA H100 the fused step has 0.16 times the traced step's speed (32 and 200 model-steps/s, 16 lanes)",
        "on NVIDIA H100 the fused step has 10 times the traced step's speed (2,048 and 200 model-steps/s, 1,024 lanes)",
    ]
    assert list(describe_gpu_rates(settings(batch=17), conditions)) == []
    elsewhere = [StoredFingerprint(processor="AVX2, AMD EPYC", step_kind="native AVX2", sources={})]
    assert list(describe_gpu_rates(settings(), elsewhere)) == []


def test_a_pack_is_timed_before_it_takes_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.trials import traced_step, trial
    from workers.engine import pack

    order: list[str] = []

    def noted(name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (order.append(f"{name} {given[-1]}"), act(*given))[1]

    monkeypatch.setattr(pack, "step_of", noted("step", traced_step))
    monkeypatch.setattr(pack.LaneTensors, "of_copies", noted("tensors", pack.LaneTensors.of_copies))
    pack.Pack(trial(0, settings()), width=5)
    assert order == ["step 5", "tensors cpu"]
