"""`--steps` on any space: one trains for so many steps, a transfer in proportion."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.option_groups import OverrideOptions
from graft.launching.planning.cutting import cut_steps
from graft.plugins.families import families
from spaces import load, parse
from spaces.experiment import ExperimentSpace
from spaces.reading import catalogue
from spaces.reading.transfer_section import is_transfer_text
from spaces.transfer import TransferSpace
from tests.support.inside import called
from tests.support.launches import SPACE

SPACES = sorted(catalogue.packaged_spaces(), key=lambda name: not name.startswith("quick/"))  # small ones first
TRANSFERS = [name for name in SPACES if is_transfer_text(catalogue.read_text(name))]


def counts(space: TransferSpace) -> dict[tuple[str, str], Any]:
    """Task and stage -> what counts steps there."""
    numbers: dict[tuple[str, str], Any] = {}
    for domain in space.domains:
        for stage, part in (("two", domain.baseline), ("one", domain.searched)):
            if part:
                config = part.sample(0, lambda _: 0.5).config
                life = config["learning"].get("life", 0)
                numbers[domain.name, stage] = config["training"]["steps"], config["training"]["validate_every"], life
    return numbers


@pytest.mark.sampled(2, 8)
@pytest.mark.parametrize("name", TRANSFERS)
def test_a_transfer_is_cut_in_proportion(name: str):
    """Halved: every count is half of what it was, to the next whole number, in both stages."""
    whole = load(name, families())
    assert isinstance(whole, TransferSpace)
    before = counts(whole)
    longest = max(steps for (_, stage), (steps, *_) in before.items() if stage == "two")
    cut = load(name, families(), cut_steps(whole, longest // 2).overrides)
    assert isinstance(cut, TransferSpace)
    cut.check(5)
    after = counts(cut)
    for where, values in before.items():
        for value, half in zip(values, after[where], strict=True):
            assert half == (max(1, round(value * (longest // 2) / longest)) if value > 1 else value), where


def test_another_space_is_cut_in_proportion():
    """Of 90 steps at most, validated every 20; of 2,000, with a warm-up that is drawn."""
    assert cut_steps(load(SPACE, families()), 9).overrides == {"training.steps": "9", "training.validate_every": "2"}
    whole = load("quick/set_complement", families())
    assert cut_steps(whole, 0).overrides == {"training.steps": "0"}
    part = load("quick/set_complement", families(), cut_steps(whole, 200).overrides)
    for number, u in enumerate((0.0, 0.3, 0.6, 0.9, 0.99)):
        before, after = (space.sample(number, lambda _, u=u: u).config for space in (whole, part))
        warmup = before["optimizer"]["schedule"]["warmup"]
        assert after["optimizer"]["schedule"]["warmup"] == round(warmup / 10)
        assert after["training"]["validate_every"] * 10 == before["training"]["validate_every"]
        assert before["optimizer"]["learning_rate"] == after["optimizer"]["learning_rate"], "draws keep their names"


LATE = """
study: late
task: {name: affine, points: 8, curriculum_start: 4, curriculum_every: 50}
model: {name: minimal, width: 12, key_width: 6, value_width: 9}
optimizer: {name: adamw, learning_rate: 0.01, schedule: {linear: {warmup: {log_int: [10, 100]}}}}
training: {steps: 400, validate_every: 100}
search:
  trials: 4
  objective: {minimize: mse/raw}
  stopping: [{asha: {min_steps: 40}}, {patience: {steps: 60}}, {median: {}}]
"""


def test_curricula_draws_and_stopping_policies_are_cut_too(tmp_path: Path):
    """Double: a curriculum, a warm-up written as a draw, and what policies wait for; a count of one stays one."""
    file = tmp_path / "late.yaml"
    file.write_text(LATE.replace("minimal, width: 12, key_width: 6, value_width: 9", "linearised_attention"))
    whole = load(str(file), families())
    part = load(str(file), families(), cut_steps(whole, 800).overrides)
    before, after = (space.sample(0, lambda _: 0.5).config for space in (whole, part))
    assert after["task"]["curriculum_every"] == 100
    warmup = before["optimizer"]["schedule"]["warmup"]
    assert after["optimizer"]["schedule"]["warmup"] == 2 * warmup
    assert after["training"]["validate_every"] == 200
    counts = [(policy.min_steps if hasattr(policy, "min_steps") else policy.steps) for policy in part.search.stopping]
    assert counts == [80, 120, 1]


def test_what_is_set_by_its_own_path_stays():
    """Also where it is a part of what is cut as a whole, and where another cut lies in it."""
    given = ["search.stopping={asha: {min_steps: 10}}", "optimizer.schedule={linear: {warmup: 10}}"]
    options = OverrideOptions(steps=45, set_=[*given, "training.validate_every=3"])
    with options.load(SPACE, []) as cut:
        pass
    assert cut.search.stopping[0].min_steps == 10
    training, optimizer = (cut.sample(0, lambda _: 0.5).config[name] for name in ("training", "optimizer"))
    assert (training["steps"], training["validate_every"], optimizer["schedule"]["warmup"]) == (45, 3, 5)


@pytest.mark.long
def test_what_stands_in_an_option_is_told_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    schedules = "{choice: [{linear: {warmup: 10}}, {cosine: {warmup: 20}}]}"
    cut = cut_steps(load(SPACE, families(), {"optimizer.schedule": schedules}), 9)
    assert cut.kept == ("optimizer.schedule.warmup",)
    monkeypatch.chdir(tmp_path)
    more = ("--set", f"optimizer.schedule={schedules}", "--steps", "45", "--dry-run", "--device", "cpu", "--pack", "2")
    status, _, error = called(monkeypatch, capsys, "launch", SPACE, *more)
    assert status == 0, error
    assert (
        "--steps: optimizer.schedule.warmup stands in an option, an arm or a section that --steps does not reach"
        in error
    )


COUNTED = """
study: counted
transfer:
  tasks:
    plain:
      space:
        study: plain
        task: {name: affine, points: 8, curriculum_start: 4, curriculum_every: 50}
        model: {name: regressor, depth: 1, heads: 2, width: 8, activation: {spline: {knots: 9}}}
        optimizer: {name: adam, learning_rate: 0.01}
        training: {steps: 400, validate_every: 100}
        search: {trials: 1, objective: {minimize: mse/raw}}
    living:
      space:
        study: living
        task: {name: affine, points: 8, curriculum_start: 4, curriculum_every: 50}
        model: {name: regressor, depth: 1, heads: 2, width: 8, activation: {spline: {knots: 9}}}
        optimizer: {name: adam, learning_rate: 0.01}
        learning: {architecture: {models: 2, life: 60, optimizer: {name: adam, learning_rate: 0.01}}}
        training: {steps: 400, validate_every: 100}
        search: {trials: 1, objective: {minimize: mse/raw}}
  architecture: {optimizer.learning_rate: "log_uniform(0.01, 0.1)"}
  pairs: 1
search: {trials: 1, objective: {minimize: mse/raw}}
"""


def test_a_transfer_whose_task_counts_steps_is_cut_where_its_counts_can_be_set():
    """The curriculum under `set` alone, from where stage one has it; the life of a space's own learning stays."""
    whole = parse(COUNTED, "counted.yaml", families())
    assert isinstance(whole, TransferSpace)
    cut = cut_steps(whole, 40)
    assert cut.kept == ("transfer.tasks.living.set.learning.life",)
    part = parse(COUNTED, "counted.yaml", families(), cut.overrides)
    assert isinstance(part, TransferSpace)
    for domain in part.domains:
        for space in filter(None, (domain.searched, domain.baseline)):
            config = space.sample(0, lambda _: 0.5).config
            assert (config["task"]["curriculum_every"], config["training"]["steps"]) == (5, 40)


def test_an_experiment_is_cut_arm_by_arm(tmp_path: Path):
    """What an arm sets is cut where it sets it; the longest arm gets the steps."""
    file = tmp_path / "arms.yaml"
    text = Path(SPACE).read_text().replace('steps: "choice(50, 90)"', "steps: 80")
    arms = "arms:\n  plain: {}\n  slow: {training.validate_every: 40, training.steps: 160}\nseeds: 2\n"
    file.write_text(text.replace("trials: 48", "trials: 1").replace("group: 16", "group: 1") + arms)
    cut = load(str(file), families(), cut_steps(load(str(file), families()), 16).overrides)
    assert isinstance(cut, ExperimentSpace)
    trainings = [arm.space.sample(0, lambda _: 0.5).config["training"] for arm in cut.arms]
    assert [(training["steps"], training["validate_every"]) for training in trainings] == [(8, 2), (16, 4)]


NAMED = """
study: named
trial: {w: %s}
arms: {short: , long: {trial.w: 400}, own: {optimizer.schedule.warmup: 60}}
seeds: 2
task: {name: affine, points: 8}
model: {name: regressor, depth: 1, heads: 2, width: 8}
optimizer: {name: adam, learning_rate: 0.003, schedule: {linear: {warmup: $w}}}
training: {steps: %s, validate_every: 20}
search: {objective: {minimize: mse/raw, at: last}}
"""


@pytest.mark.parametrize(
    ("w", "steps", "expected"),
    [
        ("100", "1000", [(50, 500), (200, 500), (30, 500)]),
        ("100", "$w", [(125, 125), (500, 500), (75, 125)]),
        ("1", "1000", [(1, 500), (200, 500), (30, 500)]),
    ],
)
def test_arms_that_differ_through_a_named_value_stay_different(w: str, steps: str, expected: list[tuple[int, int]]):
    """A count follows from a value that an arm sets, which is no path of the count."""
    text = NAMED % (w, steps)
    whole = parse(text, "named.yaml", families())
    cut = cut_steps(whole, 500)
    part = parse(text, "named.yaml", families(), cut.overrides)
    assert isinstance(part, ExperimentSpace)
    configs = [arm.space.sample(0, lambda _: 0.5).config for arm in part.arms]
    found = [(config["optimizer"]["schedule"]["warmup"], config["training"]["steps"]) for config in configs]
    assert (found, cut.kept) == (expected, ())


def test_an_arm_of_which_no_path_can_be_written_is_told():
    text = (NAMED % ("100", "1000")).replace("long:", "long-one:")
    cut = cut_steps(parse(text, "named.yaml", families()), 500)
    assert cut.kept == ("arms.long-one.optimizer.schedule.warmup",)


DRAWN = """
study: drawn
transfer:
  tasks:
    plain: quick/set_complement
    other: {space: quick/set_complement, set: {training.steps: "int(500, 1000)", optimizer.schedule.warmup: 300}}
  architecture: {model.residual_dropout: "uniform(0, 0.2)"}
  learn: {optimizer.schedule: {choice: [{linear: {warmup: 100}}, {linear: {warmup: 200}}]}}
  pairs: 2
search: {trials: 2, objective: {minimize: tvd/raw, at: last}}
"""


def test_drawn_counts_of_a_transfer_are_cut_as_they_are_drawn():
    """A warm-up stays drawn, drawn steps become the longest of them, and what stands in an option stays."""
    whole = parse(DRAWN, "drawn.yaml", families())
    cut = cut_steps(whole, 200)
    part = parse(DRAWN, "drawn.yaml", families(), cut.overrides)
    assert isinstance(whole, TransferSpace)
    assert isinstance(part, TransferSpace)
    for u in (0.0, 0.3, 0.6, 0.9, 0.99):
        (before, _), (after, other) = (
            [domain.baseline.sample(0, lambda _, u=u: u).config for domain in space.domains] for space in (whole, part)
        )
        warmup = before["optimizer"]["schedule"]["warmup"]
        assert after["optimizer"]["schedule"]["warmup"] == round(warmup / 10)
        assert after["training"]["steps"] == 200
        assert (other["training"]["steps"], other["optimizer"]["schedule"]["warmup"]) == (100, 30)
    for domain in part.domains:
        assert domain.searched
        warmups = {
            domain.searched.sample(0, lambda _, u=u: u).config["optimizer"]["schedule"]["warmup"] for u in (0, 0.9)
        }
        assert warmups == {100, 200}
    assert cut.kept == tuple(f"transfer.tasks.{task}.learn.optimizer.schedule.warmup" for task in ("plain", "other"))


def test_a_count_inside_a_plug_in_that_a_task_sets_as_a_whole_is_cut():
    schedule = "{name: adamw, learning_rate: 0.003, schedule: {linear: {warmup: 100}}}"
    text = DRAWN.replace("optimizer.schedule.warmup: 300", f"averaging: none, optimizer: {schedule}")
    text = text.replace("    other:", "    set:")
    text = text.replace(
        "  learn: {optimizer.schedule: {choice: [{linear: {warmup: 100}}, {linear: {warmup: 200}}]}}\n", ""
    )
    part = parse(text, "drawn.yaml", families(), cut_steps(parse(text, "drawn.yaml", families()), 200).overrides)
    assert isinstance(part, TransferSpace)
    for space in (part.domains[1].baseline, part.domains[1].searched):
        assert space
        assert space.sample(0, lambda _: 0.5).config["optimizer"]["schedule"]["warmup"] == 10


@pytest.mark.long
def test_a_transfer_is_launched_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What is set by its own path counts more."""
    monkeypatch.chdir(tmp_path)
    run: Callable[..., tuple[int, str, str]] = lambda *words: called(monkeypatch, capsys, *words)  # noqa: E731
    option = "--set=transfer.tasks.add.set.training.validate_every=5"
    status, out, error = run("launch", "quick/transfer", "--steps=20", option, "--dry-run", "--device=cpu", "--pack=2")
    assert status == 0, error
    match = re.search(r"steps +(\d+) to (\d+) a trial", out)
    assert match
    assert (int(match[1]), int(match[2]) <= 80) == (10, True), "300 in stage two, 1,200 in stage one before"
    status, out, error = run("launch", "quick/transfer", "--steps=0", "--dry-run")
    assert (status, out, error.count("\n")) == (2, "", 1)
