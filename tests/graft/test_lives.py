"""A study after its launch: more trials, another space, trials by hand, notes, tags, another name, and its end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graft
from graft.api import running as running_api
from graft.launching.editing.administration import delete_study, rename_study, tag_study, write_note
from graft.launching.editing.enqueueing import enqueue, parse_value
from graft.launching.enrolling import enrol, open_controller, set_planned_trials
from graft.plugins.families import families
from graft.stored.differences import compare_spaces
from spaces import parse
from spaces.errors import GraftError, SpaceError, StudyError
from spaces.inversion import TOLERANCE, find_trial
from spaces.records import Offer, Report
from spaces.space import DrawnSpace, Space
from storage import open_reader, open_store
from storage.schema import metadata
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import SPACE, counts, ended, finished, metrics, running, search, wait_until
from tests.support.lives import draws, report_of_draws, tiny, train

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the program inside this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


def tables(url: str) -> dict[str, list[Any]]:
    """Every row of a database but for the fence, which counts who held the study."""
    studies = ", ".join(name for name in metadata.tables["studies"].c.keys() if name != "fence")  # noqa: SIM118 - columns are no dictionary
    rows = {name: raw(url, f"SELECT * FROM {name}") for name in metadata.tables if name != "studies"}
    return rows | {"studies": raw(url, f"SELECT {studies} FROM studies")}


def test_policies_that_cannot_work_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    space = tiny(search__stopping="{asha: {min_steps: 2}}", search__history="last")
    with pytest.raises(StudyError, match=r"^search\.history: 'last' forgets what stopping policies compare with"):
        enrol(f"sqlite:///{tmp_path}/new.db", "tiny", space)
    assert not list(tmp_path.iterdir())


# -- more trials -----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampler", ["random", "qmc", "{grid: {points: 3}}"])
def test_an_extended_study_has_the_trials_of_one_launched_so(tmp_path: Path, sampler: str):
    """At an odd number within a group, so that the rest of the group keeps its shape."""
    extended, whole = (f"sqlite:///{tmp_path}/{name}.db" for name in ("extended", "whole"))
    enrol(extended, "tiny", tiny(search__sampler=sampler, search__trials="5", search__group="2"))
    train(extended)
    assert str(set_planned_trials(extended, "tiny", 12)) == "resumed with another space (search.trials: 5 -> 12)"
    train(extended)
    enrol(whole, "tiny", tiny(search__sampler=sampler, search__trials="12", search__group="2"))
    train(whole)
    assert len(draws(whole)) > 5
    for query in ("SELECT number, group_number, seed, draws, config, objective, state FROM trials ORDER BY number",):
        assert raw(extended, query) == raw(whole, query)
    assert raw(extended, "SELECT trials, state, space_hash FROM studies") == raw(
        whole, "SELECT trials, state, space_hash FROM studies"
    )


@pytest.mark.long
def test_an_extended_launch_trains_the_numbers_of_one_launched_so(tmp_path: Path):
    for name in ("extended", "whole"):
        (tmp_path / name).mkdir()
    search(tmp_path / "extended", "launch", SPACE, "--trials", "64", "--workers", "1")
    lines = search(tmp_path / "extended", "launch", SPACE, "--trials", "128", "--workers", "1")
    assert lines[0].endswith("resumed with another space (search.trials: 64 -> 128), 128 trials")
    search(tmp_path / "whole", "launch", SPACE, "--trials", "128", "--workers", "1")
    extended, whole = (metrics(f"sqlite:///{tmp_path}/{name}/graft.db") for name in ("extended", "whole"))
    assert len(whole) > 128
    assert extended == whole


def test_fewer_trials_than_were_started_are_refused(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    train(url)
    before = tables(url)
    with pytest.raises(StudyError, match=r"search\.trials: 3 is less than study 'tiny' has started; .* at least 4"):
        set_planned_trials(url, "tiny", 3)
    with pytest.raises(SpaceError, match=r"search\.trials: 0 must be"):
        set_planned_trials(url, "tiny", 0)
    assert tables(url) == before


def test_an_experiment_is_extended_where_its_numbers_stay(tmp_path: Path):
    """Without confirmations configurations come one after another; with them, these would move."""
    text = Path(SPACE).read_text() + "arms:\n  slow: {}\n  fast: {optimizer.learning_rate: 0.5}\nseeds: 2\n"
    overrides = {"search.trials": "2", "search.group": "1"}
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", parse(text, "arms", families(), overrides))
    train(url)
    before = draws(url)
    enrol(url, "tiny", parse(text, "arms", families(), overrides | {"search.trials": "3"}))
    train(url)
    assert draws(url)[: len(before)] == before
    assert len(draws(url)) == len(before) * 3 // 2


ARMS = "arms:\n  slow: {}\n  fast: {optimizer.learning_rate: 0.5}\nseeds: 2\n"
GROUPS = "SELECT number, group_number, params FROM trials ORDER BY number"


def experiment(more: str = "", **overrides: str) -> Space:
    text = Path(SPACE).read_text() + ARMS + more
    return parse(text, "arms", families(), {"search.trials": "2", "search.group": "1"} | overrides)


def test_an_experiment_is_asked_for_trials_in_all(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", experiment())
    for wrong in (9, 3):
        with pytest.raises(StudyError) as refusal:
            set_planned_trials(url, "tiny", wrong)
        choices = "8 or 12" if wrong == 9 else "4 or 8"
        assert str(refusal.value) == (
            f"{wrong} trials in all do not divide: 2 arms and 2 seeds make 4 trials of each configuration; "
            f"choose {choices}"
        )
    assert set_planned_trials(url, "tiny", 8).kind == "unchanged"
    assert "search.trials: 2 -> 3" in str(set_planned_trials(url, "tiny", 12))
    assert raw(url, "SELECT trials FROM studies") == [(12,)]
    enrol(url, "confirmed", experiment("confirm: {top: 1, seeds: 3}\n"))
    with pytest.raises(StudyError, match=r"15 trials in all .* beside 6 confirmations; choose 14 or 18"):
        set_planned_trials(url, "confirmed", 15)
    set_planned_trials(url, "confirmed", 18)
    assert raw(url, "SELECT trials FROM studies WHERE name = 'confirmed'") == [(18,)]


def test_a_study_of_arms_is_extended_by_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    enrol(f"sqlite:///{tmp_path}/graft.db", "tiny", experiment())
    monkeypatch.setattr(running_api, "train", lambda *_: None)
    study = graft.open(tmp_path / "graft.db")["tiny"]
    with pytest.raises(StudyError, match="9 trials in all do not divide"):
        study.extend(1, graft.Run(progress=False))
    study.extend(4, graft.Run(progress=False))
    assert study.status().progress.planned == 12


@pytest.mark.parametrize("group", ["1", "2"])
def test_an_extended_experiment_has_the_groups_of_one_launched_so(tmp_path: Path, group: str):
    """The number of a group counts the arms before it, whose groups become more."""
    extended, whole = (f"sqlite:///{tmp_path}/{name}.db" for name in ("extended", "whole"))
    enrol(extended, "tiny", experiment(**{"search.group": group, "search.trials": "3"}))
    train(extended)
    before = raw(extended, GROUPS)
    # A study that is resumed without a change keeps the numbers that it has.
    raw(extended, "UPDATE trials SET group_number = 77 WHERE number = 0")
    enrol(extended, "tiny", experiment(**{"search.group": group, "search.trials": "3"}))
    train(extended)
    assert [number for number, stored, _ in raw(extended, GROUPS) if stored == 77] == [0]
    set_planned_trials(extended, "tiny", 20)
    train(extended)
    enrol(whole, "tiny", experiment(**{"search.group": group, "search.trials": "5"}))
    train(whole)
    assert raw(extended, GROUPS) == raw(whole, GROUPS) != before
    by_group: dict[int, set[str]] = {}
    for _, number, params in raw(extended, GROUPS):
        by_group.setdefault(number, set()).add(json.loads(params)["arm"])
    assert all(len(arms) == 1 for arms in by_group.values())


def test_a_trial_is_not_retried_once_its_arm_is_being_confirmed(tmp_path: Path):
    """Another result would choose another configuration, and a confirmation would be of two."""
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", experiment("confirm: {top: 1, seeds: 2}\n"))
    train(url)
    assert [number for number, _ in draws(url)] == list(range(12))
    # Trials 2 and 6 are of arm `fast`, 4 of arm `slow`; 11 is a confirmation of `fast`.
    raw(url, "UPDATE trials SET state = 'failed', objective = NULL WHERE number IN (2, 4, 11)")
    before = tables(url)
    with open_store(url) as store:
        study = raw(url, "SELECT id FROM studies")[0][0]
        for numbers in ((2,), (11, 2)):
            with pytest.raises(StudyError) as refusal:
                store.retry(study, numbers)
            assert str(refusal.value) == (
                "trial 2 had a part in choosing what arm fast confirms, which has begun; choose of 11"
            )
        assert tables(url) == before
        assert store.retry(study) == [11]
        with pytest.raises(StudyError, match=r"^trial 2 had a part in .* all that failed or diverged had such a part$"):
            store.retry(study)
        raw(url, "DELETE FROM trials WHERE number IN (8, 9)")  # those of `slow`
        assert store.retry(study, (4,)) == [4]


# -- another space ---------------------------------------------------------------------------------------------------


def test_another_objective_is_taken_for_what_is_stored(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny(training__steps="20"))
    train(url)
    sums = {number: sum(trial_draws.values()) for number, trial_draws in draws(url)}
    assert dict(raw(url, "SELECT number, objective FROM trials")) == pytest.approx(sums)
    enrol(url, "tiny", tiny(training__steps="20", search__objective="{maximize: tvd/raw}"))
    negative = {number: -total for number, total in sums.items()}
    assert dict(raw(url, "SELECT number, objective FROM trials")) == pytest.approx(negative)
    assert raw(url, "SELECT objective, direction, state FROM studies") == [("tvd/raw", "maximize", "stopped")]
    [(number, trials, differences)] = raw(url, "SELECT number, trials, differences FROM changes")
    assert (number, trials) == (0, 4)
    assert ["search.objective.minimize", "tvd/bema", None] in json.loads(differences)


def test_an_objective_that_the_kept_validations_do_not_tell_is_refused(tmp_path: Path):
    """Of 90 steps validated every 20, one report is there: the best one may be among the others."""
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny(training__steps="90"))
    train(url)
    before = tables(url)
    with pytest.raises(
        StudyError, match="trial 0 of tiny keeps 1 of its 5 validations, so that its best tvd/raw is not"
    ):
        enrol(url, "tiny", tiny(training__steps="90", search__objective="{minimize: tvd/raw}"))
    with pytest.raises(StudyError, match="trial 0 of tiny has 'tvd/ema' is no metric that a validation reports"):
        enrol(url, "tiny", tiny(training__steps="90", search__objective="{minimize: tvd/ema}"))
    assert tables(url) == before
    assert (
        enrol(url, "tiny", tiny(training__steps="90", search__objective="{minimize: tvd/raw, at: last}")).kind
        == "changed"
    )


def test_another_stopping_policy_restarts_what_is_in_training(tmp_path: Path):
    """What the controller knew of a trial stands with its checkpoint, and is of the old policies."""
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    controller = open_controller(url, "tiny")
    [trial, *_] = controller.exchange([], Offer(worker="w", lanes=1, host="h", device="cpu")).start
    report = report_of_draws(trial.number, trial.fence, dict(trial.draws), {"training": {"steps": 20}})
    controller.exchange(
        [Report(number=0, fence=1, step=20, metrics=report.metrics)],
        Offer(worker="w", lanes=0, structure=trial.structure, holds=(trial.start,)),
    )
    controller.close()
    assert raw(url, "SELECT state, steps FROM trials") == [("running", 20)]
    enrol(url, "tiny", tiny(search__stopping="{median: {}}"))
    assert raw(url, "SELECT state, steps FROM trials") == [("queued", 0)]
    assert raw(url, "SELECT count(*) FROM metrics") == [(0,)]
    train(url)
    assert counts(url) == {"finished": 4}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("optimizer.learning_rate", "0.5", r"optimizer\.learning_rate: 10 \*\* uniform\(-3, -1\) -> 0\.5"),
        ("search.seed", "5", r"search\.seed: nothing -> 5"),
        ("search.sampler", "tpe", r"search\.sampler: random -> tpe"),
        ("search.group", "4", r"search\.group: 2 -> 4"),
        ("training.steps", "7", r"training\.steps: choice\(50, 90\) -> 7"),
    ],
)
def test_a_space_that_would_make_other_trials_is_refused(tmp_path: Path, path: str, value: str, words: str):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    train(url)
    before = tables(url)
    with pytest.raises(
        StudyError, match=rf"^study 'tiny' exists with another space \({words}\); give this one another"
    ):
        enrol(url, "tiny", tiny(**{path.replace(".", "__"): value}))
    with pytest.raises(StudyError, match="--replace: study 'tiny' has 4 trials with a result, which would be lost"):
        enrol(url, "tiny", tiny(**{path.replace(".", "__"): value}), replace=True)
    assert tables(url) == before


def test_a_study_without_a_result_is_replaced_when_asked(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    with pytest.raises(StudyError, match=r"it has no result yet: --replace begins it again$"):
        enrol(url, "tiny", tiny(model__width="4"))
    done = enrol(url, "tiny", tiny(model__width="4"), replace=True)
    assert str(done) == "replaced by a new one with another space (model.width: 8 -> 4)"
    train(url)
    assert {json.loads(config)["model"]["width"] for (config,) in raw(url, "SELECT config FROM trials")} == {4}


def test_differences_do_not_see_layout():
    old = "study: a  # a comment\nsearch: {trials: 3, sampler: random}\n"
    new = "search:\n  sampler: random\n  trials: 4\nstudy: a\n"
    assert [str(difference) for difference in compare_spaces(old, new)] == ["search.trials: 3 -> 4"]


# -- trials by hand --------------------------------------------------------------------------------------------------


def test_trials_by_hand_are_trained_and_teach_the_sampler(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny(search__sampler="{tpe: {startup: 2}}", search__group="1"))
    train(url)
    assert enqueue(url, "tiny", [{"optimizer.learning_rate": 0.02, "training.steps": 90}, {"group.length": 3}]) == [
        4,
        5,
    ]
    assert raw(url, "SELECT state, trials FROM studies") == [("stopped", 6)]
    train(url)
    assert counts(url) == {"finished": 6}
    stored = raw(url, "SELECT number, config FROM trials WHERE number IN (4, 5) ORDER BY number")
    four, five = (json.loads(text) for _, text in stored)
    assert four["optimizer"]["learning_rate"] == pytest.approx(0.02, rel=TOLERANCE)
    assert four["training"]["steps"] == 90
    assert five["task"]["length"] == 3
    set_planned_trials(url, "tiny", 9)
    train(url)
    assert [number for number, _ in draws(url)] == list(range(9))
    assert raw(url, "SELECT number, config FROM trials WHERE number IN (4, 5) ORDER BY number") == stored


def test_a_trial_by_hand_has_the_shapes_of_its_group(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny(search__trials="5", search__group="4"))
    train(url)
    enqueue(url, "tiny", [{"averaging.eta": 0.25}])
    rows = raw(url, "SELECT group_number, config FROM trials WHERE number IN (4, 5) ORDER BY number")
    assert [group for group, _ in rows] == [1, 1]
    assert json.loads(rows[0][1])["task"] == json.loads(rows[1][1])["task"]
    assert json.loads(rows[1][1])["averaging"]["eta"] == pytest.approx(0.25, rel=TOLERANCE)


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"optimizer.learning_rate": 3}, "3 is not given by .*, which goes from 0.001 to 0.1$"),
        ({"training.steps": 70}, r"training\.steps: 70 is not given by choice\(50, 90\)$"),
        ({"model.width": 4}, r"model\.width: it is 8 in every trial$"),
        ({"task.length": 4}, r"task\.length: it is \$length, which is not drawn there; set what it is made of$"),
        ({"optimizer.rate": 4}, "'optimizer.rate' is no value that is drawn"),
        ({"group.length": 4}, r"group\.length: the trials of group 2 share it"),
        ({"averaging.eta": "high"}, r"averaging\.eta: high is not given by"),
        ({"averaging.eta": True}, r"averaging\.eta: True is not given by"),
    ],
)
def test_what_no_draw_gives_is_refused(tmp_path: Path, wanted: dict[str, Any], words: str):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    before = tables(url)
    with pytest.raises(SpaceError, match=words):
        enqueue(url, "tiny", [{}, wanted])
    assert tables(url) == before


NESTED = """
study: nested
group: {size: "int(2, 9)"}
trial: {rate: "log_uniform(1e-5, 1e-1)"}
task: {name: set_complement, length: $size, vocabulary: 2 * $size}
model:
  name: minimal
  width: 8
  key_width: log_int(1, 500)
  value_width: 2 * $size
  residual_dropout: relu(uniform(-0.5, 0.5))
  scorer: {choice: [softmax, {softmax: {temperature: "uniform(2, 9)"}}, {ssa: {n: "1 + 3 * uniform(0, 1) ** 2"}}]}
optimizer: {name: adamw, learning_rate: $rate, weight_decay: "choice(0, 10 ** uniform(-6, -2))"}
training: {steps: 20, batch: 4, validate_every: 10}
search: {sampler: random, trials: 9, objective: {minimize: tvd/raw}}
"""


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(numbers=st.integers(0, 10**6), seed=st.integers(0, 2**40))
def test_every_value_that_a_space_gives_can_be_asked_for(numbers: int, seed: int):
    """The law of the inverse: the values of a random trial, asked for by path, give those values again."""
    space = parse(NESTED, "nested", families())
    assert isinstance(space, DrawnSpace)
    random = Random(f"{numbers}/{seed}")
    trial = space.sample(numbers, lambda _: random.random())
    config = trial.config
    wanted = {
        "group.size": config["task"]["length"],
        "trial.rate": config["optimizer"]["learning_rate"],
        "model.key_width": config["model"]["key_width"],
        "model.residual_dropout": config["model"]["residual_dropout"],
        "optimizer.weight_decay": config["optimizer"]["weight_decay"],
        "model.scorer": config["model"]["scorer"],
    }
    scorer = config["model"]["scorer"]
    inner = "temperature" if scorer["name"] == "softmax" else "n"
    if f"model.scorer.{inner}" in trial.draws:
        wanted |= {"model.scorer": scorer["name"], f"model.scorer.{inner}": scorer[inner]}
    inverse = find_trial(space, numbers, lambda _: 0.5, wanted)
    assert _is_close(inverse.config, config)


def _is_close(actual: Any, expected: Any) -> bool:
    if isinstance(actual, dict):
        return actual.keys() == expected.keys() and all(_is_close(actual[key], expected[key]) for key in actual)
    return math.isclose(actual, expected, rel_tol=1e-11) if isinstance(actual, float) else actual == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10),
        ("09", 9),
        ("1e-3", 0.001),
        ("1:30", "1:30"),
        ("on", "on"),
        ("true", True),
        ("2024-02-03", "2024-02-03"),
        ("~", None),
        ("{ssa: {n: 1e-3}}", {"ssa": {"n": 0.001}}),
        ("{choice: [a, 2]}", {"choice": ["a", 2]}),
    ],
)
def test_a_value_by_hand_is_read_as_a_space_reads_it(text: str, value: Any):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


@pytest.mark.parametrize(
    "wanted",
    [
        {"model.scorer": {"softmax": 3}},
        {"model.scorer": {"softmax": [1]}},
        {"model.scorer": {1: 2}},
        {"model.scorer": {}},
        {"optimizer.learning_rate": 10**400},
        {"optimizer.weight_decay": -(10**400)},
        {"model.scorer": "softmax", "model.scorer.temperature": 10**400},
    ],
)
def test_a_value_that_is_no_plug_in_and_a_number_beyond_all_are_refused(wanted: dict[str, Any]):
    space = parse(NESTED, "nested", families(), {"trial.rate": "1", "optimizer.learning_rate": "log_uniform(1e-5, 1)"})
    assert isinstance(space, DrawnSpace)
    with pytest.raises(SpaceError, match="is not given by"):
        find_trial(space, 0, lambda _: 0.3, wanted)


def test_a_plug_in_by_hand_may_have_no_fields():
    space = parse(NESTED, "nested", families())
    assert isinstance(space, DrawnSpace)
    for fields in ({}, None):
        trial = find_trial(space, 0, lambda _: 0.3, {"model.scorer": {"ssa": fields}})
        assert trial.config["model"]["scorer"]["name"] == "ssa"


def test_many_trials_come_from_a_csv(tmp_path: Path, run: Run):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    (tmp_path / "many.csv").write_text("optimizer.learning_rate, training.steps\n1e-2,50\n,90\n0.05,\n")
    assert run("enqueue", "tiny", "--csv", "many.csv") == (
        0, "", "tiny: trials 4, 5, 6 added; train with `search resume tiny`\n",
    )  # fmt: skip
    configs = [json.loads(text) for (text,) in raw(url, "SELECT config FROM trials ORDER BY number")]
    assert [configs[index]["training"]["steps"] for index in (0, 1)] == [50, 90]
    assert [configs[index]["optimizer"]["learning_rate"] for index in (0, 2)] == pytest.approx([0.01, 0.05], rel=1e-11)


# -- names, notes, tags, the archive, the end ------------------------------------------------------------------------


def test_a_study_is_annotated_tagged_archived_renamed_and_deleted(tmp_path: Path, run: Run):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    enrol(url, "other", tiny())
    train(url)
    set_planned_trials(url, "tiny", 6)
    assert run("note", "tiny", "with the old mask")[0] == 0
    assert run("tag", "tiny", "paper", "draft")[2] == "tiny: tags draft, paper\n"
    assert run("tag", "tiny", "--remove", "draft")[2] == "tiny: tags paper\n"
    status = run("status", "tiny")[1]
    assert "note   with the old mask\n" in status.replace("  ", " ").replace("  ", " ").replace("note ", "note   ")
    assert "search.trials: 4 -> 6" in status
    assert "tiny" in run("studies", "--tag", "paper")[1]
    assert "other" not in run("studies", "--tag", "paper")[1]
    run("archive", "tiny")
    assert "tiny" not in run("studies")[1]
    assert "tiny" in run("studies", "--all")[1]
    run("archive", "tiny", "--undo")
    assert "tiny" in run("studies")[1]
    assert run("rename", "tiny", "small")[2] == "tiny is now small\n"
    train(url, "small")
    assert counts(url, "small") == {"finished": 6}
    assert run("delete", "small", "--yes")[2] == "small and its 6 trials are deleted\n"
    left = tables(url)
    assert [row[1] for row in left.pop("studies")] == ["other"]
    assert not any(left.values())
    assert run("db", "check")[0] == 0


@pytest.mark.long
def test_deleting_a_study_takes_its_checkpoints_and_leaves_those_of_others(tmp_path: Path):
    folder = tmp_path / "graft.db-checkpoints"
    launch = (
        "launch",
        SPACE,
        "--steps=1000000",
        "--set=training.validate_every=20",
        "--workers=1",
        "--checkpoint-every=1",
    )
    for study in ("one", "two"):
        with running(tmp_path, *launch, "--study", study) as process:
            wait_until(lambda study=study: any(folder.glob(f"{study}-*/*.safetensors")))
            process.terminate()
            ended(process, 130)
    url = f"sqlite:///{tmp_path}/graft.db"
    rename_study(url, "one", "first")
    delete_study(url, "first")
    assert [path.name.split("-")[0] for path in folder.iterdir()] == ["two"]


@pytest.mark.slow
def test_a_renamed_study_resumes_from_its_checkpoints(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    launch = (
        "launch",
        SPACE,
        "--trials=2",
        "--steps=4000",
        "--set=training.validate_every=20",
        "--set=search.group=2",
        "--workers=1",
        "--checkpoint-every=1",
    )
    with running(tmp_path, *launch) as process:
        wait_until(lambda: any(tmp_path.glob("graft.db-checkpoints/*/*.safetensors")))
        process.terminate()
        ended(process, 130)
    before = raw(url, "SELECT min(steps) FROM trials")[0][0]
    rename_study(url, "tiny", "small")
    set_planned_trials(url, "small", 3)
    assert raw(url, "SELECT min(steps) FROM trials")[0][0] == before > 0
    search(tmp_path, "resume", "small", "--workers=1")
    assert finished(url, "small") == 3
    # A trial that had been started again from step 0 would have made its first steps twice.
    assert raw(url, "SELECT sum(steps) FROM workers")[0][0] < 3 * 4000 + 3 * before


@pytest.fixture
def running_study(url: str) -> Iterator[str]:
    """Yield a database whose study is held by a controller."""
    enrol(url, "tiny", tiny())
    controller = open_controller(url, "tiny")
    yield url
    controller.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "act",
    [
        lambda url: rename_study(url, "tiny", "small"),
        lambda url: delete_study(url, "tiny"),
        lambda url: set_planned_trials(url, "tiny", 9),
        lambda url: enqueue(url, "tiny", [{}]),
        lambda url: enrol(url, "tiny", tiny(model__width="4"), replace=True),
    ],
    ids=["rename", "delete", "extend", "enqueue", "replace"],
)
def test_what_changes_a_study_is_refused_while_it_runs(running_study: str, act: Callable[[str], object]):
    before = tables(running_study)
    with pytest.raises(StudyError, match=r"being (run|written) by process"):
        act(running_study)
    assert tables(running_study) == before


def test_a_note_under_a_running_launch_is_refused_or_right(running_study: str):
    if running_study.startswith("sqlite"):
        with pytest.raises(StudyError, match="is being written by process"):
            write_note(running_study, "tiny", "a note")
        return
    write_note(running_study, "tiny", "a note")
    tag_study(running_study, "tiny", ["a"])
    with open_reader(running_study) as reader:
        assert (reader.study("tiny").row["note"], reader.study("tiny").row["tags"]) == ("a note", '["a"]')


BAD: dict[str, tuple[str, ...]] = {
    "study 'tinny' does not exist; there are tiny": ("rename", "tinny", "x"),
    "study 'none' does not exist; there are tiny": ("delete", "none", "--yes"),
    "'a b' must be a word of letters, digits": ("rename", "tiny", "a b"),
    "study 'tiny' exists already; choose another name": ("rename", "tiny", "tiny"),
    "delete asks on a terminal alone; say --yes to delete tiny with 0 trials": ("delete", "tiny"),
    "tag 'a b' must be a word": ("tag", "tiny", "a b"),
    "study 'tiny' has no tag 'x'; it has none": ("tag", "tiny", "--remove", "x"),
    "the note has 10,001 characters; it may have 10,000": ("note", "tiny", "x" * 10_001),
    "--set x: write path=value": ("enqueue", "tiny", "--set", "x"),
    "'[' is no value": ("enqueue", "tiny", "--set", "averaging.eta=["),
    "averaging.eta: 2024-13-01 is not given by": ("enqueue", "tiny", "--set", "averaging.eta=2024-13-01"),
    "averaging.eta: 2024-02-30 is not given by": ("enqueue", "tiny", "--csv", "dates.csv"),
    "'' is no value": ("enqueue", "tiny", "--set", "averaging.eta="),
    "--csv: a file says all values of its trials": ("enqueue", "tiny", "--csv", "x.csv", "--set", "a=1"),
    "x.csv cannot be read: No such file": ("enqueue", "tiny", "--csv", "x.csv"),
    "wide.csv:2: the line has more cells": ("enqueue", "tiny", "--csv", "wide.csv"),
    "empty.csv has no trials": ("enqueue", "tiny", "--csv", "empty.csv"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line_and_writes_nothing(tmp_path: Path, run: Run, words: str):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    (tmp_path / "wide.csv").write_text("averaging.eta\n0.5,1\n")
    (tmp_path / "empty.csv").write_text("averaging.eta\n")
    (tmp_path / "dates.csv").write_text("averaging.eta\n2024-02-30\n")
    before = tables(url)
    status, out, error = run(*BAD[words])
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert error.startswith("error: ")
    assert words in error
    assert tables(url) == before


def test_a_database_keeps_notes_and_changes_when_it_is_copied(tmp_path: Path, run: Run):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    write_note(url, "tiny", "kept")
    set_planned_trials(url, "tiny", 7)
    assert run("db", "copy", "graft.db", "copy.db")[0] == 0
    copied = f"sqlite:///{tmp_path}/copy.db"
    for query in (
        "SELECT note, trials FROM studies",
        "SELECT number, differences, space FROM changes",
    ):
        assert raw(copied, query) == raw(url, query)
    folders = "SELECT checkpoint_folder FROM studies"
    assert raw(copied, folders) != raw(url, folders), "neither deletes the other's files"


def test_nothing_of_the_store_is_left_locked(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    with pytest.raises(GraftError):
        set_planned_trials(url, "tiny", 10**10)
    open_store(url).close()
