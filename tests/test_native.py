"""The native steps against torch's own gradient of the same functions, and the engine without a compiler."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.func import vmap

from spaces import plugins
from spaces.records import Trial
from tests.trials import FIRST_STEP, config, trial
from workers.engine.pack import Pack
from workers.engine.step import NativeStep, TracedStep, step_of
from workers.networks.models.minimal import Minimal
from workers.networks.scorers import Scorer
from workers.numerics import native
from workers.numerics.native import building, prebuilt
from workers.numerics.randomness import Purpose, Streams
from workers.training.recipe import Recipe, initial_state, layout_of

pytestmark = pytest.mark.skipif(native.library() is None, reason="no C++ compiler here")

SHAPES = [
    (3, 2, 4, 1, 9, 7),
    (5, 2, 6, 3, 4, 20),
    (12, 4, 22, 10, 16, 33),
    (17, 8, 32, 16, 24, 16),
    (32, 16, 40, 17, 33, 18),
]
"""Tokens, length, width, key width, value width, batch; none but one is a multiple of a register."""
DROPOUTS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]


def recipe_of(shape: tuple[int, ...], dropout: tuple[float, float], dtype: str = "float64", **model: Any) -> Recipe:
    tokens, length, width, key_width, value_width, batch = shape
    one = config(steps=9, every=9, dtype=dtype)
    one["task"] = {"name": "set_complement", "length": length, "vocabulary": tokens}
    one["model"] = {
        "name": "minimal",
        "width": width,
        "key_width": key_width,
        "value_width": value_width,
        "embedding_dropout": dropout[0],
        "residual_dropout": dropout[1],
        **model,
    }
    one["training"]["batch"] = batch
    return Recipe.of(one)


def both_steps(recipe: Recipe, lanes: int = 3) -> tuple[Any, Any]:
    """The state after one native and one traced step, from the same numbers."""
    layout, seeds = layout_of(recipe), torch.arange(lanes) * 7919 + 3
    knobs = {path: torch.full((lanes,), float(value)).double() for path, value in recipe.knobs().items()}
    parameters = (layout.initial(seeds) * 10).to(recipe.dtype)
    start = vmap(lambda one: initial_state(recipe, layout, one))(parameters)
    streams = Streams.of(seeds, Purpose.TRAINING_DATA, start.step)
    batch = recipe.task.training(streams, recipe.training.batch, start.step)
    native = step_of(recipe, repr(recipe), torch.device("cpu"))
    assert isinstance(native, NativeStep)
    traced = TracedStep(recipe, repr(recipe), torch.device("cpu"))
    return native(knobs, seeds, start, batch), traced(knobs, seeds, start, batch)


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


@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("scorer", [{"name": "softmax", "temperature": 0.4}, {"name": "average"}, {"name": "ssa"}])
def test_it_covers_temperature_and_uniform_attention(dropout: tuple[float, float], scorer: dict[str, Any]) -> None:
    native, traced = both_steps(recipe_of((7, 5, 9, 3, 6, 16), dropout, scorer=scorer, norm_epsilon=0.1))
    scale = traced.moments["first"].abs().max()
    assert (native.moments["first"] - traced.moments["first"]).abs().max() <= 1e-10 * scale


LOGIT_SCORERS = [name for name in plugins.names(Scorer) if name not in ("cosformer", "mixed", "spline_kernel")]


@pytest.mark.parametrize("name", LOGIT_SCORERS)
def test_it_covers_every_scorer_of_logits(name: str) -> None:
    scorer = {"name": name, **({"phase": "always"} if name == "adaptive_temperature" else {})}
    native, traced = both_steps(recipe_of((7, 5, 9, 3, 6, 19), (0.0, 0.2), scorer=scorer, norm_epsilon=0.1))
    scale = traced.moments["first"].abs().max()
    assert (native.moments["first"] - traced.moments["first"]).abs().max() <= 1e-10 * scale


@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf])
def test_what_is_no_number_shows_in_the_loss(dropout: tuple[float, float], broken: float) -> None:
    recipe = recipe_of((7, 5, 9, 3, 6, 16), dropout)
    function = recipe.model.native_gradient(recipe.task, torch.float32, torch.device("cpu"))
    layout, seeds = layout_of(recipe), torch.arange(2)
    parameters = layout.initial(seeds).float()
    parameters[1, : 7 * 9] = broken
    streams = Streams.of(seeds, Purpose.DROPOUT, 0)
    batch = recipe.task.training(streams, 16, FIRST_STEP)
    assert function is not None
    _, loss = function(recipe.model, recipe.task, parameters, batch, [streams, streams])
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


def lanes_alone_and_together(trials: list[Trial]) -> tuple[list[Any], list[Any]]:
    together = Pack(trials[0], width=len(trials))
    together.fill(trials)
    in_pack = sorted((report.number, report.step, report.metrics) for _ in range(2) for report in together.train(100))
    alone: list[Any] = []
    for one in trials:
        pack = Pack(one, width=2)
        pack.fill([one])
        alone += [(report.number, report.step, report.metrics) for _ in range(2) for report in pack.train(100)]
    return in_pack, sorted(alone)


def test_bits_do_not_depend_on_neighbours_in_float32() -> None:
    trials = [trial(number, config(steps=20, every=10, dtype="float32")) for number in range(5)]
    assert isinstance(trials[0].config["model"], dict)
    in_pack, alone = lanes_alone_and_together(trials)
    assert in_pack == alone


ROOT = Path(__file__).parents[1]
NO_COMPILER = """
import torch, workers.numerics.native
from tests.trials import config
from workers.training.recipe import Recipe
from workers.engine.step import TracedStep, step_of
assert workers.numerics.native.library() is None
assert isinstance(step_of(Recipe.of(config(steps=2, every=2)), "one", torch.device("cpu")), TracedStep)
"""


@pytest.mark.parametrize("compiler", [pytest.param("no-such-compiler", marks=pytest.mark.long), "false"])
def test_without_a_working_compiler_the_traced_step_runs_which_is_said_in_a_line(compiler: str, tmp_path: Path) -> None:
    environment = {"CXX": compiler, "XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", NO_COMPILER]
    said = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stderr
    assert said.startswith(("there is no C++ compiler, so steps", "the native step could not be compiled, training"))
    assert said.count("\n") == 1


@pytest.fixture
def small_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """The smallest of the sources in place of all, which take a minute on a slow machine; nothing is in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("permutations.cpp", "splitmix.hpp"):
        shutil.copy(building.SOURCES / name, sources)
    monkeypatch.setattr(building, "SOURCES", sources)
    forget()
    yield sources
    forget()


def forget() -> None:
    """What was found out about this machine's compiler and libraries."""
    native.library.cache_clear()
    native.describe_compiler.cache_clear()
    native.load_prebuilt.cache_clear()


def test_a_library_is_compiled_once(small_sources: Path, tmp_path: Path) -> None:
    assert native.library() is not None
    (built,) = (tmp_path / "graft").glob("*.so")
    written = built.stat().st_mtime_ns
    native.library.cache_clear()
    assert native.library() is not None
    assert [path.stat().st_mtime_ns for path in (tmp_path / "graft").iterdir()] == [written]


def test_where_nothing_can_be_kept_a_library_is_compiled_aside(
    small_sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(small_sources)
    found = native.library()
    assert found is not None
    assert Path(found._name).parent.parent == tmp_path
    assert not list(small_sources.glob("*.so"))


@pytest.fixture
def built_ahead(small_sources: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Libraries that a machine with a compiler left beside the sources; this machine has none."""
    built = prebuilt.build()
    monkeypatch.setenv("CXX", "no-such-compiler")
    return built


@pytest.mark.skipif(not [*prebuilt.levels_here()], reason="this processor has none of the levels of instructions")
def test_without_a_compiler_what_was_compiled_ahead_is_loaded(built_ahead: list[Path]) -> None:
    found = native.library()
    assert found is not None
    assert Path(found._name) in built_ahead
    level = Path(found._name).name.removeprefix("step-").rpartition("-")[0]
    assert native.describe_compiler().startswith(f"prebuilt {level}, ")


def test_with_a_compiler_what_was_compiled_ahead_is_not_used(small_sources: Path, tmp_path: Path) -> None:
    prebuilt.build()
    found = native.library()
    assert found is not None
    assert Path(found._name).parent == tmp_path / "graft"


def test_what_was_compiled_ahead_of_other_sources_is_not_loaded(
    built_ahead: list[Path], small_sources: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (small_sources / "permutations.cpp").open("a") as source:
        source.write("// changed\n")
    assert native.library() is None
    assert native.describe_compiler() == ""
    [line] = caplog.messages
    assert line.startswith("there is no C++ compiler, so steps on a CPU are traced")


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512bw avx512cd avx512dq avx512vl", "x86-64-v4"),
        ("avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f", "x86-64-v3"),
        ("sse4_2", None),
    ],
)
def test_a_processor_gets_the_best_level_that_it_can_run(
    flags: str, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(prebuilt, "processor_flags", lambda: frozenset(flags.split()))
    assert next(prebuilt.levels_here(), None) == level


def test_a_broken_library_is_one_line(built_ahead: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    for path in built_ahead:
        path.write_bytes(b"no library")
    if [*prebuilt.levels_here()]:
        assert native.library() is None
        [line] = caplog.messages
        assert "cannot be loaded, training goes on without it" in line


def test_other_models_and_devices_have_no_native_step() -> None:
    recipe = recipe_of((7, 5, 9, 3, 6, 16), (0.0, 0.0))
    assert isinstance(recipe.model, Minimal)
    assert recipe.model.native_gradient(recipe.task, torch.float32, torch.device("cuda")) is None
