"""Two objectives and constraints: how a space writes them, what a trial's rating is, and where they are seen."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graft
from graft.launching.editing.enqueueing import enqueue
from graft.launching.enrolling import enrol, open_controller, set_planned_trials
from graft.plugins.families import families
from search.analysis.study.pareto import pareto_front
from search.objectives import NO_RATING, Rating, rating_after
from spaces import load, parse
from spaces.errors import SpaceError, StudyError
from spaces.grammar.formulas import LanguageError
from spaces.grammar.quantities import compile_constraint, compile_quantity
from spaces.records import Metric, Offer, Report, Trial
from spaces.space import Space
from storage import open_reader
from tests.support.databases import raw
from tests.support.inside import called
from tests.support.launches import SPACE
from tests.support.search_spaces import CONDITIONAL
from tests.support.search_spaces import space as read

TWO = "[{minimize: tvd/bema}, {minimize: optimizer.learning_rate * model.width}]"
RATE = "optimizer.learning_rate <= 0.02"
FEASIBLE = f"[{RATE}, loss/raw <= 100]"
SMALL = {"search.trials": "6", "search.group": "2"}
Run = Callable[..., tuple[int, str, str]]


def tiny(**overrides: str) -> Space:
    return load(SPACE, families(), SMALL | {path.replace("__", "."): value for path, value in overrides.items()})


# -- how they are written ------------------------------------------------------------------------------------------


def trial_of(config: dict[str, Any], **params: float) -> Trial:
    return Trial(number=0, group=0, seed=0, draws={}, params=params, config=config, structure="")


def report_of(step: int = 1, state: Any = "running", **values: float) -> Report:
    metrics = tuple(Metric(name, "raw", "", value) for name, value in values.items())
    return Report(number=0, step=step, metrics=metrics, state=state)


NUMBERS = st.floats(-8, 8).map(lambda x: round(x, 2))


@given(
    values=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    text=st.recursive(
        st.sampled_from(["loss/raw", "tvd/raw", "model.width", "2", "0.5"]),
        lambda part: (
            st.builds("({} {} {})".format, part, st.sampled_from(["+", "-", "*", "/"]), part)
            | st.builds("{}({})".format, st.sampled_from(["abs", "exp", "relu"]), part)
        ),
        max_leaves=8,
    ),
)
def test_a_quantity_is_what_python_makes_of_it(values: tuple[float, float, float], text: str) -> None:
    loss, tvd, width = values
    if not any(word in text for word in ("loss", "tvd", "model")):
        return
    code = text.replace("loss/raw", "loss").replace("tvd/raw", "tvd").replace("model.width", "width")
    try:
        names = {"exp": math.exp, "relu": lambda x: max(x, 0.0), "loss": loss, "tvd": tvd, "width": width}
        expected = float(eval(code, names))
    except ArithmeticError:
        expected = math.nan
    try:
        quantity = compile_quantity(text)
    except LanguageError:  # a constant part of it, 1 / (2 - 2), has no value
        return
    actual = quantity.value_of(trial_of({"model": {"width": width}}), report_of(loss=loss, tvd=tvd))
    assert actual == expected or (math.isnan(expected) and actual is not None and not math.isfinite(actual))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.width/task.length", 2.0),
        ("1/model.width", 0.125),
        ("(tvd/raw)/model.width", 0.5),
        ("tvd/raw/length=6/model.width", 0.25),
        ("tvd/raw/task.length", None),
    ],
)
def test_a_value_may_follow_a_stroke_without_a_space(text: str, expected: float | None):
    """A word with a dot is no part of a metric but as its condition."""
    metrics = Metric("tvd", "raw", "", 4.0), Metric("tvd", "raw", "length=6", 2.0)
    trial = trial_of({"model": {"width": 8}, "task": {"length": 4}})
    value = compile_quantity(text).value_of(trial, Report(number=0, step=1, metrics=metrics))
    assert value == expected or (expected is None and value is not None and math.isnan(value))


def test_a_metric_may_have_a_condition_and_a_path_may_be_drawn_or_not():
    quantity = compile_constraint("accuracy/raw/length=64 - 0.5 >= task.generalisation_gap / model.width")
    assert [str(metric) for metric in quantity.metrics.values()] == ["accuracy/raw/length=64"]
    assert set(quantity.paths.values()) == {"task.generalisation_gap", "model.width"}
    report = Report(number=0, step=1, metrics=(Metric("accuracy", "raw", "length=64", 0.75),))
    trial = trial_of({"model": {"width": 8}}, **{"task.generalisation_gap": 4})
    assert quantity.value_of(trial, report) == 4 / 8 - (0.75 - 0.5)
    assert quantity.value_of(trial_of({"model": {"width": 8}}), report) is None, "it has no such path"
    assert math.isnan(quantity.value_of(trial, report_of(loss=1)) or 0.0), "the metric is missing"
    assert quantity.value_of(trial_of({"model": {"width": "wide"}}, **{"task.generalisation_gap": 4}), report) is None


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ("objective: [{minimize: tvd/raw}]", r"search\.objective: a list of 1; write one objective, or a list of two"),
        ("objective: [{minimize: tvd/raw}, {minimize: 3}]", r"search\.objective\.minimize: this must be an expression"),
        (
            "objective: [{minimize: tvd/raw}, {minimize: uniform(0, 1) * loss/raw}]",
            "uniform draws a random value, but a trial has ended here",
        ),
        ("objective: [{minimize: tvd/raw}, {minimize: loss/raw, at: last}]", "`at` is the first's"),
        ("objective: [{minimize: tvd/raw}, {least: loss/raw}]", "'least' is no field of objective"),
        (
            "objective: {minimize: tvd/raw}, feasible: loss/raw < 3",
            "loss/raw < 3: a constraint is one comparison by <=",
        ),
        ("objective: {minimize: tvd/raw}, feasible: 1 <= loss/raw <= 3", "a constraint is one comparison by <="),
        ("objective: {minimize: tvd/raw}, feasible: 2 <= 3", r"it names no metric \(tvd/raw\) and no value of a trial"),
        ("objective: {minimize: tvd/raw}, feasible: $width <= 3", "a named value is not kept with a trial"),
        ("objective: {minimize: tvd/raw}, feasible: lg(loss/raw) <= 3", "'lg' is no function, did you mean 'log'"),
        ("objective: {minimize: tvd/raw}, feasible: [{a: 3}]", r"search\.feasible: this must be an expression"),
        (
            "objective: [{minimize: tvd/raw}, {minimize: loss/raw}], sampler: cmaes",
            "cmaes learns from one objective, but there are two; choose one of .*gp.*nsga2.*random.*tpe",
        ),
        (
            "objective: [{minimize: tvd/raw}, {minimize: loss/raw}], stopping: {asha: {min_steps: 10}}",
            r"asha watches the objective, but there are two; .* \{asha: \{metric: tvd/raw, direction: minimize\}\}",
        ),
    ],
)
def test_what_is_none_is_refused_in_one_line(search: str, words: str):
    text = f"study: test\n{CONDITIONAL}training: {{steps: 100}}\nsearch: {{trials: 4, {search}}}\n"
    with pytest.raises(SpaceError, match=words) as refused:
        parse(text, "test.yaml", families(), {})
    line = str(refused.value)
    assert line.startswith("test.yaml:9: search."), line
    assert "\n" not in line


def test_a_stopping_policy_that_names_its_metric_goes_with_two_objectives():
    policy = "{asha: {min_steps: 10, metric: tvd/raw, direction: minimize}}"
    here = read(CONDITIONAL, objective="[{minimize: tvd/raw}, {maximize: loss/raw}]", stopping=policy)
    assert here.search.signs == (1.0, -1.0)


def test_what_compares_by_one_number_takes_neither():
    arms = Path(SPACE).read_text() + "arms:\n  slow: {}\n  fast: {optimizer.learning_rate: 0.5}\nseeds: 2\n"
    for more in ({"search.objective": TWO}, {"search.feasible": FEASIBLE}):
        with pytest.raises(SpaceError, match="one objective and no feasible here: arms are compared by one number"):
            parse(arms, "arms", families(), {"search.trials": "2", "search.group": "1"} | more)
        with pytest.raises(SpaceError, match="one objective and no feasible here: a cell of the matrix is one number"):
            load("quick/transfer", families(), more)


# -- a trial's rating -----------------------------------------------------------------------------------------------


def test_a_rating_is_of_the_validation_that_gives_the_objective():
    here = read(CONDITIONAL, objective="[{minimize: tvd/raw}, {minimize: loss/raw}]", feasible="[tvd/raw <= 1]").search
    trial, rating = trial_of({}), NO_RATING
    for step, tvd, loss, expected in (
        (1, 3.0, 7.0, Rating(objective=3.0, second_objective=7.0, constraints={"tvd/raw <= 1": 2.0})),
        (2, 1.0, 9.0, Rating(objective=1.0, second_objective=9.0, constraints={"tvd/raw <= 1": 0.0})),
        (3, 2.0, 0.0, Rating(objective=1.0, second_objective=9.0, constraints={"tvd/raw <= 1": 0.0})),
        (4, 0.5, math.nan, Rating(objective=0.5, second_objective=None, constraints={"tvd/raw <= 1": -0.5})),
        (5, math.nan, 1.0, Rating(objective=0.5, second_objective=None, constraints={"tvd/raw <= 1": -0.5})),
    ):
        rating = rating_after(here, rating, trial, report_of(step, tvd=tvd, loss=loss))
        assert rating == expected
    assert rating.feasible
    assert not Rating(constraints={"a": None}).feasible, "what is not finite keeps no bound"
    last = read(CONDITIONAL, objective="[{minimize: tvd/raw, at: last}, {minimize: loss/raw}]").search
    for tvd, expected in ((3.0, 3.0), (4.0, 4.0), (math.nan, None)):
        rating = rating_after(last, rating, trial, report_of(tvd=tvd, loss=1.0))
        assert (rating.objective, rating.second_objective) == (expected, None if expected is None else 1.0)


def test_a_constraint_of_an_option_is_for_the_trials_that_take_it():
    here = read(CONDITIONAL, feasible="[averaging.eta <= 0.5, tvd/raw <= 9]").search
    plain, averaged = trial_of({"averaging": {"name": "none"}}), trial_of({"averaging": {"eta": 0.75}})
    assert rating_after(here, NO_RATING, plain, report_of(tvd=1.0)).constraints == {"tvd/raw <= 9": -8.0}
    assert not rating_after(here, NO_RATING, averaged, report_of(tvd=1.0)).feasible


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(0, 5) | st.none(), st.integers(0, 5) | st.none())),
    st.booleans(),
    st.booleans(),
)
def test_the_front_is_what_no_other_trial_dominates(points: list[Any], up: bool, right: bool) -> None:
    schema = {"objective": pl.Float64, "second_objective": pl.Float64}
    trials = pl.DataFrame(points, schema=schema, orient="row").with_row_index("number")
    signs = (-1 if up else 1), (-1 if right else 1)
    turned = {n: (signs[0] * a, signs[1] * b) for n, (a, b) in enumerate(points) if a is not None and b is not None}
    expected = {
        n
        for n, point in turned.items()
        if not any(other[0] <= point[0] and other[1] <= point[1] and other != point for other in turned.values())
    }
    front = pareto_front(trials, (up, right))
    assert set(front["number"]) == expected
    assert front["objective"].to_list() == sorted(front["objective"].to_list(), reverse=up)


# -- a study ---------------------------------------------------------------------------------------------------------


def train(url: str, exchanges: int | None = None, lanes: int = 3) -> None:
    """Run the study `tiny` without training, or so many exchanges of it; a report follows from a trial's draws."""
    controller = open_controller(url, "tiny")
    reports: list[Report] = []
    while exchanges is None or exchanges:
        said = controller.exchange(reports, Offer(worker="w", lanes=lanes, host="h", device="cpu"))
        if said.done:
            break
        reports = [_report(trial) for trial in said.start]
        exchanges = exchanges and exchanges - 1
    controller.close()


def _report(trial: Trial) -> Report:
    total = sum(trial.draws.values())
    values = Metric("tvd", "bema", "", total), Metric("tvd", "raw", "", -total), Metric("loss", "raw", "", total % 1)
    step = trial.config["training"]["steps"]
    return Report(number=trial.number, fence=trial.fence, step=step, metrics=values, state="finished")


RATINGS = "SELECT number, draws, objective, second_objective, constraints, feasible FROM trials ORDER BY number"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampler", ["{tpe: {startup: 4}}", "{nsga2: {population: 4}}"])
@pytest.mark.parametrize("objective", [TWO, "{minimize: tvd/bema}"])
def test_a_study_that_is_interrupted_tries_what_it_would_have_tried(tmp_path: Path, sampler: str, objective: str):
    """One trial at a time, and everything that the controller knew is gone between two of them."""
    space = tiny(search__sampler=sampler, search__objective=objective, search__feasible=FEASIBLE, search__trials="14")
    whole, parts = (f"sqlite:///{tmp_path}/{name}.db" for name in ("whole", "parts"))
    enrol(whole, "tiny", space)
    train(whole, lanes=1)
    enrol(parts, "tiny", space)
    for exchanges in (5, 2, 4, None):
        train(parts, exchanges, lanes=1)
    assert len(raw(whole, RATINGS)) == 14
    assert raw(parts, RATINGS) == raw(whole, RATINGS)


@pytest.mark.parametrize("sampler", ["{tpe: {startup: 4}}", "{nsga2: {population: 4}}"])
@pytest.mark.parametrize("objective", [TWO, "{minimize: tvd/bema}"])
def test_a_trial_by_hand_is_drawn_as_the_sampler_would(tmp_path: Path, sampler: str, objective: str):
    """What a person leaves open is what the sampler draws for the number in a study with one trial more."""
    space = tiny(search__sampler=sampler, search__objective=objective, search__feasible=FEASIBLE, search__trials="14")
    by_hand, extended = (f"sqlite:///{tmp_path}/{name}.db" for name in ("by_hand", "extended"))
    for url in (by_hand, extended):
        enrol(url, "tiny", space)
        train(url, lanes=1)
    assert enqueue(by_hand, "tiny", [{}]) == [14]
    set_planned_trials(extended, "tiny", 15)
    train(extended, lanes=1)
    last = "SELECT draws FROM trials WHERE number = 14"
    assert json.loads(raw(by_hand, last)[0][0]) == json.loads(raw(extended, last)[0][0])


def test_a_trial_that_is_not_feasible_is_never_the_best(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny(search__feasible="tvd/bema >= 1.5", search__trials="12"))
    controller, reports = open_controller(url, "tiny"), list[Report]()
    while not (said := controller.exchange(reports, Offer(worker="w", lanes=3, host="h", device="cpu"))).done:
        reports = [_report(trial) for trial in said.start]
    ratings = {number: (objective, bool(kept)) for number, _, objective, _, _, kept in raw(url, RATINGS)}
    best = min(value for value, kept in ratings.values() if kept)
    assert {kept for _, kept in ratings.values()} == {True, False}
    assert min(value for value, _ in ratings.values()) < best == controller.progress().best
    controller.close()
    study = graft.open(tmp_path / "graft.db")["tiny"]
    assert study.best is not None
    assert (study.best.objective, study.best.feasible) == (best, True)
    assert study.trials(top=3)["objective"].to_list() == sorted(v for v, kept in ratings.values() if kept)[:3]
    reopened = open_controller(url, "tiny")
    assert reopened.progress().best == best
    reopened.close()


def test_a_study_asked_for_more_later_is_one_launched_so(tmp_path: Path):
    """Two objectives and constraints that are set after the trials give them the ratings of a launch with both."""
    later, first = (f"sqlite:///{tmp_path}/{name}.db" for name in ("later", "first"))
    once = {"training__validate_every": "90"}
    more = once | {"search__objective": TWO, "search__feasible": FEASIBLE}
    enrol(later, "tiny", tiny(**once))
    train(later)
    assert "search.feasible" in str(enrol(later, "tiny", tiny(**more)))
    enrol(first, "tiny", tiny(**more))
    train(first)
    assert raw(later, RATINGS) == raw(first, RATINGS)
    assert raw(later, "SELECT objective, second_objective FROM studies") == [
        ("tvd/bema", "minimize optimizer.learning_rate * model.width")
    ]
    enrol(later, "tiny", tiny(**once))
    ratings = raw(later, "SELECT DISTINCT second_objective, constraints, feasible FROM trials")
    assert ratings == [(None, None, None)], "they are taken back"
    with pytest.raises(StudyError, match=r"search\.feasible: trial 0 of tiny has 'los/raw' is no metric"):
        enrol(later, "tiny", tiny(**once, search__feasible="los/raw <= 1"))


def test_a_trial_that_is_resumed_keeps_its_rating(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny(search__objective=TWO, search__feasible=FEASIBLE, search__trials="1"))
    controller = open_controller(url, "tiny")
    [trial] = controller.exchange([], Offer(worker="w", lanes=1, host="h", device="cpu")).start
    controller.exchange([_report_at(trial, 20, 1.0)], Offer(worker="w", lanes=0, holds=(trial.start,)))
    state = controller._ledger._state_of(0)
    json.dumps(state)
    assert {"objective", "second_objective", "constraints"} <= state.keys()
    assert state["constraints"].keys() == {RATE, "loss/raw <= 100"}
    controller.close()


def _report_at(trial: Trial, step: int, value: float) -> Report:
    metrics = Metric("tvd", "bema", "", value), Metric("loss", "raw", "", value)
    return Report(number=trial.number, fence=trial.fence, step=step, metrics=metrics)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study of real trials with both, in a database."""
    folder = tmp_path_factory.mktemp("two")
    space = graft.Space(SPACE).set("search", {"sampler": {"nsga2": {"population": 4}}, "trials": 12, "group": 4,
        "objective": [{"minimize": "tvd/bema"}, {"minimize": "optimizer.learning_rate * model.width"}],
        "feasible": [RATE, "loss/raw <= 100"]})  # fmt: skip
    graft.launch(space, database=folder / "graft.db", run=graft.Run(workers=1, device="cpu", progress=False))
    return folder


@pytest.fixture
def run(launched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(launched)
    monkeypatch.delenv("SEARCH_STORAGE", raising=False)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


@pytest.mark.long
def test_what_is_stored_follows_from_the_metrics(launched: Path):
    with open_reader(f"sqlite:///{launched}/graft.db") as reader:
        trials = reader.study("tiny").trials()
        metrics = reader.study("tiny").metrics()
    assert set(trials["state"]) == {"finished"}
    for row in trials.iter_rows(named=True):
        rows = metrics.filter(pl.col("number") == row["number"])
        tvd = rows.filter(pl.col("name") == "tvd", pl.col("variant") == "bema").sort("value", "step")
        loss = rows.filter(pl.col("name") == "loss", pl.col("step") == tvd["step"][0])["value"][0]
        config = json.loads(row["config"])
        rate = config["optimizer"]["learning_rate"]
        assert row["objective"] == tvd["value"][0]
        assert row["second_objective"] == pytest.approx(rate * config["model"]["width"], rel=1e-15)
        expected = {RATE: rate - 0.02, "loss/raw <= 100": loss - 100}
        assert json.loads(row["constraints"]) == pytest.approx(expected, rel=1e-15)
        assert row["feasible"] == (rate <= 0.02)
    assert 0 < trials["feasible"].sum() < 12


def test_the_api_has_a_front_and_no_best(launched: Path):
    study = graft.open(launched / "graft.db")["tiny"]
    assert study.best is None
    trials = study.trials().filter("feasible")
    front = study.front()
    assert set(front["number"]) == set(pareto_front(trials, (False, False))["number"])
    assert front.columns == study.trials().columns
    broken = study.show(study.trials().filter(~pl.col("feasible"))["number"][0])
    assert not broken.feasible
    assert broken.constraints is not None
    assert (broken.constraints[RATE] or 0.0) > 0
    assert "not feasible" in broken._repr_html_()
    assert "Pareto front" in study.figure("pareto_front").pictures[0].caption


def test_commands_show_them(run: Run, launched: Path):
    status, out, _ = run("trials", "tiny")
    assert (status, out.split("\n")[0].split()[:7]) == (
        0, ["number", "group", "state", "steps", "objective", "second_objective", "feasible"],
    )  # fmt: skip
    status, out, _ = run("trials", "tiny", "--front", "--format", "csv")
    study = graft.open(launched / "graft.db")["tiny"]
    assert [int(line.split(",")[0]) for line in out.splitlines()[1:]] == study.front()["number"].to_list()
    broken = study.trials().filter(~pl.col("feasible"))["number"][0]
    _, out, _ = run("show", "tiny", broken)
    assert "\nnot feasible\n" in out
    assert f"\n{RATE}: broken by " in out
    _, out, _ = run("show", "tiny", broken, "--format", "json")
    assert json.loads(out)["constraints"].keys() == {RATE, "loss/raw <= 100"}
    _, out, _ = run("studies", "--format", "json")
    assert json.loads(out)[0]["best"] is None
    status, _, error = run("trials", "tiny", "--front", "--top", "3")
    assert (status, error.count("\n")) == (2, 1)


@pytest.mark.long
def test_the_report_draws_the_front_and_counts_what_is_broken(run: Run, launched: Path):
    status, _, error = run("report", "study", "tiny", "-o", "report.md", "--force")
    assert status == 0, error
    text = Path("report.md").read_text()
    feasible = graft.open(launched / "graft.db")["tiny"].trials()["feasible"].sum()
    assert f"{feasible} of 12 trials with a result are feasible" in text
    assert "## Pareto front" in text
    assert "## Best trials" not in text
    assert f"| optimizer.learning\\_rate \\<= 0.02 | 12 | {12 - feasible} |" in text
    assert "report_figure1.svg" in text


def test_a_study_of_one_objective_has_no_front(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/graft.db"
    enrol(url, "tiny", tiny())
    train(url)
    with pytest.raises(StudyError, match="study 'tiny' has one objective, so that one trial is its best"):
        graft.open(tmp_path / "graft.db")["tiny"].front()
    assert graft.open(tmp_path / "graft.db")["tiny"].best
