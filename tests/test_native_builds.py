"""The native steps as other compilers, instruction sets and register widths make them: `pytest -m slow`."""

from __future__ import annotations

import ctypes
import platform
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.test_native_layered import ACTIVATIONS, COMPLEMENT, SCORERS, TEXT, Case, recipe_of
from tests.trials import config
from workers.networks.gradients import layered, plans
from workers.numerics import native, randomness, regression
from workers.numerics.native import building
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(native.library() is None, reason="no C++ compiler here"),
]

SOURCES = building.SOURCES
ON_X86 = platform.machine() == "x86_64"
MODELS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (COMPLEMENT, {"name": "transformer", "scorer": {"name": "ssa"}, "pre_norm": False, "attention_dropout": 0.2}),
    (TEXT, {"name": "transformer", "position": {"name": "rotary"}, "activation": {"name": "swiglu"}, "width": 36}),
]


def compile_with(compiler: str, *arguments: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    subprocess.run([compiler, *building.FLAGS, *arguments], check=True, capture_output=True, text=True)


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
    built = tmp_path / "step.so"
    compile_with(compiler, *flags, "-shared", str(SOURCES / "layered_float64.cpp"), "-o", str(built))
    cases = [Case(recipe_of(*model)) for model in MODELS]
    expected = [case.native() for case in cases]
    other = ctypes.CDLL(str(built))
    monkeypatch.setattr(plans, "library", lambda: other)
    for case, (gradient, loss) in zip(cases, expected, strict=True):
        found, found_loss = case.native()
        assert (found - gradient).norm() <= 1e-12 * gradient.norm()
        torch.testing.assert_close(found_loss, loss, rtol=1e-12, atol=0)


def test_another_compiler_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of float32: float64 takes logarithms and their like from the C library, of which compilers choose their own."""
    built = tmp_path / "step.so"
    sources = [str(SOURCES / name) for name in ("layered.cpp", "minimal.cpp")]
    compile_with("clang++", "-march=native", "-shared", *sources, "-o", str(built))
    minimal = {"name": "minimal", "key_width": 5, "value_width": 7, "embedding_dropout": 0.3}
    models = [*MODELS, *((COMPLEMENT, {"name": "transformer", "scorer": scorer}) for scorer in SCORERS)]
    models += [(COMPLEMENT, {"name": "transformer", "activation": activation}) for activation in ACTIVATIONS]
    cases = [Case(recipe_of(task, model, dtype="float32")) for task, model in models]
    cases.append(Case(minimal_recipe(minimal)))
    expected = [case.native() for case in cases]
    other = ctypes.CDLL(str(built))
    monkeypatch.setattr(plans, "library", lambda: other)
    for case, both in zip(cases, expected, strict=True):
        for found, ours in zip(case.native(), both, strict=True):
            assert torch.equal(found, ours), case.recipe.model


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [
        ("g++", ["-march=native", "-DGRAFT_REGISTER_BYTES=16"]),
        ("g++", ["-march=native", "-DGRAFT_REGISTER_BYTES=64"]),
        pytest.param("g++", ["-mavx2", "-mfma"], marks=pytest.mark.skipif(not ON_X86, reason="not for this processor")),
        ("clang++", ["-march=native"]),
    ],
    ids=str,
)
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
        monkeypatch.setattr(module, "library", lambda: other)
    assert all(torch.equal(found, one) for found, one in zip(drawn(), expected, strict=True))


def minimal_recipe(model: dict[str, Any]) -> Recipe:
    one = config(steps=9, every=9, dtype="float32")
    one["task"], one["model"], one["training"]["batch"] = COMPLEMENT, {"width": 12, **model}, 20
    return Recipe.of(one)


@pytest.mark.skipif(not ON_X86, reason="not for this processor")
@pytest.mark.parametrize("source", ["layered.cpp", "minimal.cpp", "update.cpp"])
def test_avx512_compiles(source: str, tmp_path: Path) -> None:
    compile_with("g++", "-march=skylake-avx512", "-c", str(SOURCES / source), "-o", str(tmp_path / "step.o"))


def test_a_processor_with_neon_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-compiled, and run by an emulator, which has the instructions alone and not their speed."""
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("there is no qemu-aarch64")
    program, driver = tmp_path / "driver", Path(__file__).with_name("native_driver.cpp")
    sources = [f"-I{SOURCES}", str(driver), str(SOURCES / "layered_float64.cpp")]
    compile_with("aarch64-linux-gnu-g++", "-static", *sources, "-o", str(program))
    case = Case(recipe_of(*MODELS[0]))
    expected, _ = case.native()
    plan, result = tmp_path / "plan", tmp_path / "result"
    monkeypatch.setattr(layered, "call", writer_to(plan))
    case.native()
    subprocess.run(["qemu-aarch64", program, plan, result], check=True, timeout=300)
    found = torch.frombuffer(bytearray(result.read_bytes()), dtype=torch.float64).view_as(expected)
    assert (found - expected).norm() <= 1e-12 * expected.norm()


def writer_to(path: Path) -> Callable[..., None]:
    """Writes what the native function would be called with, as native_driver.cpp reads it."""

    def write(_: object, plan: ctypes.Structure, tensors: Mapping[str, Tensor | None]) -> None:
        names = [name for name, *_ in plan._fields_]
        sizes = [getattr(plan, name) for name, kind, *_ in plan._fields_ if kind is ctypes.c_int64]
        parts = [struct.pack(f"<q{len(sizes)}q", len(sizes), *sizes)]
        for name in names[len(sizes) :]:
            tensor = tensors.get(name)
            data = b"" if tensor is None else tensor.numpy().tobytes()
            parts += [struct.pack("<q", -1 if tensor is None else len(data)), data]
        path.write_bytes(b"".join(parts))

    return write
