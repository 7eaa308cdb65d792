"""The fused step on a processor, against the native step and against itself; what decides whether a GPU uses it.

No test here has a GPU: the kernel runs block by block in an emulator (tests/support/emulated_gpu.py), and is compiled
for GPUs that are not here.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import spaces
from graft.plugins.families import families
from tests.support.emulated_gpu import BACKWARDS, CPU, HOPPER, SHUFFLED, emulated_step
from tests.support.fused import assert_close, assert_same, fused_steps, native_steps, start_of, start_of_first
from tests.support.trials import config, trial
from workers.engine import fused
from workers.engine import fused_check as check
from workers.engine.fused import device, trust
from workers.engine.fused.plan import ARRAYS, LARGEST_SIZE, Limits, Plan, Sizes, Workspace, lay_out
from workers.engine.fused.step import find_obstacle
from workers.engine.fused.trust import Answer
from workers.engine.pack import Pack
from workers.engine.step import describe_step, method_of
from workers.numerics import native, stream_kernels
from workers.numerics.cuda import compiler, minimal
from workers.numerics.randomness import Purpose, Streams, keep_mask
from workers.numerics.tracing import tree_map
from workers.training.recipe import Recipe

compiled = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")
DROPOUTS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]


def recipe_of(dropout: tuple[float, float], batch: int = 18, **model: Any) -> Recipe:
    rates = {"embedding_dropout": dropout[0], "residual_dropout": dropout[1]}
    return Recipe.of(config(dtype="float32", batch=batch, steps=60, every=60, model={**rates, **model}))


# -- against the native step ------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize(
    "model",
    [
        {},
        {"dropout_unit": "token"},
        {"scorer": {"name": "softmax", "temperature": 0.3}},
        {"scorer": {"name": "average"}, "norm_epsilon": 0.1},
    ],
)
def test_it_trains_as_the_native_step_does(dropout: tuple[float, float], model: dict[str, Any]) -> None:
    recipe = recipe_of(dropout, **model)
    assert_close(fused_steps(recipe, 2, 20, launch=7), native_steps(recipe, 2, 20), 1e-5)


@compiled
@pytest.mark.parametrize(
    "parts",
    [
        {"averaging": {"name": "none"}, "optimizer": {"name": "adam", "weight_decay": 0.1}},
        {"averaging": {"name": "ema"}, "optimizer": {"name": "adamw", "weight_decay": 0.5, "clip_norm": 0.01}},
        {"averaging": {"name": "bema_grid"}, "optimizer": {"schedule": {"name": "warmup_cooldown"}}},
    ],
)
def test_its_update_is_the_native_one(parts: dict[str, Any]) -> None:
    recipe = Recipe.of(config(dtype="float32", steps=60, every=60, **parts))
    assert_close(fused_steps(recipe, 2, 10), native_steps(recipe, 2, 10), 1e-5)


@compiled
def test_a_loss_that_is_no_number_is_noticed_at_its_step() -> None:
    recipe = Recipe.of(config(dtype="float32", optimizer={"learning_rate": 1e30}))
    actual, expected = fused_steps(recipe, 2, 6), native_steps(recipe, 2, 6)
    assert actual.diverged_at.tolist() == expected.diverged_at.tolist()
    assert 0 not in actual.diverged_at


@compiled
@pytest.mark.long
@pytest.mark.parametrize("dropout", [(0.0, 0.0), (0.3, 0.2)])
@pytest.mark.parametrize("half", range(2))
def test_shapes_of_table_1(half: int, dropout: tuple[float, float]) -> None:
    """Ten shapes with all that a trial draws; a quarter of the batch, and 50 steps.

    Within 1e-5, or, where a trial's own numbers make rounding grow more (in one of the 40 to 1.1e-5), about as near to
    float64 as the native step is.
    """
    space, numbers = spaces.load("set_complement", families()), random.Random(7 + half)
    for number in range(10):
        drawn: dict[str, Any] = json.loads(json.dumps(space.sample(number, lambda _: numbers.random()).config))
        drawn["model"] |= {"embedding_dropout": dropout[0], "residual_dropout": dropout[1]}
        drawn["training"]["batch"] = 32
        recipe = Recipe.of(drawn)
        actual, expected = fused_steps(recipe, 1, 50), native_steps(recipe, 1, 50)
        if (actual.parameters - expected.parameters).abs().max() > 1e-5:
            drawn["training"]["dtype"] = "float64"
            exact = native_steps(Recipe.of(drawn), 1, 50).parameters
            error, natives = ((state.parameters - exact).abs().max() for state in (actual, expected))
            assert error <= 2 * natives
        torch.testing.assert_close(actual.loss_sum, expected.loss_sum, rtol=1e-5, atol=0)


def test_the_kernel_divides_exactly_up_to_the_largest_size() -> None:
    """In the formula of `Divisor`, which errs first at the last column of the last rows."""

    def is_exact(size: int) -> bool:
        inverse = 0xFFFFFFFF // size + 1
        return all((row * size + size - 1) * inverse >> 32 == row for row in range(size))

    assert all(is_exact(size) for size in range(LARGEST_SIZE - 300, LARGEST_SIZE + 1))
    assert not all(is_exact(size) for size in range(LARGEST_SIZE + 1, LARGEST_SIZE + 500))


# -- bits -------------------------------------------------------------------------------------------------------------


@compiled
@pytest.mark.parametrize("unit", ["occurrence", "token"])
def test_it_draws_the_same_bits(unit: str) -> None:
    """What the last step's last sequences were drawn as is left in shared memory."""
    recipe, left = recipe_of((0.3, 0.2), dropout_unit=unit), list[Tensor]()
    knobs, seeds, state = start_of(recipe, 2)
    step = emulated_step(recipe, left=left)
    step.advance(knobs, seeds, state, 5)
    places, sequences = step.workspace.places, step.workspace.sequences
    last = (recipe.training.batch - 1) // sequences * sequences
    count, length, width = recipe.training.batch - last, 4, 12
    before = torch.full((1,), 4)
    names = list(ARRAYS)

    def found(name: str, size: int, kind: torch.dtype) -> Tensor:
        return left[-1][places[names.index(name)] :].view(kind)[:size]

    streams = Streams.of(seeds[1:], Purpose.TRAINING_DATA, before)
    batch = recipe.task.training(streams, recipe.training.batch, before)
    drawn = found("TOKENS", count * (length + 1), torch.int32).view(count, length + 1)
    assert torch.equal(drawn[:, :-1].long(), batch["inputs"][0, last:])
    assert torch.equal(drawn[:, 1:].long(), batch["targets"][0, last:])
    for site, name in enumerate(("KEPT_EMBEDDING", "KEPT_ROWS") if unit == "occurrence" else ()):
        stream = Streams.of(seeds[1:], Purpose.DROPOUT, before, site)
        rate = torch.tensor([(0.3, 0.2)[site]], dtype=torch.float64)
        expected = keep_mask(stream, rate, recipe.training.batch, length, width)[0, last:]
        assert torch.equal(found(name, expected.numel(), torch.uint8), expected.flatten().byte())


@compiled
@pytest.mark.parametrize("dropout", [(0.0, 0.0), (0.3, 0.2)])
def test_bits_depend_neither_on_width_nor_on_launches_nor_on_the_order_of_threads(dropout: tuple[float, float]) -> None:
    recipe = recipe_of(dropout, batch=9)
    expected = fused_steps(recipe, 33, 6)
    for lanes in (1, 2, 7):
        few = start_of_first(recipe, lanes, 33)
        assert_same(few, tree_map(lambda tensor, n=lanes: tensor[:n], expected))
    assert_same(fused_steps(recipe, 33, 6, launch=1), expected)
    for order in (BACKWARDS, SHUFFLED):
        assert_same(fused_steps(recipe, 33, 6, order=order), expected)


@compiled
@pytest.mark.long
@pytest.mark.parametrize("dropout", DROPOUTS)
def test_bits_do_not_depend_on_how_much_memory_a_gpu_shares(dropout: tuple[float, float]) -> None:
    recipe = recipe_of(dropout)
    expected = fused_steps(recipe, 2, 6)
    for block in (50 << 10, 22 << 10, 8 << 10):
        limits = Limits(2 * block, block)
        assert_same(fused_steps(recipe, 2, 6, limits=limits), expected)
    assert not emulated_step(recipe, limits=limits).workspace.weights_in_shared


@compiled
@pytest.mark.parametrize("dropout", [(0.3, 0.0), (0.0, 0.2)])
def test_a_padded_lane_is_computed_at_its_own_sizes(dropout: tuple[float, float]) -> None:
    plain = config(dtype="float32", model={"embedding_dropout": dropout[0], "residual_dropout": dropout[1]})
    padded = {**plain, "training": {**plain["training"], "pad_shapes": True}}
    alone = packed(plain)
    in_padding = packed(padded)
    for name, tensor in in_padding.items():
        assert torch.equal(tensor, alone[name])


def packed(configuration: dict[str, Any]) -> dict[str, Tensor]:
    """Return the parameters after 20 steps in a pack whose step is the fused one."""
    candidate = trial(3, configuration)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.engine.pack.step_of", lambda recipe, *_: emulated_step(recipe))
        pack = Pack(candidate, width=2)
    pack.fill([candidate])
    pack.train(20)
    pack.train(20)
    return pack.parameters(3)


# -- the check that a GPU has to pass --------------------------------------------------------------------------------

BOTH: dict[str, Any] = [*check.configurations()][6]  # both dropouts, of occurrences


@compiled
@pytest.mark.long
@pytest.mark.parametrize("number", [6, 9, 10])
def test_the_check_finds_nothing_where_there_is_nothing(number: int) -> None:
    recipe = Recipe.of([*check.configurations()][number])
    assert check.find_difference(recipe, CPU, emulated_step(recipe)) is None


class Faulty:
    """A launch that goes wrong, in the place of a fused step's own."""

    def __init__(self, recipe: Recipe, fault: str) -> None:
        self.step, self._fault = emulated_step(recipe), fault
        self._launch, self.step.launch = self.step.launch, self

    def __call__(self, workspace: Workspace, plan: Plan) -> None:
        match self._fault:
            case "without dropout":
                plan.dropped = 0
            case "another width":
                plan.decoupled = int(plan.lanes != 2)
            case "a step too few":
                plan.steps -= 1
            case _:
                pass
        self._launch(workspace, plan)


@compiled
@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("without dropout", "parameters differ by"),
        ("another width", "of 2 lanes have other bits than of 33"),
        ("a step too few", "it made [4, 4,"),
    ],
)
def test_the_check_finds_planted_faults(fault: str, said: str) -> None:
    configuration = {**BOTH, "optimizer": {"name": "adamw", "weight_decay": 0.1, "epsilon": 1e-4}}
    recipe = Recipe.of(configuration)
    assert said in (check.find_difference(recipe, CPU, Faulty(recipe, fault).step) or "")


@compiled
def test_both_steps_are_timed_at_the_most_lanes_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fused step by the emulator, on a device whose memory ends at four lanes."""
    rate, tried = check.step_rate, []

    def timed(trial: Any, *, width: int, **others: Any) -> float:
        tried.append(width)
        if width > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return rate(trial, width=width, seconds=0, **others)

    monkeypatch.setattr(check, "step_rate", timed)
    configuration = json.dumps(config(dtype="float32", batch=4, steps=60, every=60))
    rates = check.compare_rates("cpu", 16, configuration, lambda recipe, _: emulated_step(recipe))
    assert tried == [16, 8, 4, 4, 4, 4]
    assert rates["lanes"] == 4
    assert min(rates["fused"], rates["traced"]) > 0


def test_a_verdict_is_found_once_for_a_gpu_a_driver_and_a_kernel(tmp_path: Path) -> None:
    asked: list[str] = []

    def check_of(name: str, answer: Answer) -> Answer:
        return trust.kept_or_found(tmp_path / "cache", name, lambda: (asked.append(name), answer)[1])

    right, differs, failed = Answer(), Answer("differs"), Answer(failure="its check ended with status -9")
    assert [check_of("one", right), check_of("one", differs)] == [right, right]
    assert [check_of("another driver", differs), check_of("another driver", right)] == [differs, differs]
    assert [check_of("killed", failed), check_of("killed", right), check_of("killed", failed)] == [failed, right, right]
    assert asked == ["one", "another driver", "killed", "killed"]
    (tmp_path / "file").write_text("")
    assert trust.kept_or_found(tmp_path / "file", "one", lambda: differs) == differs  # a cache that is no folder


@pytest.mark.parametrize(
    ("program", "failure"),
    [
        (
            "raise RuntimeError('CUDA error: no kernel image')",
            "its check ended with status 1: RuntimeError: CUDA error",
        ),
        ("import os; os.kill(os.getpid(), 11)", "its check ended with status -11: it said nothing"),
        ("pass", "its check ended with status 0: it said nothing"),
        ("import time; print('null', flush=True); time.sleep(600)", "its check did not end within 0.5 seconds"),
    ],
)
def test_a_check_that_fails_says_why_in_one_line(program: str, failure: str) -> None:
    seconds = 0.5 if "sleep" in program else 60
    reason = trust.run_check([sys.executable, "-c", program], seconds).failure
    assert reason
    assert reason.startswith(failure)
    assert "\n" not in reason


def test_a_check_answers_in_its_last_line() -> None:
    program = "print('loading'); print('{\"fused\": 1.5}')"
    assert trust.run_check([sys.executable, "-c", program], 60) == Answer({"fused": 1.5})
    assert trust.run_check([sys.executable, "-c", "print('null')"], 60) == Answer()


def test_without_a_passed_check_the_traced_step_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The decision, with a GPU that is only named."""
    recipe = recipe_of((0.3, 0.2))
    monkeypatch.setattr(device.torch.cuda, "get_device_name", lambda _: "NVIDIA H100")
    monkeypatch.setattr(device, "architecture_of", lambda _: "sm_90")
    monkeypatch.setattr(device, "limits_of", lambda _: HOPPER)
    monkeypatch.setattr(minimal, "key", lambda _: "key")
    monkeypatch.setattr(trust, "cache_folder", lambda: tmp_path)
    rates = {"fused": 900.0, "traced": 300.0, "lanes": 1024}
    said = {"check": "parameters differ by 0.1", "rates": rates}
    monkeypatch.setattr(trust, "run_check", lambda command, _: Answer(said[command[3]]))
    there = torch.device("cuda", 0)
    forget_verdicts()
    for _ in range(2):
        assert fused.find_obstacle(recipe, there, 1000) == "parameters differ by 0.1"
    assert [record.message for record in caplog.records] == [
        "the fused step is not used on NVIDIA H100, training goes on with the traced one: parameters differ by 0.1"
    ]
    assert describe_step(config(dtype="float32"), "cuda:0") == "traced: parameters differ by 0.1"
    monkeypatch.setattr(minimal, "key", lambda _: "another key")
    said["check"] = None
    forget_verdicts()
    assert fused.find_obstacle(recipe, there, 1000) is None
    faster = "fused, 3 times the traced step's speed (900 and 300 model-steps/s, 1,024 lanes)"
    assert describe_step(config(dtype="float32"), "cuda:0") == faster
    assert method_of(config(dtype="float32"), "cuda:0") == "fused cuda"
    monkeypatch.setattr(minimal, "key", lambda _: "the key of a slow kernel")
    rates["fused"] = 60.0
    forget_verdicts()
    slower = "the fused step has 0.2 times the traced step's speed (60 and 300 model-steps/s, 1,024 lanes)"
    assert fused.find_obstacle(recipe, there, 1000) == slower
    assert describe_step(config(dtype="float32"), "cuda:0") == f"traced: {slower}"
    assert method_of(config(dtype="float32"), "cuda:0") == "traced cuda"
    monkeypatch.setattr(minimal, "key", lambda _: "the key of one that cannot be timed")
    monkeypatch.setattr(
        trust, "run_check", lambda command, _: Answer(failure=command[3] if command[3] == "rates" else None)
    )
    forget_verdicts()
    untimed = "the fused step was not timed beside the traced one"
    assert fused.find_obstacle(recipe, there, 1000) == untimed
    assert describe_step(config(dtype="float32"), "cuda:0") == f"traced: {untimed}"
    monkeypatch.setattr(device, "limits_of", lambda _: Limits(1 << 10, 1 << 10))
    assert fused.find_obstacle(recipe, there, 1000) == "its arrays do not fit into the GPU's shared memory"
    forget_verdicts()


def forget_verdicts() -> None:
    trust.find_fault.cache_clear()
    trust._RATES.clear()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"scorer": {"name": "ssa"}}}, "the fused step knows the scorers softmax and average alone"),
        ({"optimizer": {"name": "sgd"}}, "the fused step knows AdamW and Adam"),
        ({"dtype": "float64"}, "the fused step knows float32, not torch.float64"),
        ({"model": {"width": 1626}}, "the fused step knows sizes up to 1625, not 1626"),
        ({"model": {"value_width": 3000}}, "the fused step knows sizes up to 1625, not 3000"),
    ],
)
def test_what_it_does_not_know_has_a_reason(change: dict[str, Any], reason: str) -> None:
    recipe = Recipe.of(config(**{"dtype": "float32", **change}))
    assert (find_obstacle(recipe) or "").startswith(reason)
    assert fused.find_obstacle(recipe, CPU, 8) == "the fused step runs on a GPU, not on cpu"


@pytest.mark.fast
@pytest.mark.parametrize("task", [config()["task"], {"name": "copying", "length": 4}])
def test_a_transformer_with_layers_has_a_reason(task: dict[str, Any]) -> None:
    model = {"name": "transformer", "width": 12, "heads": 2}
    recipe = Recipe.of({**config(dtype="float32"), "task": task, "model": model})
    assert find_obstacle(recipe) == "the fused step knows the minimal transformer on set complement alone"


# -- compiled for GPUs that are not here ------------------------------------------------------------------------------

ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100")
REGISTERS = 128
"""Of a thread, so that two blocks of 256 fit into a multiprocessor's 65,536."""


@pytest.mark.fast
@pytest.mark.parametrize("occurrences", [False, True])
def test_two_blocks_of_paper_003s_size_fit_into_a_multiprocessor(occurrences: bool) -> None:
    workspace = lay_out(Sizes(128, 8, 17, 32, 16, 24), HOPPER, occurrences=occurrences)
    assert workspace
    assert workspace.weights_in_shared
    assert workspace.shared_bytes <= 113 << 10
    assert workspace.sequences >= 7


KERNELS = [*((name, True) for name in ARCHITECTURES), ("sm_90", False)]


@pytest.mark.long
@pytest.mark.parametrize(("architecture", "in_shared"), KERNELS)
def test_it_compiles_within_a_multiprocessors_registers(architecture: str, in_shared: bool, tmp_path: Path) -> None:
    """Without spills."""
    tool = next((Path(folder) / "cu13/bin/cuobjdump" for folder in nvidia_folders()), Path())
    try:
        cubin = compiler.compile_cubin(minimal.SOURCE, architecture, minimal.options(weights_in_shared=in_shared))
    except compiler.CompilerError as error:
        pytest.skip(str(error))
    (tmp_path / "kernel.cubin").write_bytes(cubin)
    if not tool.is_file():
        pytest.skip("no cuobjdump here: pip install nvidia-cuda-cuobjdump")
    tool.chmod(0o755)
    command = [str(tool), "--dump-resource-usage", str(tmp_path / "kernel.cubin")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", said)}
    assert used["REG"] <= (REGISTERS if in_shared else 255)  # one block to a multiprocessor has them all
    assert used["STACK"] == used["LOCAL"] == 0
    assert used["SHARED"] <= HOPPER.reserved  # beside what a launch asks for


def nvidia_folders() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    return list(spec.submodule_search_locations or []) if spec else []


def test_a_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[str] = []

    def compile_cubin(source: Path, architecture: str, options: Sequence[str]) -> bytes:
        made.append(f"{source.name} {architecture} {' '.join(options)}")
        return made[-1].encode()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "compiler_version", lambda: "NVRTC 0.0")
    monkeypatch.setattr(compiler, "compile_cubin", compile_cubin)
    sources = minimal.SOURCE, stream_kernels.SOURCE
    kinds = [minimal.options(weights_in_shared=kind) for kind in (True, False)]
    asked = [*itertools.product(sources, ("sm_90", "sm_80"), kinds)]
    expected = [f"{source.name} {architecture} {' '.join(options)}" for source, architecture, options in asked]
    for _ in range(2):
        assert [compiler.load_cubin(*arguments) for arguments in asked] == [text.encode() for text in expected]
    assert made == expected
