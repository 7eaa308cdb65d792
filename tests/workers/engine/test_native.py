"""The native steps against torch's own gradient of the same functions, and the engine without a compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import vmap

from spaces import plugins
from tests.support.native import lanes_alone_and_together, recipe_of
from tests.support.trials import FIRST_STEP, config, trial
from workers.engine import lane_programs
from workers.engine.step import NativeStep, TracedStep, begin_loading, step_of
from workers.networks.gradients.native_models import native_model
from workers.networks.models.minimal import Minimal
from workers.networks.scorers import Scorer
from workers.numerics import native
from workers.numerics.native import building
from workers.numerics.native.building import Unit
from workers.numerics.randomness import Purpose, SiteStreams, Streams
from workers.training.recipe import Recipe, initial_state, layout_of

pytestmark = pytest.mark.skipif(not native.available(), reason="no C++ compiler here")

SHAPES = [
    (3, 2, 4, 1, 9, 7),
    (5, 2, 6, 3, 4, 20),
    (12, 4, 22, 10, 16, 33),
    (17, 8, 32, 16, 24, 16),
    (32, 16, 40, 17, 33, 18),
]
"""Tokens, length, width, key width, value width, batch; none but one is a multiple of a register."""
DROPOUTS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]


def both_steps(recipe: Recipe, lanes: int = 3) -> tuple[Any, Any]:
    """Return the state after one native and one traced step, from the same numbers."""
    layout, seeds = layout_of(recipe), torch.arange(lanes) * 7919 + 3
    knobs = {path: torch.full((lanes,), float(value)).double() for path, value in recipe.knobs().items()}
    parameters = (layout.initial(seeds) * 10).to(recipe.dtype)
    start = vmap(lambda flat: initial_state(recipe, layout, flat))(parameters)
    streams = Streams.of(seeds, Purpose.TRAINING_DATA, start.step)
    batch = recipe.task.training(streams, recipe.training.batch, start.step)
    native = step_of(recipe, repr(recipe), torch.device("cpu"))
    assert isinstance(native, NativeStep)
    traced = TracedStep(recipe, repr(recipe), torch.device("cpu"))
    return native(knobs, seeds, start, batch), traced(knobs, seeds, start, batch)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dropout", DROPOUTS)
def test_the_native_gradient_is_torchs_gradient(shape: tuple[int, ...], dropout: tuple[float, float]) -> None:
    native, traced = both_steps(recipe_of(shape, dropout))
    scale = traced.moments["first"].abs().max()
    assert (native.moments["first"] - traced.moments["first"]).abs().max() <= 1e-10 * scale
    torch.testing.assert_close(native.loss_sum, traced.loss_sum, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dropout", DROPOUTS)
def test_it_covers_dropout_per_token(dropout: tuple[float, float]) -> None:
    native, traced = both_steps(recipe_of((7, 5, 9, 3, 6, 16), dropout, dropout_unit="token"))
    scale = traced.moments["first"].abs().max()
    assert (native.moments["first"] - traced.moments["first"]).abs().max() <= 1e-10 * scale


KERNELS = [{"name": "cosformer"}, {"name": "spline_kernel"}, {"name": "spline_kernel", "phi": {"name": "gelu"}}]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize(
    "scorer", [{"name": "softmax", "temperature": 0.4}, {"name": "average"}, {"name": "ssa"}, *KERNELS]
)
def test_it_covers_temperature_uniform_attention_and_features(
    dropout: tuple[float, float], scorer: dict[str, Any]
) -> None:
    native, traced = both_steps(recipe_of((7, 5, 9, 3, 6, 16), dropout, scorer=scorer, norm_epsilon=0.1))
    scale = traced.moments["first"].abs().max()
    assert (native.moments["first"] - traced.moments["first"]).abs().max() <= 1e-10 * scale


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", [name for name in plugins.names(Scorer) if name != "mixed"])
def test_it_covers_every_scorer_of_one_head(name: str) -> None:
    scorer = {"name": name, **({"phase": "always"} if name == "adaptive_temperature" else {})}
    native, traced = both_steps(recipe_of((7, 5, 9, 3, 6, 19), (0.0, 0.2), scorer=scorer, norm_epsilon=0.1))
    scale = traced.moments["first"].abs().max()
    assert (native.moments["first"] - traced.moments["first"]).abs().max() <= 1e-10 * scale


@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_shows_in_the_loss(dropout: tuple[float, float], broken: float) -> None:
    recipe = recipe_of((7, 5, 9, 3, 6, 16), dropout)
    computed = native_model(recipe.model, recipe.task, torch.float32, torch.device("cpu"))
    layout, seeds = layout_of(recipe), torch.arange(2)
    parameters = layout.initial(seeds).float()
    parameters[1, : 7 * 9] = broken
    streams = Streams.of(seeds, Purpose.DROPOUT, 0)
    batch = recipe.task.training(streams, 16, FIRST_STEP)
    assert computed is not None
    sites = SiteStreams(seeds=seeds, steps=torch.zeros_like(seeds))
    _, loss = computed.gradient(recipe.model, recipe.task, parameters, batch, sites)
    assert loss.isfinite().tolist() == [True, False]


def test_float32_is_as_exact_as_torchs_own() -> None:
    shape, dropout = (17, 8, 32, 16, 24, 128), (0.3, 0.2)
    exact = both_steps(recipe_of(shape, dropout))[0].moments["first"]
    native, traced = both_steps(recipe_of(shape, dropout, dtype="float32"))
    error, torchs = ((state.moments["first"].double() - exact).norm() for state in (native, traced))
    assert error < 2 * torchs


@pytest.mark.parametrize(("size", "length"), [(3, 3), (17, 9), (64, 64), (65, 1), (200, 150)])
def test_native_permutations_are_the_order_of_the_words(size: int, length: int) -> None:
    streams = Streams.of(torch.arange(3), Purpose.TRAINING_DATA, 5)
    keys = streams.words(11 * size).view(3, 11, size)
    assert torch.equal(streams.permutations(11, size, length), keys.argsort(dim=-1)[..., :length])


def test_bits_do_not_depend_on_neighbours_in_float32() -> None:
    trials = [trial(number, config(steps=20, every=10, dtype="float32")) for number in range(5)]
    assert isinstance(trials[0].config["model"], dict)
    in_pack, alone = lanes_alone_and_together(trials)
    assert in_pack == alone


ROOT = Path(__file__).parents[3]
NO_COMPILER = """
import torch, workers.numerics.native
from workers.numerics.native import prebuilt
from tests.support.trials import config
from workers.training.recipe import Recipe
from workers.engine.step import TracedStep, step_of
prebuilt.LEVELS = {}  # what an install compiled ahead is not there
assert not workers.numerics.native.available()
assert isinstance(step_of(Recipe.of(config(steps=2, every=2)), "one", torch.device("cpu")), TracedStep)
"""


@pytest.mark.long
@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_the_traced_step_runs_which_is_said_in_a_line(compiler: str, tmp_path: Path) -> None:
    environment = {"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", NO_COMPILER]
    said = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stderr
    assert said.startswith(("there is no C++ compiler, so steps", "the native step could not be compiled, training"))
    assert said.count("\n") == 1


@pytest.fixture
def small_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """Yield the smallest of the sources in place of all, and no cache of libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("CXX", "CXXFLAGS"):
        monkeypatch.delenv(variable, raising=False)
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("streams.cpp", "permutations.cpp", "splitmix.hpp", "instructions.hpp"):
        shutil.copy(building.SOURCES / name, sources)
    monkeypatch.setattr(building, "SOURCES", sources)
    native.forget()
    yield sources
    native.forget()


def test_a_library_is_compiled_once_which_is_said_in_a_line(
    small_sources: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("permutations", "streams")
    assert None not in [native.library(name) for name in names]
    assert caplog.messages == ["compiling native steps for this processor, once per machine: it takes some seconds"]
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "graft").iterdir()}
    assert sorted(path.name.partition("-")[0] for path in written) == [*names]
    native.forget()
    caplog.clear()
    assert None not in [native.library(name) for name in names]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "graft").iterdir()} == written
    assert not caplog.messages


@pytest.mark.long
def test_the_kind_of_a_native_step_is_its_librarys_whatever_torch_may_use() -> None:
    code = """
import torch
from workers.numerics import native
print(torch.backends.cpu.get_cpu_capability(), native.instruction_set())
"""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    assert answer.stdout.decode().split() == ["DEFAULT", native.instruction_set()]
    assert step_of(Recipe.of(config(steps=2)), "one", torch.device("cpu")).kind == f"native {native.instruction_set()}"


def test_only_what_is_asked_for_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minimal transformer in float32 needs neither another model's step nor float64's."""
    begun: list[str] = []
    monkeypatch.setattr(native, "_find", lambda unit: begun.append(unit.name))
    monkeypatch.setenv(lane_programs.SWITCH, "0")  # nothing is generated in place of what is not found
    native.forget()
    settings = config(steps=2, every=2, dtype="float32")
    begin_loading(settings, "cpu")
    step_of(Recipe.of(settings), "one", torch.device("cpu"))
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith(("compile", "load")):
            thread.join()
    native.forget()
    assert sorted(begun) == [
        *("minimal_float32", "normals", "permutations", "scorer_softmax", "streams", "update_float32")
    ]


def test_threads_that_ask_at_the_same_time_compile_once(small_sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    build = building.build
    monkeypatch.setattr(building, "build", lambda unit, *rest: (built.append(unit.name), build(unit, *rest))[1])
    units = [native.packaged("streams"), native.packaged("permutations")]
    native.begin([*units, *units])
    assert None not in [native.load(unit) for unit in units]
    assert sorted(built) == ["permutations", "streams"]


TWO_LAUNCHES = """
import sys, workers.numerics.native as native
from pathlib import Path
native.building.SOURCES = Path(sys.argv[1])
build = native.building.build
def counted(*arguments):
    print("built", flush=True)
    return build(*arguments)
native.building.build = counted
assert native.library("permutations")
"""


def test_processes_that_start_together_compile_once(small_sources: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", TWO_LAUNCHES, str(small_sources)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert "".join(process.communicate()[0] for process in both) == "built\n"
    assert [process.returncode for process in both] == [0, 0]
    assert [path.suffix for path in (tmp_path / "graft").iterdir()] == [".so"]


def test_a_text_that_is_no_file_is_a_library_too(small_sources: Path, tmp_path: Path) -> None:
    text = '#include "splitmix.hpp"\nextern "C" int answer() { return %d; }\n'
    for number in (42, 43):
        made = native.load(Unit("answer", text % number))
        assert made is not None
        assert made.answer() == number
    assert len(list((tmp_path / "graft").glob("answer-*.so"))) == 2


def test_where_nothing_can_be_kept_a_library_is_compiled_aside_which_is_said(
    small_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "aside").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "aside"))
    library = native.library("streams")
    assert library is not None
    assert Path(library._name).parent.parent == tmp_path / "aside"
    assert not list((tmp_path / "aside").iterdir())
    assert caplog.messages[1:] == [
        f"{tmp_path / 'file' / 'graft'} cannot be written to, so that each process compiles anew; set XDG_CACHE_HOME"
    ]


def test_a_broken_library_in_the_cache_is_compiled_anew(small_sources: Path, tmp_path: Path) -> None:
    assert native.library("streams") is not None
    (path,) = (tmp_path / "graft").iterdir()
    path.unlink()  # a loaded library must not be written over
    path.write_bytes(b"half a library")
    native.forget()
    assert native.library("streams") is not None


def test_other_models_and_devices_have_no_native_step() -> None:
    recipe = recipe_of((7, 5, 9, 3, 6, 16), (0.0, 0.0))
    assert isinstance(recipe.model, Minimal)
    assert native_model(recipe.model, recipe.task, torch.float32, torch.device("cuda")) is None
