"""The native steps as other compilers, instruction sets and register widths make them: `pytest -m slow`."""

from __future__ import annotations

import ctypes
import importlib
import platform
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.native_layered import ACTIVATIONS, COMPLEMENT, REGRESSION, SCORERS, TEXT, Case, recipe_of
from tests.support.native_pooling import recipe_of as pooling_recipe
from tests.support.native_update import AVERAGINGS, OPTIMIZERS, plan_of, trained, update_in_c
from tests.support.native_update import recipe_of as update_recipe
from tests.support.trials import config
from workers.networks.activations.gelu import Gelu
from workers.networks.gradients import activating, scoring
from workers.networks.gradients.scoring import functions_of
from workers.networks.scorers import Scorer
from workers.numerics import native, randomness, regression
from workers.numerics.native import building
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.tracing import tree_leaves
from workers.training import native_update
from workers.training.recipe import Recipe, layout_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not native.available(), reason="no C++ compiler here"),
]

SOURCES = building.SOURCES
ON_X86 = platform.machine() == "x86_64"
MODELS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (COMPLEMENT, {"name": "transformer", "scorer": {"name": "ssa"}, "pre_norm": False, "attention_dropout": 0.2}),
    (TEXT, {"name": "transformer", "position": {"name": "rotary"}, "activation": {"name": "swiglu"}, "width": 36}),
]


PLANNED = [
    ("layered", recipe_of(*MODELS[0])),
    ("pooling", pooling_recipe({"name": "max_retrieval", "items": 9, "largest": 16}, {"name": "attention_pooling"})),
    ("linearised", pooling_recipe(REGRESSION, {"name": "linearised_attention"}, 19)),
]
"""A module of gradients whose step takes a plan, and what it computes."""


def compile_with(compiler: str, *arguments: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    subprocess.run([compiler, *building.FLAGS, *arguments], check=True, capture_output=True, text=True)


def change_build(compiler: str, flags: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on to the end of the test all libraries are made so: steps and the functions that they call alike."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(building, "flags", lambda *_: [*building.FLAGS, *flags])
    native.forget()


@pytest.fixture
def usual_build_afterwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    native.forget()


@pytest.mark.usefixtures("usual_build_afterwards")
@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("g++", ["-march=native", "-DGRAFT_REGISTER_BYTES=16"]),
        ("g++", ["-march=native", "-DGRAFT_REGISTER_BYTES=64"]),
        pytest.param("g++", ["-mavx2", "-mfma"], marks=pytest.mark.skipif(not ON_X86, reason="not for this processor")),
        ("g++", []),
        ("clang++", ["-march=native"]),
    ],
    ids=str,
)
def test_another_build_computes_the_same(
    compiler: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "-mavx2" in flags and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    recipes = [recipe_of(*MODELS[1]), *(recipe for _, recipe in PLANNED)]
    recipes.append(minimal_recipe(MINIMAL, "float64"))
    # Larger than a cache, of whole registers and not.
    recipes += [recipe_of(COMPLEMENT, {"name": "transformer", "width": width}, 70) for width in (92, 96)]
    cases = [Case(recipe) for recipe in recipes]
    expected = [case.native() for case in cases]
    change_build(compiler, flags, tmp_path, monkeypatch)
    for case, (gradient, loss) in zip(cases, expected, strict=True):
        actual, actual_loss = case.native()
        assert (actual - gradient).norm() <= 1e-12 * gradient.norm()
        torch.testing.assert_close(actual_loss, loss, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("usual_build_afterwards")
def test_another_compiler_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of float32: float64 takes logarithms and their like from the C library, of which compilers choose their own."""
    models = [*MODELS, *((COMPLEMENT, {"name": "transformer", "scorer": scorer}) for scorer in SCORERS)]
    models += [(COMPLEMENT, {"name": "transformer", "activation": activation}) for activation in ACTIVATIONS]
    cases = [Case(recipe_of(task, model, dtype="float32")) for task, model in models]
    cases.append(Case(minimal_recipe(MINIMAL)))
    expected = [case.native() for case in cases]
    change_build("clang++", ["-march=native"], tmp_path, monkeypatch)
    for case, both in zip(cases, expected, strict=True):
        for actual, ours in zip(case.native(), both, strict=True):
            assert torch.equal(actual, ours), case.recipe.model


in_other_builds = pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("g++", ["-march=native", "-DGRAFT_REGISTER_BYTES=16"]),
        ("g++", ["-march=native", "-DGRAFT_REGISTER_BYTES=64"]),
        pytest.param("g++", ["-mavx2", "-mfma"], marks=pytest.mark.skipif(not ON_X86, reason="not for this processor")),
        ("clang++", ["-march=native"]),
    ],
    ids=str,
)


@in_other_builds
def test_data_has_the_same_bits_in_other_builds(
    compiler: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = tmp_path / "normals.so"
    compile_with(compiler, *flags, "-shared", str(SOURCES / "normals.cpp"), "-o", str(built))
    streams = Streams.of(torch.arange(3), Purpose.TRAINING_DATA, 7)
    moments = torch.linspace(0.5, 2, 4 * 6, dtype=torch.float64).view(1, 4, 6)

    def drawn() -> list[Tensor]:
        prompts = regression.draw_prompts(streams, lambda: moments, 9, 41)
        assert prompts
        return [streams.normal(10_001), *prompts]

    expected = drawn()
    other = ctypes.CDLL(str(built))
    for module in (randomness, regression):
        monkeypatch.setattr(module, "library", lambda _: other)
    assert all(torch.equal(actual, wanted) for actual, wanted in zip(drawn(), expected, strict=True))


@in_other_builds
def test_updates_have_the_same_bits_in_other_builds(
    compiler: str, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have instructions that multiply and add with one rounding, which Muon's products need."""
    built = tmp_path / "update.so"
    compile_with(compiler, *flags, "-shared", str(SOURCES / "update_float32.cpp"), "-o", str(built))
    recipes = [update_recipe(optimizer, averaging, "float32") for optimizer in OPTIMIZERS for averaging in AVERAGINGS]

    def updated(recipe: Recipe) -> list[Tensor]:
        layout = layout_of(recipe)
        return tree_leaves(trained(update_in_c(recipe, layout), recipe, layout, lanes=2))

    expected = [updated(recipe) for recipe in recipes]
    other = ctypes.CDLL(str(built))
    monkeypatch.setattr(native_update, "library", lambda _: other)
    for recipe, leaves in zip(recipes, expected, strict=True):
        for actual, wanted in zip(updated(recipe), leaves, strict=True):
            assert torch.equal(actual, wanted), recipe.optimizer


MINIMAL: dict[str, Any] = {"name": "minimal", "key_width": 5, "value_width": 7, "embedding_dropout": 0.3}


def minimal_recipe(model: dict[str, Any], dtype: str = "float32") -> Recipe:
    settings = config(steps=9, every=9, dtype=dtype)
    settings["task"], settings["model"], settings["training"]["batch"] = COMPLEMENT, {"width": 12, **model}, 20
    return Recipe.of(settings)


@pytest.mark.skipif(not ON_X86, reason="not for this processor")
@pytest.mark.parametrize("source", ["layered_float32.cpp", "minimal_float32.cpp", "update_float32.cpp"])
def test_avx512_compiles(source: str, tmp_path: Path) -> None:
    compile_with("g++", "-march=skylake-avx512", "-c", str(SOURCES / source), "-o", str(tmp_path / "step.o"))


Plan = tuple[ctypes.Structure, Mapping[str, Tensor | None]]
"""A plan, and the tensors that its pointers are to."""


FUNCTIONS = ("weigh_along", "weigh_beside", "gradient_along", "gradient_beside", "finish", "activate_rows")
CODE = 0x46554E4300000000
"""Plus a number: stands in a plan for the driver's function of this number."""


def called() -> list[tuple[str, ctypes.CDLL]]:
    """Text and library of all generated functions that the plans have."""
    models: list[Any] = [recipe.model for _, recipe in PLANNED[:2]]
    scorers: list[Scorer] = [model.scorer for model in models]
    activations = [Gelu(), Gelu(form="tanh")]
    functions = [functions_of(scorer, torch.float64) for scorer in scorers]
    programs = [activating.FUNCTIONS.load(activation, torch.float64) for activation in activations]
    return [
        *((function.program.text, function.library) for function in functions),
        *((program.text, library) for program, library in programs),
    ]


def write_functions(folder: Path) -> str:
    """Compile each of them for NEON under names of its own; returns the driver's table of their addresses."""
    names: list[str] = []
    for number, (text, library) in enumerate(called()):
        (folder / f"unit{number}.cpp").write_text(text)
        renamed = [
            f"-D{name}={name}_{number}" for name in ("rows", "register_bytes", *FUNCTIONS)
        ]  # `rows`: a namespace
        source, made = str(folder / f"unit{number}.cpp"), str(folder / f"unit{number}.o")
        compile_with("aarch64-linux-gnu-g++", *renamed, "-I", str(SOURCES), "-c", source, "-o", made)
        names += [f"{name}_{number}" if hasattr(library, name) else "" for name in FUNCTIONS]
    declared = " ".join(f"void {name}();" for name in names if name)
    table = ", ".join(f"reinterpret_cast<void *>({name})" if name else "nullptr" for name in names)
    return f'extern "C" {{ {declared} }}\nvoid *functions[] = {{{table}}};\nint functions_count = {len(names)};\n'


def codes_of(library: ctypes.CDLL, names: Sequence[str]) -> list[int]:
    """As `addresses_of`, of the driver's functions."""
    [number] = [number for number, (_, loaded) in enumerate(called()) if loaded is library]
    return [CODE + number * len(FUNCTIONS) + FUNCTIONS.index(name) if hasattr(library, name) else 0 for name in names]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Plan], dict[str, Tensor]]:
    """Run a step as compiled for a processor with NEON, by an emulator; gives what the step left in its tensors."""
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("there is no qemu-aarch64")
    folder = tmp_path_factory.mktemp("neon")
    program, driver = folder / "driver", Path(__file__).parents[2] / "support" / "native_driver.cpp"
    sources = [
        str(driver),
        *(
            str(SOURCES / name)
            for name in ("layered_float64.cpp", "pooling_float64.cpp", "linearised_float64.cpp", "update_float32.cpp")
        ),
    ]
    tables = folder / "functions.cpp"
    tables.write_text(write_functions(folder))
    units = [str(folder / f"unit{number}.o") for number in range(len(called()))]
    compile_with("aarch64-linux-gnu-g++", "-static", *sources, str(tables), *units, "-o", str(program))

    def run(step: str, plan: Plan) -> dict[str, Tensor]:
        given, result = folder / "plan", folder / "result"
        given.write_bytes(encode(*plan))
        subprocess.run(["qemu-aarch64", program, step, given, result], check=True, timeout=300)
        left, tensors = bytearray(result.read_bytes()), dict[str, Tensor]()
        for name in pointers_of(plan[0]):
            tensor = plan[1].get(name)
            if tensor is not None and tensor.nbytes:
                tensors[name] = torch.frombuffer(left[: tensor.nbytes], dtype=tensor.dtype).view_as(tensor)
                del left[: tensor.nbytes]
        assert not left
        return tensors

    return run


def sizes_of(plan: ctypes.Structure) -> list[str]:
    return [name for name, kind, *_ in plan._fields_ if kind is ctypes.c_int64]


def pointers_of(plan: ctypes.Structure) -> list[str]:
    return [name for name, kind, *_ in plan._fields_ if kind is ctypes.c_void_p]


def encode(plan: ctypes.Structure, tensors: Mapping[str, Tensor | None]) -> bytes:
    """Return a plan as native_driver.cpp reads it."""
    sizes, pointers = [getattr(plan, name) for name in sizes_of(plan)], pointers_of(plan)
    parts = [struct.pack(f"<2q{len(sizes)}q", len(sizes), len(pointers), *sizes)]
    for name in pointers:
        tensor = tensors.get(name)
        data = b"" if tensor is None else tensor.numpy().tobytes()
        parts += [struct.pack("<q", -1 if tensor is None else len(data)), data]
    return b"".join(parts)


@pytest.mark.parametrize(("module", "recipe"), PLANNED, ids=[name for name, _ in PLANNED])
def test_a_processor_with_neon_computes_the_same(
    module: str, recipe: Recipe, emulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, plans = Case(recipe), list[Plan]()
    expected, loss = case.native()
    gradients = importlib.import_module(f"workers.networks.gradients.{module}")
    monkeypatch.setattr(gradients, "call", lambda _, plan, tensors: plans.append((plan, tensors)))
    for generated in (scoring, activating):
        monkeypatch.setattr(generated, "addresses_of", codes_of)
    case.native()
    outputs = emulated(f"{module}_float64", plans[0])
    assert (outputs["gradient"] - expected).norm() <= 1e-12 * expected.norm()
    torch.testing.assert_close(outputs["loss_values"], loss, rtol=1e-12, atol=0)


@pytest.mark.parametrize("optimizer", [0, 1, 2], ids=["adamw", "adam", "sgd"])
def test_a_processor_with_neon_updates_to_the_bit(optimizer: int, emulated: Any) -> None:
    """Each number by itself; the gradient's norm is summed in an order that no register's width changes."""
    streams, (lanes, parameters, averages) = Streams.of(torch.arange(2), Purpose.INITIAL, 3), (2, 1500, 2)
    count = lanes * parameters
    draw = iter(streams.normal(parameters * 9).view(lanes, 9, parameters).unbind(1))
    tensors = {name: next(draw).float().contiguous() for name in ("before", "gradient", "first")}
    tensors |= {"second": next(draw).square(), "shadow": torch.stack([next(draw), next(draw)], 1)}
    for name in ("after", "first_after", "second_after", "shadow_after"):
        like = tensors["before" if name == "after" else name.removesuffix("_after")]
        tensors[name] = torch.zeros_like(like)
    tensors["decays"] = (torch.arange(parameters) % 3 > 0).float()
    numbers = [0.7, 0.01, 1e-3, 0.1, 1e-3, 0.3, 1e-8, 0, 0, 0, 1e-3, 0.2]
    tensors["scalars"] = torch.tensor([numbers, [3 * number for number in numbers]], dtype=torch.float64)
    tensors["loss"] = next(draw)[:, 0].float().contiguous()
    for name in ("step", "step_after", "diverged_at", "diverged_after"):
        tensors[name] = torch.zeros(lanes, dtype=torch.int64)
    tensors |= {name: torch.zeros(lanes, dtype=torch.float64) for name in ("loss_sum", "loss_sum_after")}
    plan = plan_of(tensors, averages=averages, optimizer=optimizer)
    outputs = emulated("update_float32", (plan, {name: tensor.clone() for name, tensor in tensors.items()}))
    compiled = native.library("update_float32")
    assert compiled
    assert not compiled.update_float32(ctypes.byref(plan))
    assert tensors["after"].ne(tensors["before"]).sum() > count // 2
    assert all(torch.equal(outputs[name], tensor) for name, tensor in tensors.items())
