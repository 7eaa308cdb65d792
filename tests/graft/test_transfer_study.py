"""A transfer in one study: what is found on each task, carried to all of them, stored, resumed and replayed."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from graft.launching.enrolling import enrol, open_controller
from graft.launching.planning.learning import sources_of_database
from graft.launching.planning.task_advice import read_task_advice
from graft.plugins.families import families
from graft.retraining.replay import read_replays
from graft.stored.studies import describe_objective, name_objective
from search.steering.controller import Controller
from search.steering.strategies import begin
from spaces import SpaceError, load, parse
from spaces.errors import PluginError, StudyError
from spaces.reading import catalogue
from spaces.reading.transfer_section import has_one_objective, objectives_of_text
from spaces.records import LearnedSpline, Metric, Offer, Outcome, Report, StoredTrial, Trial, TrialResult
from spaces.transfer import BASELINE, StageOne, StageTwo, TransferSpace
from storage import open_reader, open_store
from tests.support.controller import Rows
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import running
from tests.support.launches import search as search_in_a_process
from workers.engine.pack import Pack
from workers.networks.frozen_splines import active_range, with_frozen_splines

SPACE = """
study: tiny-transfer
transfer:
  tasks:
    five: {space: quick/add_mod, set: {task.modulus: 5, training.steps: 6, optimizer.learning_rate: 0.01}}
    seven:
      space: quick/add_mod
      set: {task.modulus: 7, training.steps: 4}
      learn: {training.steps: 9}
    eleven: {space: quick/add_mod, set: {task.modulus: 11, training.steps: 4}, role: target}
  architecture:
    model.activation: {spline: {knots: 9, low: -1, high: 1, start: zero}}
    averaging: {choice: [none, {ema: {rho: "uniform(1, 9)"}}]}
  learn:
    learning: {architecture: {models: 2, optimizer: {adam: {learning_rate: "log_uniform(0.01, 0.1)"}}}}
    training.batch: 8
  forms: [spline, symmetrised]
  pairs: 2
search: {trials: 3, objective: {maximize: accuracy/raw, at: last}, history: full}
"""
SOURCES, TARGETS, FORMS, PAIRS, TRIED = ("five", "seven"), ("five", "seven", "eleven"), ("spline", "symmetrised"), 2, 3
FIRST = len(SOURCES) * TRIED
ALL = FIRST + (1 + len(SOURCES) * len(FORMS)) * len(TARGETS) * PAIRS
LEARNED = LearnedSpline(component="mlp", low=-1.0, high=1.0, knots=(0.0, 0.1, -0.25, 1 / 3, 2.0, 0.7, 0.0, 0.0, 0.0))


def transfer(text: str = SPACE) -> TransferSpace:
    space = parse(text, "transfer.yaml", families())
    assert isinstance(space, TransferSpace)
    return space


def test_every_search_and_every_source_form_target_and_pair_has_one_number() -> None:
    space = transfer()
    stages = [space.stage_of(number) for number in range(space.search.trials)]
    assert space.search.trials == ALL
    searches = [stage for stage in stages if isinstance(stage, StageOne)]
    assert Counter(searches) == Counter(StageOne(domain, number) for domain in range(2) for number in range(TRIED))
    rows: dict[tuple[int | None, str], set[tuple[int, int]]] = defaultdict(set)
    for stage in stages:
        if isinstance(stage, StageTwo):
            rows[stage.source, stage.form].add((stage.target, stage.pair))
    every = {(target, pair) for target in range(3) for pair in range(PAIRS)}
    assert rows == {
        (None, "spline"): every,
        **{(source, form): every for source in range(2) for form in FORMS},
    }
    assert len(stages) - len(searches) == sum(map(len, rows.values()))


def test_trials_in_all_are_those_of_both_stages() -> None:
    assert transfer().trials_setting(ALL) == TRIED
    assert transfer().trials_setting(ALL + len(SOURCES)) == TRIED + 1
    with pytest.raises(StudyError, match=rf"each of 2 source tasks .*; choose {ALL} or {ALL + 2}$"):
        transfer().trials_setting(ALL + 1)


def carried(space: TransferSpace, number: int) -> Trial:
    """Return a trial of stage two as if stage one had found the first trial of its source."""
    stage = space.stage_of(number)
    assert isinstance(stage, StageTwo)
    if stage.source is None:
        return space.carry(number, None, ())
    first = space.sample(stage.source * TRIED, lambda _: 0.9)
    return space.carry(number, first, (LEARNED,))


def test_sources_on_a_target_differ_in_their_architecture_alone_and_share_seeds_pair_by_pair() -> None:
    space = transfer()
    trials = [carried(space, number) for number in range(FIRST, ALL)]
    by_pair: dict[tuple[int, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        by_pair[trial.config["task"]["modulus"], int(trial.params["pair"])].append(trial)
    assert {len(group) for group in by_pair.values()} == {1 + len(SOURCES) * len(FORMS)}
    assert len({group[0].seed for group in by_pair.values()}) == len(by_pair)
    for group in by_pair.values():
        assert len({trial.seed for trial in group}) == 1
        names = [trial.params["architecture.source"] for trial in group]
        assert names == [BASELINE, "five", "five symmetrised", "seven", "seven symmetrised"]
        baseline = group[0].config
        assert baseline["model"]["activation"]["name"] == "gelu"
        assert baseline["averaging"] == {"name": "none"}
        for trial in group[1:]:
            spline = trial.config["model"]["activation"]
            assert (spline["frozen"], spline["start"]) == (True, "given")
            assert trial.config["averaging"]["name"] == "ema"
            assert trial.config["learning"] == {"name": "weights"}
            rest = {**trial.config, "averaging": baseline["averaging"]}
            rest["model"] = {**trial.config["model"], "activation": baseline["model"]["activation"]}
            assert rest == baseline


def test_knots_arrive_in_their_float32_bits() -> None:
    knots = torch.randn(9, generator=torch.Generator().manual_seed(3), dtype=torch.float32)
    spline = LearnedSpline(component="mlp", low=-1.0, high=1.0, knots=tuple(knots.tolist()))
    model = with_frozen_splines({"activation": {"name": "spline", "knots": 9}}, [spline], "spline")
    values = model["activation"]["values"]
    assert torch.equal(torch.tensor([float(text) for text in values.split()]), knots)


def test_a_polynomial_is_fitted_where_the_spline_moves() -> None:
    assert active_range(LEARNED.knots, -1.0, 1.0) == (-1.0, 0.5)
    assert active_range((2.0,) * 9, -1.0, 1.0) == (-1.0, 1.0)
    model = {"scorer": {"name": "spline_kernel", "phi": {"name": "spline", "knots": 9}}}
    formed = with_frozen_splines(model, [LEARNED._replace(component="attention")], "polynomial")["scorer"]["phi"]
    assert (formed["name"], formed["low"], formed["high"], formed["of"]["frozen"]) == ("polynomial", -1.0, 0.5, True)
    assert model["scorer"]["phi"] == {"name": "spline", "knots": 9}


def test_the_text_of_a_transfer_needs_no_other_file() -> None:
    space = transfer()
    again = transfer(space.text)
    assert "quick/add_mod" not in space.text
    assert again.hash == space.hash
    for number in range(FIRST, ALL):
        assert carried(again, number) == carried(space, number)
    for number in range(FIRST):
        assert again.sample(number, lambda _: 0.3) == space.sample(number, lambda _: 0.3)


def test_a_stored_trial_of_stage_two_is_restored_from_its_row_alone() -> None:
    space = transfer()
    for number in range(FIRST, ALL):
        trial = carried(space, number)
        row = json.loads(json.dumps([dict(trial.draws), dict(trial.params), dict(trial.config)]))
        assert space.restore([StoredTrial(number, row[0], 0, row[1], row[2])]) == trial


def test_params_of_stage_two_are_those_of_the_architecture_and_not_of_the_draws_that_it_replaces() -> None:
    text = SPACE.replace('averaging: {choice: [none, {ema: {rho: "uniform(1, 9)"}}]}', "averaging: none")
    text = text.replace("  learn:\n", "    optimizer.learning_rate: log_uniform(0.2, 0.3)\n  learn:\n", 1)
    drawn = 'optimizer.learning_rate: log_uniform(0.001, 0.01), averaging: {ema: {rho: "uniform(1, 9)"}}, '
    text = text.replace("set: {task.modulus: 7, ", f"set: {{{drawn}task.modulus: 7, ")
    space = transfer(text.replace("[spline, symmetrised]", "[spline, polynomial]"))
    paths = {"averaging.rho", "model.activation.approximation_error", "optimizer.learning_rate"}
    known: dict[tuple[str, str], set[str]] = {}
    for number in range(FIRST, ALL):
        trial = carried(space, number)
        source, target = (str(trial.params[path]) for path in ("architecture.source", "transfer.target"))
        known[source, target] = paths & trial.params.keys()
        if "optimizer.learning_rate" in trial.params:
            assert trial.params["optimizer.learning_rate"] == trial.config["optimizer"]["learning_rate"]
        row = json.loads(json.dumps([dict(trial.draws), dict(trial.params), dict(trial.config)]))
        assert space.restore([StoredTrial(number, row[0], 0, row[1], row[2])]) == trial
    assert known[BASELINE, "five"] == set()
    assert known[BASELINE, "seven"] == {"averaging.rho", "optimizer.learning_rate"}
    for source in SOURCES:
        for target in TARGETS:
            assert known[source, target] == {"optimizer.learning_rate"}
            assert known[f"{source} polynomial", target] == paths - {"averaging.rho"}


class FakeLearner:
    """Ends what it gets: objective by number, and one architecture for each trial of stage one that finishes."""

    def __init__(self, controller: Controller, space: TransferSpace, diverged: Sequence[int] = ()) -> None:
        self.controller, self.space, self.diverged = controller, space, diverged
        self.started: list[Trial] = []

    def run(self) -> None:
        reports: list[Report] = []
        for _ in range(1000):
            directives = self.controller.exchange(reports, Offer(worker="w", lanes=2))
            if directives.done:
                return
            self.started += directives.start
            reports = [self.report(trial) for trial in directives.start]
        raise AssertionError("the study does not end")

    def report(self, trial: Trial) -> Report:
        if trial.number in self.diverged:
            return Report(number=trial.number, fence=trial.fence, step=1, metrics=(), state="diverged", error="a test")
        is_search = isinstance(self.space.stage_of(trial.number), StageOne)
        knots = tuple(float(trial.number + index) for index in range(9))
        objective = self.space.search_of(trial.number).objective
        return Report(
            number=trial.number,
            fence=trial.fence,
            step=trial.config["training"]["steps"],
            metrics=(Metric(objective.metric, "raw", "", (trial.number % TRIED) / 10),),
            state="finished",
            splines=(LEARNED._replace(knots=knots),) if is_search else (),
        )


def test_a_source_waits_for_its_search_and_takes_the_best_trial_of_it() -> None:
    space = transfer()
    learner = FakeLearner(Controller.begin(space, Rows()), space)
    learner.run()
    numbers = [trial.number for trial in learner.started]
    assert sorted(numbers) == list(range(ALL))
    for index, trial in enumerate(learner.started):
        if trial.architecture_trial is not None:
            domain = trial.architecture_trial // TRIED
            assert set(numbers[:index]) >= set(range(domain * TRIED, domain * TRIED + TRIED))
            assert trial.architecture_trial % TRIED == TRIED - 1, "the last of each search has the best objective"
            spline = trial.config["model"]["activation"]
            assert spline["values"].split()[0] == str(trial.architecture_trial)


def test_a_search_that_finds_nothing_leaves_its_cells_empty_and_the_study_ends() -> None:
    space = transfer()
    learner = FakeLearner(Controller.begin(space, Rows()), space, diverged=range(TRIED))
    learner.run()
    sources = Counter(trial.params.get("architecture.source") for trial in learner.started)
    assert sources == {None: FIRST, BASELINE: 6, "seven": 6, "seven symmetrised": 6}


def test_a_new_controller_goes_on_with_what_was_found() -> None:
    space = transfer()
    learner = FakeLearner(Controller.begin(space, rows := Rows()), space)
    learner.run()
    ended = [
        Outcome(
            number=trial.number,
            group=trial.group,
            draws=trial.draws,
            objective=rows.rows[trial.number].objective,
            state="finished",
            splines=rows.rows[trial.number].reports[-1].splines,
        )
        for trial in learner.started
        if trial.number < FIRST + 3
    ]
    kept = Rows()
    kept.rows = {outcome.number: rows.rows[outcome.number] for outcome in ended}
    again = FakeLearner(Controller(space, begin(space, ended), [], kept), space)
    again.run()
    later = {trial.number: trial for trial in learner.started if trial.number >= FIRST + 3}
    assert {trial.number: trial for trial in again.started} == later


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a whole transfer, stopped on its way once and resumed."""
    folder = tmp_path_factory.mktemp("transfer")
    (folder / "transfer.yaml").write_text(SPACE)
    with running(folder, "launch", "transfer.yaml", "--workers", "1") as process:
        assert process.stderr
        for line in process.stderr:
            if re.search(r" [1-9]\d*/", line):
                break
    search_in_a_process(folder, "resume", "tiny-transfer", "--workers", "2")
    return folder


@pytest.mark.long
@pytest.mark.long
def test_a_killed_transfer_ends_complete_with_what_was_learned_in_its_table(launched: Path) -> None:
    url = f"sqlite:///{launched}/graft.db"
    assert raw(url, "SELECT state, count(*) FROM trials GROUP BY state") == [("finished", ALL)]
    rows = raw(
        url,
        "SELECT number, component, low, high, knots FROM architectures JOIN trials ON trials.id = trial_id "
        "ORDER BY number",
    )
    assert [row[:4] for row in rows] == [(number, "mlp", -1.0, 1.0) for number in range(FIRST)]
    learned = {row[0]: json.loads(row[4]) for row in rows}
    assert all(np.any(knots) for knots in learned.values())
    carried = raw(
        url,
        "SELECT trials.number, sources.number, json_extract(trials.config, '$.model.activation.values') FROM trials "
        "JOIN architectures ON architectures.id = trials.architecture_id "
        "JOIN trials AS sources ON sources.id = architectures.trial_id",
    )
    assert len(carried) == len(SOURCES) * len(FORMS) * len(TARGETS) * PAIRS
    for _, source, values in carried:
        assert np.array_equal(np.float32(values.split()), np.float32(learned[source]))


@pytest.mark.long
@pytest.mark.long
def test_stage_one_and_stage_two_replay_to_the_bit(
    launched: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(launched)
    numbers = (0, FIRST - 1, FIRST, FIRST + 7, ALL - 1)
    status, out, _ = called(monkeypatch, capfd, "replay", "tiny-transfer", *numbers)
    assert (status, out.splitlines()[-1]) == (0, "5 of 5 trials reproduced")


@pytest.mark.long
def test_the_report_has_every_cell(
    launched: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(launched)
    status, _, error = called(monkeypatch, capfd, "report", "transfer", "tiny-transfer", "-o", "cells.csv")
    assert status == 0, error
    lines = (launched / "cells.csv").read_text().splitlines()
    header = lines[0].split(",")
    cells = [dict(zip(header, line.split(","), strict=True)) for line in lines[1:]]
    assert {(cell["source"], cell["target"]) for cell in cells} == {
        (f"{source}{form}", target) for source in SOURCES for form in ("", " symmetrised") for target in TARGETS
    }
    assert {cell["pairs"] for cell in cells} == {str(PAIRS)}


@pytest.mark.long
@pytest.mark.long
def test_a_transfer_on_postgresql_learns_the_same_and_is_copied_with_what_it_learned(
    launched: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "transfer.yaml").write_text(SPACE)
    learned = (
        "SELECT number, component, low, high, CAST(knots AS TEXT), architectures.task FROM architectures "
        "JOIN trials ON trials.id = trial_id ORDER BY number"
    )
    carried = "SELECT count(*) FROM trials WHERE architecture_id IS NOT NULL"
    with request.getfixturevalue("postgres").database() as url:
        assert called(monkeypatch, capfd, "launch", "transfer.yaml", "--workers", "1", "--storage", url)[0] == 0
        rows = raw(url, learned)
        assert raw(url, "SELECT state, count(*) FROM trials GROUP BY state") == [("finished", ALL)]
        copy = f"sqlite:///{tmp_path}/copy.db"
        assert called(monkeypatch, capfd, "db", "copy", url, copy)[0] == 0
    plain = f"sqlite:///{launched}/graft.db"
    values = [[*row[:4], json.loads(row[4]), row[5]] for row in rows]
    for other in (copy, plain):
        assert [[*row[:4], json.loads(row[4]), row[5]] for row in raw(other, learned)] == values
        assert raw(other, carried) == [(len(SOURCES) * len(FORMS) * len(TARGETS) * PAIRS,)]


def test_a_frozen_spline_has_the_same_bits_before_and_after_stage_two() -> None:
    space = transfer()
    trial = carried(space, FIRST + len(TARGETS) * PAIRS)
    pack = Pack(trial, width=2)
    pack.fill([trial])
    before = pack.parameters(trial.number)["activation.knots"].clone()
    while pack.running:
        pack.train(100)
    after = pack.parameters_by_variant(0, trial)
    assert torch.equal(before, torch.tensor(LEARNED.knots))
    assert all(torch.equal(named["activation.knots"], before) for named in after.values())
    assert set(after) == {"raw", "ema"}


def test_a_loss_of_the_last_report_loses_no_architecture(tmp_path: Path) -> None:
    """Recorded with the report that ends the trial; written twice it is there once."""
    from storage import NewStudy, open_store

    space = transfer()
    with open_store(f"sqlite:///{tmp_path}/a.db") as store:
        study_id = store.create_study(
            NewStudy(
                "s",
                space="",
                space_hash="",
                objective=space.search.objective,
                seed=0,
                trials=1,
                version="1",
                numerics=1,
            )
        )
        study = store.take_control(study_id, policy="full", objective=space.search.objective)
        trial = space.sample(0, lambda _: 0.5)
        study.start([trial], "w")
        report = Report(number=0, fence=1, step=9, metrics=(), state="finished", splines=(LEARNED,))
        study.record([report])
        study.record([report], [TrialResult(number=0, fence=1, state="finished", objective=0.5)])
        [outcome] = study.queries.outcomes(None)
    assert outcome.splines == (LEARNED,)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("role: target", "role: goal", r"transfer.tasks.eleven.role: 'goal' must be one of both, source, target"),
        ("pairs: 2", "pairs: none", r"transfer.pairs: 'none' must be an integer in \[1, 10,000\]"),
        ("[spline, symmetrised]", "[sine]", r"'sine' must be one of spline, symmetrised, polynomial, chebyshev"),
        ("[spline, symmetrised]", "[spline, spline]", r"name each form once"),
        ("model.activation:", "model.actuation:", r"'actuation' is no field of transformer"),
        (
            "    model.activation:",
            "    task.modulus: 7\n    model.activation:",
            r"a path here starts with model",
        ),
        (
            "task.modulus: 7, training",
            "search.group: 2, training",
            r"search.group: a path here starts",
        ),
        ("learn: {training.steps: 9}", "learn: {training: {steps: 9}}", r"write its fields one by one"),
        ("learn: {training.steps: 9}", "learn: 3", r"transfer.tasks.seven.learn: this must be a section"),
        ("    five:", "    fi-ve:", r"'fi-ve' must be a word of letters"),
        ("space: quick/add_mod, set: {task.modulus: 11", "space: , set: {task.modulus: 11", r"it needs a space"),
        ("space: quick/add_mod, set: {task.modulus: 11", "space: quick/transfer, set: {model.x: 1", r"of another"),
        ("quick/add_mod, set: {task.modulus: 5", "quick/add_mud, set: {task.modulus: 5", r"no such file"),
        ("task.modulus: 11", "task.modulus: 2", r"task.modulus: 2 must be an integer >= 5"),
        ("search: {trials: 3", "search: {trials: 3, group: 2", r"no stopping and no group here"),
        ("  pairs: 2", "  pears: 2", r"'pears' is no field of transfer, did you mean 'pairs'"),
        ("study: tiny-transfer", "study: tiny-transfer\ntask: add_mod", r"'task' is no field of a space with a"),
    ],
)
def test_a_wrong_transfer_is_told_in_a_line(old: str, new: str, said: str) -> None:
    assert old in SPACE
    with pytest.raises(SpaceError, match=said) as caught:
        transfer(SPACE.replace(old, new))
    assert "\n" not in str(caught.value)


def test_the_file_of_a_tasks_space_is_found_beside_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "spaces"
    folder.mkdir()
    (folder / "own.yaml").write_text(catalogue.read_text("quick/add_mod"))
    named = SPACE.replace("space: quick/add_mod", "space: ./own.yaml", 1)
    assert named != SPACE
    (folder / "transfer.yaml").write_text(named)
    monkeypatch.chdir(tmp_path)
    space, packaged = load("spaces/transfer.yaml", families()), transfer()
    assert isinstance(space, TransferSpace)
    assert [domain.baseline.rows for domain in space.domains] == [domain.baseline.rows for domain in packaged.domains]
    (folder / "own.yaml").unlink()
    with pytest.raises(SpaceError, match=r"^\./own\.yaml: no such file"):
        load("spaces/transfer.yaml", families())


def test_paths_with_dots_are_set_from_the_command_line() -> None:
    changes = {
        "transfer.tasks.five.set.training.steps": "5",
        "transfer.tasks.seven.learn.optimizer.beta1": "0.5",
        "transfer.learn.learning.architecture.held_out_one_in": "0",
        "transfer.architecture.averaging": "none",
    }
    space = parse(SPACE, "transfer.yaml", families(), changes)
    first, last = (space.sample(number, lambda _: 0.5).config for number in (0, TRIED))
    assert (first["training"]["steps"], first["training"]["validate_every"]) == (5, 100)
    assert (last["optimizer"]["beta1"], first["optimizer"]["beta1"]) == (0.5, 0.9)
    assert first["learning"]["held_out_one_in"] == 0
    assert first["learning"]["models"] == 2
    assert first["averaging"]["name"] == "none"


MIXED = SPACE.replace(
    "set: {task.modulus: 7, training.steps: 4}",
    "set: {task.modulus: 7, training.steps: 4}\n      objective: {minimize: loss/raw, at: last}",
)


@pytest.mark.long
def test_tasks_with_objectives_of_their_own_are_judged_and_reported_by_these(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mixed.yaml").write_text(MIXED)
    status, _, error = called(monkeypatch, capfd, "launch", "mixed.yaml", "--workers", "1", "--pack", "4")
    assert status == 0, error
    assert "best" not in error.splitlines()[-1]
    assert "best" not in called(monkeypatch, capfd, "status", "tiny-transfer")[1]
    called(monkeypatch, capfd, "report", "transfer", "tiny-transfer", "-o", "cells.json", "--force")
    assert called(monkeypatch, capfd, "report", "transfer", "tiny-transfer", "-o", "cells.csv")[0] == 0
    lines = [line.split(",") for line in (tmp_path / "cells.csv").read_text().splitlines()]
    directions = {line[lines[0].index("target")]: line[lines[0].index("direction")] for line in lines[1:]}
    assert directions == {"five": "maximize", "seven": "minimize", "eleven": "maximize"}
    assert called(monkeypatch, capfd, "report", "transfer", "tiny-transfer", "-o", "cells.md")[0] == 0
    for order in (("--top", "3"), ("--sort", "objective"), ("--sort", "Objective ", "--top", "1")):
        status, _, error = called(monkeypatch, capfd, "trials", "tiny-transfer", *order)
        assert (status, error.count("\n")) == (2, 1)
        assert "'tiny-transfer': some of its tasks are minimized and others maximized" in error
    one_task = ("--where", "transfer.task = 'seven'", "--sort", "objective ASC", "--top", "3", "--format", "json")
    listed = json.loads(called(monkeypatch, capfd, "trials", "tiny-transfer", *one_task)[1])
    losses = [trial["objective"] for trial in listed]
    assert (losses, len(losses)) == (sorted(losses), 3)
    assert called(monkeypatch, capfd, "trials", "tiny-transfer", "--sort", "steps DESC", "--top", "3")[0] == 0
    page = (tmp_path / "cells.md").read_text()
    assert "percent of the baseline's value of the target's objective" in page
    assert "| Trial | the target's objective |" in page
    url = f"sqlite:///{tmp_path}/graft.db"
    losses = raw(
        url,
        "SELECT objective, value FROM trials JOIN metrics ON trial_id = trials.id WHERE group_number = 1 "
        "AND name = 'loss' AND variant = 'raw' AND condition = '' AND step = 9",
    )
    assert len(losses) == TRIED
    assert all(objective == value for objective, value in losses)
    sources = raw(
        url,
        "SELECT DISTINCT sources.number FROM trials JOIN architectures ON architectures.id = trials.architecture_id "
        "JOIN trials AS sources ON sources.id = architectures.trial_id WHERE sources.group_number = 1",
    )
    best = raw(url, "SELECT number FROM trials WHERE group_number = 1 ORDER BY objective LIMIT 1")
    assert sources == best
    status, out, _ = called(monkeypatch, capfd, "replay", "tiny-transfer", TRIED, ALL - 3)
    assert (status, out.splitlines()[-1]) == (0, "2 of 2 trials reproduced")
    assert {task for (task,) in raw(url, "SELECT task FROM architectures")} == {"five", "seven"}


def test_trials_of_a_task_with_an_objective_of_its_own_are_replayed_learnt_from_and_advised_by_it(url: str) -> None:
    space = transfer(MIXED.replace("search: {trials: 3", "search: {trials: 8"))
    enrol(url, "mixed", space)
    controller = open_controller(url, "mixed")
    try:
        FakeLearner(controller, space).run()
    finally:
        controller.close()
    numbers = (0, 8, space.search.trials - 1)
    with open_reader(url) as reader:
        replays = read_replays(reader, "mixed", numbers)
        settings = read_task_advice(reader, "add_mod").found.settings
    assert [replay.objective.metric for replay in replays] == ["accuracy", "loss", "accuracy"]
    costs = {source.task: list(source.costs) for source in sources_of_database(url)}
    values = [(number % TRIED) / 10 for number in range(16)]
    assert costs == {"mixed five": [-value for value in values[:8]], "mixed seven": values[8:]}
    known = {
        (json.loads(setting.task)["modulus"], setting.steps): (setting.direction, setting.objective, advice.trials)
        for advice in settings
        for setting in [advice.setting]
    }
    # Beside the searches there are two baselines of each target; nothing has a found architecture.
    assert known == {
        (5, 6): ("maximize", "accuracy/raw", 8 + PAIRS),
        (7, 9): ("minimize", "loss/raw", 8),
        (7, 4): ("minimize", "loss/raw", PAIRS),
        (11, 4): ("maximize", "accuracy/raw", PAIRS),
    }


def test_a_trial_is_not_retried_once_its_architecture_is_in_stage_two(url: str) -> None:
    """Another result would choose another architecture, and a source would be of two."""
    space = transfer()
    enrol(url, "tiny-transfer", space)
    controller = open_controller(url, "tiny-transfer")
    try:
        FakeLearner(controller, space, diverged=[0, TRIED, ALL - 1]).run()
    finally:
        controller.close()
    [(study,)] = raw(url, "SELECT id FROM studies")
    with open_store(url) as store:
        with pytest.raises(StudyError) as refusal:
            store.retry(study, (0,))
        assert str(refusal.value) == (
            f"trial 0 had a part in choosing what stage two trains of five, which has begun; choose of {ALL - 1}"
        )
        assert store.retry(study) == [ALL - 1]
        others = f"number >= {FIRST + (1 + len(FORMS)) * len(TARGETS) * PAIRS}"
        raw(url, f"DELETE FROM metrics WHERE trial_id IN (SELECT id FROM trials WHERE {others})")
        raw(url, f"DELETE FROM trials WHERE {others}")
        assert store.retry(study, (TRIED,)) == [TRIED], "nothing that seven found is in stage two"


def test_a_first_report_of_any_task_is_held_against_its_own_objective() -> None:
    space = transfer(MIXED)
    controller = Controller.begin(space, Rows())
    started = {trial.number: trial for trial in controller.exchange([], Offer(worker="w", lanes=9)).start}
    for number in (TRIED, 0):
        name = space.search_of(number).objective.metric
        report = Report(number=number, fence=1, step=3, metrics=(Metric(name, "raw", "", 0.5),))
        if number in started:
            holds = tuple(trial.start for trial in started.values())
            controller.exchange([report], Offer(worker="w", lanes=0, structure="other", holds=holds))
    wrong = Report(number=1, fence=1, step=3, metrics=(Metric("loss", "raw", "", 0.5),))
    other = Controller.begin(space, Rows())
    other.exchange([], Offer(worker="w", lanes=9))
    with pytest.raises(StudyError, match="accuracy/raw"):
        other.exchange([wrong], Offer(worker="w", lanes=0, structure="other"))


def test_a_text_tells_the_objective_of_each_task_as_its_space_does() -> None:
    for space in (transfer(), transfer(MIXED)):
        by_text = objectives_of_text(space.text)
        assert by_text == {domain.name: domain.baseline.search.objective for domain in space.domains}
        assert has_one_objective(space.text) == space.tells_best
        row = {"space": space.text, "direction": "minimize", "objective": "none/raw"}
        for number in range(ALL):
            trial = space.sample(number, lambda _: 0.5)
            assert name_objective(row, trial.params) == str(space.search_of(number).objective)
    row = {"space": "study: demo", "direction": "minimize", "objective": "loss/raw"}
    assert name_objective(row, {"transfer.target": "seven"}) == "loss/raw"
    row["space"] = "search: {objective: [{minimize: loss/raw}, {minimize: steps_taken}]}"
    assert describe_objective(row) == "minimize loss/raw"


def test_a_sampler_with_fewer_points_than_trials_ends_its_search() -> None:
    grid = SPACE.replace("search: {trials: 3,", "search: {sampler: {grid: {points: 1}}, trials: 3,")
    grid = grid.replace("log_uniform(0.01, 0.1)", "uniform(0.01, 0.1)")
    space = transfer(grid)
    learner = FakeLearner(Controller.begin(space, Rows()), space)
    learner.run()
    searches = [trial for trial in learner.started if isinstance(space.stage_of(trial.number), StageOne)]
    assert len(searches) == len(SOURCES) * 2, "two options of the choice, one point of each other draw"
    assert len(learner.started) - len(searches) == ALL - FIRST


def test_a_spline_that_learned_and_was_not_kept_is_not_carried() -> None:
    space = transfer()
    trial = space.sample(0, lambda _: 0.5)
    with pytest.raises(PluginError, match="of which nothing was kept"):
        space.carry(FIRST + len(TARGETS) * PAIRS, trial, ())


def test_a_transfer_of_one_task_or_without_a_target_is_refused() -> None:
    with pytest.raises(SpaceError, match="at least two tasks"):
        transfer(re.sub(r"    seven:.*?role: target}\n", "", SPACE, flags=re.DOTALL))
    only = SPACE.replace("role: target}", "role: source}")
    only = only.replace("learning_rate: 0.01}}", "learning_rate: 0.01}, role: source}")
    with pytest.raises(SpaceError, match="one a target"):
        transfer(only.replace("learn: {training.steps: 9}", "role: source"))
