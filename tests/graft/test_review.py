"""What is told of a space before it trains: what would fail at the first validation, and what is likely not meant."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graft.launching.planning.review import review
from graft.plugins.families import families
from spaces import load, parse
from spaces.errors import SpaceError
from spaces.space import Space
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.registries import SAMPLER, write_registry
from workers.engine.machine.memory import estimate_lane_bytes, lane_bytes, least_bytes
from workers.training.recipe import Recipe

QUICK = {"search.trials": "4", "search.group": "2"}


def tiny(**overrides: str) -> Space:
    return load(SPACE, families(), QUICK | {path.replace("__", "."): value for path, value in overrides.items()})


def test_a_space_that_is_as_it_was_meant_gets_no_note():
    assert review(tiny()) == []
    assert review(tiny(), "cpu") == []


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("{minimize: tvd/ema}", "'ema' is no variant that trials of this averaging have.* choose one of raw, bema"),
        ("{minimize: tdv/bema}", "'tdv/bema' is no metric that a validation reports, did you mean"),
        ("{minimize: tvd/bema/length=9}", "'tvd/bema/length=9' is no metric that a validation reports"),
    ],
)
def test_an_objective_that_no_validation_reports_is_refused(objective: str, words: str):
    with pytest.raises(SpaceError, match=rf"^tiny: search\.objective: {words}"):
        review(tiny(search__objective=objective))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"search.stopping": "median", "search.history": "last"}, "'last' forgets what stopping policies compare with"),
        ({"search.stopping": "[{population: {every: 10}}, asha]"}, "population stands alone or with patience"),
    ],
)
def test_stopping_policies_that_cannot_work_are_refused(settings: dict[str, str], words: str):
    with pytest.raises(SpaceError, match=f"tiny: search.*{words}"):
        review(tiny(**settings))


def test_an_average_that_only_some_trials_keep_is_no_error():
    assert review(tiny(averaging="{choice: [none, bema]}")) == [
        "1 of the 2 structures looked at will not report the objective tvd/bema"
    ]


def test_a_warm_up_beyond_the_end_is_told_with_its_share():
    space = tiny(optimizer__schedule="{linear: {warmup: 'int(1, 100)'}}", training__steps="75")
    [note] = review(space)
    assert note.startswith("about ")
    share = float(note.split()[1])
    assert 10 < share < 45, "26 of 100 warm-ups are 75 or more"
    assert "a warm-up (optimizer.schedule.warmup) that lasts to the end of training or beyond" in note
    assert review(tiny(optimizer__schedule="{linear: {warmup: 10}}")) == []
    [note] = review(tiny(optimizer__schedule="{linear: {warmup: 90}}", training__steps="90"))
    assert note.startswith("all trials have a warm-up")


def test_one_validation_is_told():
    [note] = review(tiny(training__validate_every="90"))
    assert note.startswith("all trials have one validation, at the end")


def test_a_trial_larger_than_memory_is_refused_where_it_would_run_and_told_elsewhere():
    large = tiny(group__vocabulary="1_000_000_000", model__value_width="8", model__width="8")
    words = (
        r"one trial needs .* at the least, for its parameters and what is kept of each, and cpu has .* \(where task\."
    )
    with pytest.raises(SpaceError, match=f"^tiny: {words}"):
        review(large, "cpu")
    [note] = review(large)
    assert note.startswith("one trial needs")


def test_the_parts_of_an_experiment_are_named():
    text = Path(SPACE).read_text() + "arms:\n  slow: {training.validate_every: 500}\n  fast: {}\nseeds: 2\n"
    [note] = review(parse(text, "arms", families(), {"search.trials": "1", "search.group": "1"}))
    assert note.startswith("arm slow: all trials have one validation")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_a_launch_is_refused_before_anything_is_written(run: Run, tmp_path: Path, dry: list[str]):
    status, out, error = run("launch", SPACE, "--set", "search.objective={minimize: tvd/ema}", *dry)
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: tiny: search.objective: 'ema' is no variant")
    assert not list(tmp_path.iterdir())


def test_a_check_tells_and_a_launch_tells_once(run: Run, tmp_path: Path):
    file = tmp_path / "once.yaml"
    file.write_text(Path(SPACE).read_text().replace("validate_every: 20", "validate_every: 90"))
    status, out, error = run("space", "check", file)
    assert (status, error.count("note: all trials have one validation")) == (0, 1)
    assert "good" in out
    small = ("--trials=1", "--steps=4", "--workers=1", "--device=cpu")
    assert run("launch", file, *small)[2].startswith("note: all trials have one validation")
    assert "note: all trials" not in run("launch", file, *small)[2]


def test_a_task_with_a_corpus_is_checked_without_it():
    """No document of its own corpus is read: one that needs the network stands for all."""
    space = load("language/stories", families(), {"search.trials": "2"})
    assert not [note for note in review(space) if "not checked" in note]
    with pytest.raises(
        SpaceError, match=r"search\.objective: 'nil/raw' is no metric that a validation reports, did you"
    ):
        review(load("language/stories", families(), {"search.objective": "{minimize: nil/raw}"}))


def test_a_spline_that_starts_as_a_function_is_checked_by_the_numbers_it_starts_from():
    """They are read as numbers while the evaluation has shapes alone."""
    spline = {"model.activation": "{spline: {knots: 5, start: gelu}}"}
    assert review(load("quick/add_mod", families(), {"search.trials": "2", "search.group": "2", **spline})) == []
    refused = {"search.objective": "{minimize: nil/raw}", **spline}
    with pytest.raises(SpaceError, match=r"search\.objective: 'nil/raw' is no metric"):
        review(load("quick/add_mod", families(), refused))


def test_what_a_batch_needs_is_estimated_from_small_ones():
    """Against the measure of whole batches, within a tenth; it is more than the state alone."""
    for name in ("quick/set_complement", "quick/add"):
        config = load(name, families()).sample(0, lambda _: 0.5).config
        measured = lane_bytes(Recipe.of(config))
        assert estimate_lane_bytes(config) == pytest.approx(measured, rel=0.1)
        assert least_bytes(config) < measured


def test_more_lanes_than_memory_holds_are_told(monkeypatch: pytest.MonkeyPatch):
    config = tiny().sample(0, lambda _: 0.5).config
    monkeypatch.setattr("workers.engine.machine.memory.free_bytes", lambda _: 3 * estimate_lane_bytes(config))
    assert review(tiny(), "cpu") == []
    [note] = review(tiny(), "cpu", lanes=100)
    assert re.match(
        r"100 lanes need about .* to train with batches of 8, activations included, and cpu has .* free", note
    )


def test_an_optimizer_that_keeps_more_needs_more():
    """The moments of Adam are twice the parameters, and an average is once more."""
    plain = tiny(optimizer="{name: sgd, learning_rate: 0.1}", averaging="none").sample(0, lambda _: 0.5).config
    adam = tiny(averaging="none").sample(0, lambda _: 0.5).config
    averaged = tiny().sample(0, lambda _: 0.5).config
    assert least_bytes(plain) < least_bytes(adam) < least_bytes(averaged)


@pytest.mark.parametrize(
    ("fields", "text", "words"),
    [
        ("package: samplers/none", "", "samplers/none: .* has no such package; name the registry's folder"),
        ("package: samplers/example", "raise ValueError('late')", "samplers/example: ValueError: late"),
        ("package: samplers/example", "", r"it has 0 samplers \(\); name one"),
        ("package: samplers/example, sampler: Other", SAMPLER, "'Other' is no sampler of the package"),
        ("package: samplers/example, arguments: '{\"spred\": 1}'", SAMPLER, "ExampleSampler: .*unexpected keyword"),
        ("package: samplers/example, arguments: '[1]'", SAMPLER, r"\[1\] must be JSON of the form"),
    ],
)
def test_a_sampler_that_cannot_begin_is_refused_before_a_study_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fields: str,
    text: str,
    words: str,
):
    monkeypatch.chdir(tmp_path)
    write_registry(tmp_path / "registry", text=text)
    sampler = f"search.sampler={{optunahub: {{registry: registry, {fields}}}}}"
    status, out, error = called(monkeypatch, capsys, "launch", SPACE, "--set", sampler, "--device", "cpu")
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert re.search(words, error), error
    assert not list(tmp_path.glob("graft.db*"))


def test_without_optunahub_a_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "optunahub", None)
    registry = write_registry(tmp_path / "registry")
    words = r"optunahub cannot be imported .*; `pip install 'graft-search\[hub\]'`"
    with pytest.raises(SpaceError, match=words):
        review(tiny(search__sampler=f"{{optunahub: {{package: samplers/example, registry: {registry}}}}}"))
