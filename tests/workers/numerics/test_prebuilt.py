"""Libraries that were compiled ahead: which processor takes which, and that their bits are those of a local build."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.support.native import recipe_of as minimal_recipe
from tests.support.native_layered import ACTIVATIONS, COMPLEMENT, REGRESSION, SCORERS, TEXT, Case, recipe_of
from tests.support.native_pooling import recipe_of as pooling_recipe
from tests.support.native_update import AVERAGINGS, OPTIMIZERS, trained, update_in_c
from tests.support.native_update import recipe_of as update_recipe
from workers.engine.compile_ahead import units
from workers.numerics import native
from workers.numerics.native import building, prebuilt
from workers.numerics.randomness import Purpose, Streams
from workers.numerics.regression import draw_prompts
from workers.numerics.tracing import tree_leaves
from workers.training.recipe import Recipe, layout_of

pytestmark = [
    pytest.mark.skipif(not building.find_compiler(), reason="no C++ compiler here"),
    pytest.mark.skipif(not [*prebuilt.levels_here()], reason="this processor has none of the levels of instructions"),
]

ROOT = Path(__file__).parents[3]
BUILT = building.SOURCES / "prebuilt"
SMALL = ("streams.cpp", "permutations.cpp", "splitmix.hpp", "instructions.hpp")


@pytest.fixture
def usual_cache() -> str:
    """Return the cache of the other tests, if it is asked for before `empty_cache`."""
    return str(native.cache_folder().parent)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Yield a cache without libraries; no compiler of the user's own choice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("CXX", "CXXFLAGS"):
        monkeypatch.delenv(variable, raising=False)
    native.forget()
    yield tmp_path / "graft"
    native.forget()


@pytest.fixture
def small_sources(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the smallest of the sources, compiled ahead."""
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in SMALL:
        shutil.copy(building.SOURCES / name, sources)
    monkeypatch.setattr(building, "SOURCES", sources)
    native.forget()
    assert prebuilt.build(building.packaged_units(), *prebuilt.levels_here())
    return sources


@pytest.mark.parametrize("compiler", ["", "no-such-compiler"])
def test_what_was_compiled_ahead_is_loaded_with_and_without_a_compiler(
    compiler: str, small_sources: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiler:
        monkeypatch.setenv("CXX", compiler)
    library = native.library("streams")
    [level] = prebuilt.levels_here()
    assert library is not None
    assert Path(library._name).parent == small_sources / "prebuilt" / level
    assert native.describe_compiler().startswith(f"prebuilt {level}, ")
    assert native.instruction_set() == {"x86-64-v4": "AVX512", "x86-64-v3": "AVX2", "armv8-a": "NEON"}[level]
    assert not empty_cache.exists()


@pytest.mark.parametrize("variable", ["CXX", "CXXFLAGS"])
def test_who_chooses_a_compiler_or_flags_has_all_compiled(
    variable: str, small_sources: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, {"CXX": "c++", "CXXFLAGS": "-O1"}[variable])
    library = native.library("streams")
    assert library is not None
    assert Path(library._name).parent == empty_cache
    assert not native.describe_compiler().startswith("prebuilt")


def test_what_was_compiled_ahead_of_other_sources_is_not_loaded(
    small_sources: Path, empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (small_sources / "splitmix.hpp").open("a") as source:
        source.write("// changed\n")
    native.forget()
    library = native.library("streams")
    assert library is not None
    assert Path(library._name).parent == empty_cache
    caplog.clear()
    monkeypatch.setenv("CXX", "no-such-compiler")
    native.forget()
    assert native.library("streams") is None
    assert native.describe_compiler() == ""
    [line] = caplog.messages
    assert line.startswith("there is no C++ compiler, so steps on a CPU are traced")


def test_a_library_depends_on_the_headers_that_its_text_includes_and_on_no_others(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "SOURCES", tmp_path)
    texts = {"instructions": "", "outer": '#  include "inner.hpp"', "inner": "// 1", "other": "// 1"}
    unit = building.Unit("one", '#include <cmath>\n#include "outer.hpp"\n')

    def digest(**changes: str) -> str:
        for name, text in (texts | changes).items():
            (tmp_path / f"{name}.hpp").write_text(text)
        native.forget()
        return building.digest(unit, [])

    first = digest()
    assert digest(other="// 2") == first
    assert len({first, digest(inner="// 2"), digest(outer="// 2"), digest(instructions="// 2")}) == 4


def test_a_broken_library_is_a_line_and_is_compiled_here(
    small_sources: Path, empty_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (small_sources / "prebuilt").glob("*/*.so"):
        path.write_bytes(b"no library")
    assert native.library("streams") is not None
    assert caplog.messages[0].startswith("the native step that was compiled ahead cannot be loaded: ")


@pytest.mark.parametrize(
    ("machine", "flags", "level"),
    [
        ("x86_64", "avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v4"),
        ("x86_64", "avx avx2 bmi1 bmi2 f16c fma abm movbe", "x86-64-v3"),
        # A compiler there uses the wide registers, whose sums have other bits than v3's.
        ("x86_64", "avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f", None),
        ("x86_64", "sse4_2", None),
        ("aarch64", "fp asimd sve", "armv8-a"),
        ("riscv64", "", None),
    ],
)
def test_a_processor_gets_the_level_that_a_compiler_there_would_compile_for(
    machine: str, flags: str, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(prebuilt, "processor_flags", lambda: frozenset(flags.split()))
    assert next(prebuilt.levels_here(), None) == level


def test_another_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert not [*prebuilt.levels_here()]


def test_two_builds_are_equal_byte_by_byte(small_sources: Path) -> None:
    def read() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (small_sources / "prebuilt").rglob("*.*")}

    first = read()
    prebuilt.build(building.packaged_units(), *prebuilt.levels_here())
    assert read() == first


@pytest.mark.long
def test_libraries_of_the_same_sources_and_compiler_are_kept(small_sources: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (small_sources / "prebuilt").rglob("*.so")}

    first = times()
    [level] = prebuilt.levels_here()
    prebuilt.build(building.packaged_units(), level)
    assert times() == first
    prebuilt.build(building.packaged_units()[:1], level)
    assert len(times()) == 1
    (small_sources / "prebuilt" / level / "compiler.txt").write_text("another compiler\n")
    made = prebuilt.build(building.packaged_units()[:1], level)
    assert sorted(times().values()) > sorted(first.values())
    assert "another" not in made[0].read_text()


def run_hook(root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the hook as an isolated build does: on the sources alone, where torch cannot be imported."""
    pytest.importorskip("hatchling")
    script = (
        "import sys; sys.modules |= dict.fromkeys(['torch', 'numpy', 'polars', 'yaml'])\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from hatchling.bridge.app import Application; from hatch_build import CompileAhead\n"
        "data = {'artifacts': []}\n"
        "CompileAhead(sys.argv[1], {}, None, None, '', 'wheel', Application()).initialize('standard', data)\n"
        "print(*sorted(data['artifacts']), sep='\\n')"
    )
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [sys.executable, "-c", script, str(root)]
    return subprocess.run(command, env=clean | variables, cwd=root, capture_output=True, text=True)


@pytest.fixture
def small_package(tmp_path: Path) -> Path:
    """Return what the hook needs of the package, with the smallest of its sources."""
    root, native_folder = tmp_path / "package", Path("workers") / "numerics" / "native"
    (root / native_folder).mkdir(parents=True)
    for name in ("hatch_build.py", "workers/__init__.py", "workers/numerics/__init__.py"):
        shutil.copy(ROOT / name, root / name)
    shutil.copytree(ROOT / "spaces", root / "spaces", ignore=shutil.ignore_patterns("catalogue", "__pycache__"))
    for name in ("__init__.py", "building.py", "prebuilt.py", *SMALL):
        shutil.copy(ROOT / native_folder / name, root / native_folder)
    return root


@pytest.mark.long
def test_a_build_compiles_the_steps_where_torch_is_not_installed(small_package: Path) -> None:
    built = run_hook(small_package)
    [level] = prebuilt.levels_here()
    folder = f"/workers/numerics/native/prebuilt/{level}"
    assert not built.stderr
    assert built.stdout.split()[0] == f"{folder}/compiler.txt"
    assert [line.rpartition("-")[0] for line in built.stdout.split()[1:]] == [
        f"{folder}/permutations",
        f"{folder}/streams",
    ]
    assert all((small_package / line[1:]).exists() for line in built.stdout.split())
    every = run_hook(small_package, GRAFT_COMPILE="all")
    assert "generated functions are not compiled ahead: " in every.stdout + every.stderr
    levels = {line.split("/")[-2] for line in every.stdout.split() if line.endswith(".so")}
    assert levels >= {known.name for known in prebuilt.LEVELS[platform.machine()]}


@pytest.mark.parametrize(
    ("variables", "message", "exit_code"),
    [
        ({"GRAFT_COMPILE": "none"}, "", 0),
        ({"CXX": "no-such-compiler"}, "there is no C++ compiler: no steps are compiled ahead", 0),
        ({"CXX": "false"}, "no steps are compiled ahead: ", 0),
        ({"GRAFT_COMPILE": "some"}, "GRAFT_COMPILE is 'some'; it must be one of here, all, none", 1),
    ],
)
def test_a_build_without_libraries_is_a_line_and_no_failure(
    variables: dict[str, str], message: str, exit_code: int, small_package: Path
) -> None:
    built = run_hook(small_package, **variables)
    assert built.returncode == exit_code
    said = (built.stdout + built.stderr).strip()
    assert said.startswith(message)
    assert len(said.splitlines()) == (1 if message else 0)
    assert not [*small_package.rglob("*.so")]


def recipes(dtype: str) -> list[Recipe]:
    """Return a recipe of each kind of step, and of each scorer and activation of the layered transformers."""
    models = [(COMPLEMENT, {"name": "transformer", "scorer": scorer}) for scorer in SCORERS]
    models += [
        (TEXT, {"name": "transformer", "activation": activation, "mlp_dropout": 0.1}) for activation in ACTIVATIONS
    ]
    return [
        *(minimal_recipe((12, 4, 22, 10, 16, 33), dropout, dtype) for dropout in ((0.0, 0.0), (0.3, 0.2))),
        *(recipe_of(task, model, dtype=dtype) for task, model in models),
        pooling_recipe(
            {"name": "max_retrieval", "items": 9, "largest": 16}, {"name": "attention_pooling"}, dtype=dtype
        ),
        pooling_recipe(REGRESSION, {"name": "linearised_attention"}, 19, dtype=dtype),
    ]


def compute_all() -> list[Tensor]:
    """Numbers of all native steps by the libraries that are found now: gradients, losses, updates, draws."""
    tensors: list[Tensor] = []
    for dtype in ("float32", "float64"):
        for recipe in recipes(dtype):
            tensors += Case(recipe).native()
        for optimizer in OPTIMIZERS:
            for averaging in AVERAGINGS:
                recipe = update_recipe(optimizer, averaging, dtype)
                layout = layout_of(recipe)
                tensors += tree_leaves(trained(update_in_c(recipe, layout), recipe, layout, lanes=2))
    streams = Streams.of(torch.arange(3), Purpose.TRAINING_DATA, torch.tensor([5, 7, 9]))
    prompts = draw_prompts(streams, lambda: torch.linspace(0.5, 2, 24, dtype=torch.float64).view(1, 4, 6), 9, 41)
    assert prompts
    return [*tensors, streams.state, streams.normal(10_001), streams.permutations(11, 65, 9), *prompts]


@pytest.mark.parametrize(
    ("processor", "level"),
    [
        pytest.param("native", "", marks=pytest.mark.long),
        pytest.param("haswell", "x86-64-v3", marks=pytest.mark.slow),
        pytest.param("znver3", "x86-64-v3", marks=pytest.mark.slow),
    ],
)
def test_the_bits_are_those_of_a_local_build(
    processor: str,
    level: str,
    usual_cache: str,
    empty_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`level`: another one than this processor's, whose libraries it runs, too."""
    if level and (platform.machine() != "x86_64" or not {"avx2", "fma"} <= prebuilt.processor_flags()):
        pytest.skip("this processor cannot run it")
    level = level or next(prebuilt.levels_here())
    monkeypatch.setattr(prebuilt, "_folder", lambda: tmp_path / "prebuilt")
    monkeypatch.setattr(prebuilt, "levels_here", lambda: iter([level]))
    if processor == "native":  # the libraries that other tests compile, too
        monkeypatch.setenv("XDG_CACHE_HOME", usual_cache)
    else:
        monkeypatch.setattr(building.flags, "__defaults__", (level,))
        monkeypatch.setenv("CXXFLAGS", f"-march={processor}")
    native.begin(units())
    local = compute_all()
    assert not native.describe_compiler().startswith("prebuilt")
    monkeypatch.delenv("CXXFLAGS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(empty_cache.parent))
    # What is not packaged is compiled here for the processor that the packaged libraries are for.
    monkeypatch.setattr(building.flags, "__defaults__", (level,))
    native.forget()
    if BUILT.exists():  # by an installation, or for a wheel: what is of these sources and this compiler is kept
        shutil.copytree(BUILT, tmp_path / "prebuilt")
    prebuilt.build(units(), level)
    ahead = compute_all()
    assert native.describe_compiler().startswith(f"prebuilt {level}, ")
    assert len(local) == len(ahead) > 400
    assert all(torch.equal(tensor, other) for tensor, other in zip(local, ahead, strict=True))
