"""Stored studies as Optuna sees them: what it reads is what the frames have, and it writes nothing."""

from __future__ import annotations

import http.client
import inspect
import itertools
import json
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import graft
from graft.exports.interchange import optuna_studies
from graft.exports.interchange.optuna_studies import open_storage
from graft.exports.interchange.wsgi_server import open_server
from search.optuna_view.ranges import Ranges
from search.optuna_view.storage import ReadOnlyStorage
from spaces.errors import GraftError, StorageError
from spaces.records import Metric, Report, TrialResult
from storage import open_reader
from tests.support import optuna_studies as fixture
from tests.support.inside import called
from tests.support.optuna_studies import STARTED, Written, written
from tests.support.search_spaces import space as read_space


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    with written(f"sqlite:///{tmp_path_factory.mktemp('optuna')}/graft.db") as stored:
        yield stored


@pytest.fixture(scope="module")
def storage(database: Written) -> ReadOnlyStorage:
    return open_storage(database.url)


@pytest.fixture(params=["one", "two"])
def study(request: pytest.FixtureRequest, storage: ReadOnlyStorage) -> optuna.Study:
    return optuna.load_study(study_name=request.param, storage=storage)


def frame(database: Written, name: str) -> list[dict[str, Any]]:
    with open_reader(database.url) as reader:
        return reader.study(name).trials().rows(named=True)


# -- what it reads ---------------------------------------------------------------------------------------------------

FATES = {
    "queued": TrialState.WAITING,
    "running": TrialState.RUNNING,
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}


@pytest.mark.long
def test_trials_are_those_of_the_frames(database: Written, study: optuna.Study) -> None:
    rows = frame(database, study.study_name)
    assert len(rows) == STARTED
    assert {row["state"] for row in rows} == set(FATES)
    for row, trial in zip(rows, study.trials, strict=True):
        stored = json.loads(row["params"])
        objectives = [row["objective"], row["second_objective"]][: len(study.directions)]
        incomplete = None in objectives
        state = FATES[row["state"]]
        if state is TrialState.COMPLETE and incomplete:
            state = TrialState.FAIL
        assert (trial.number, trial._trial_id, trial.state) == (row["number"], row["id"], state)
        assert trial.values == (None if incomplete else objectives)
        assert trial.params == {path: value for path, value in stored.items() if path in trial.params}
        assert stored == {**trial.params, **{path: trial.user_attrs[path] for path in stored.keys() - trial.params}}
        assert trial.user_attrs["seed"] == row["seed"]
        trial._validate()
    # Trial 6 of the second study finished without its second objective.
    assert study.trials[6].state is (TrialState.FAIL if study.study_name == "two" else TrialState.COMPLETE)


def test_validations_are_those_of_the_objectives_metric(database: Written, study: optuna.Study) -> None:
    with open_reader(database.url) as reader:
        metrics = reader.study(study.study_name).metrics().filter(name="tvd", variant="raw", condition="")
    for trial in study.trials:
        stored = {row["step"]: row["value"] for row in metrics.filter(number=trial.number).rows(named=True)}
        shown = {step: None if math.isnan(value) else value for step, value in trial.intermediate_values.items()}
        assert shown == stored
        assert list(shown) == list(fixture.steps_of(trial.number))
    assert [math.isnan(value) for value in study.trials[4].intermediate_values.values()] == [False, True, True]


def test_directions_names_and_attributes_of_studies(storage: ReadOnlyStorage) -> None:
    one, two = (optuna.load_study(study_name=name, storage=storage) for name in ("one", "two"))
    assert [direction.name for direction in two.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert [direction.name for direction in one.directions] == ["MINIMIZE"]
    assert two.metric_names == ["tvd/raw", "optimizer.learning_rate * model.width"]
    assert one.user_attrs["space"] == fixture.ONE
    assert optuna.get_all_study_names(storage) == ["one", "two"]


def test_the_best_trial_is_that_of_the_study(database: Written, storage: ReadOnlyStorage) -> None:
    study = optuna.load_study(study_name="one", storage=storage)
    finished = [row for row in frame(database, "one") if row["state"] == "finished"]
    assert study.best_value == min(row["objective"] for row in finished)


def test_constraints_are_those_that_are_stored(database: Written, storage: ReadOnlyStorage) -> None:
    study = optuna.load_study(study_name="two", storage=storage)
    for row, trial in zip(frame(database, "two"), study.trials, strict=True):
        stored = json.loads(row["constraints"] or "{}")
        assert trial.constraints == {text: math.inf if excess is None else excess for text, excess in stored.items()}
    assert study.trials[7].constraints == {"optimizer.learning_rate <= 0.01": math.inf}
    front = graft.open(database.url)["two"].front()
    complete = {trial.number for trial in study.trials if trial.state is TrialState.COMPLETE}
    assert {trial.number for trial in study.best_trials} == set(front["number"]) & complete


@pytest.mark.long
def test_what_happens_later_is_seen(url: str) -> None:
    """A trial ends, one trains on, another starts beyond the space: a storage that was open says so."""
    with written(url) as database:
        storage = graft.open(database.url).optuna_storage()
        study = optuna.load_study(study_name="one", storage=storage)
        before = study.trials
        live = database.studies["one"]
        last = Report(number=8, fence=1, step=40, metrics=(Metric("tvd", "raw", "", 0.0),))
        running = replace(last, number=11)
        live.record([last, running], [TrialResult(number=8, fence=1, state="finished", objective=0.0)])
        after = study.trials
        assert (before[8].state, after[8].state) == (TrialState.RUNNING, TrialState.COMPLETE)
        assert after[8].intermediate_values[40] == after[11].intermediate_values[40] == 0.0
        assert study.best_trial.number == 8
        first = database.trials["one"][0]
        beyond = {**first.params, "optimizer.learning_rate": 0.5}
        live.start([replace(first, number=STARTED, params=beyond)], "worker-1")
        after = study.trials
        assert (len(before), len(after), after[-1].state) == (STARTED, STARTED + 1, TrialState.RUNNING)
        assert after[0].distributions["optimizer.learning_rate"] == FloatDistribution(1e-5, 0.5, log=True)
        fresh = optuna.load_study(study_name="one", storage=open_storage(database.url)).trials
        assert [repr(trial) for trial in after] == [repr(trial) for trial in fresh]


@pytest.mark.long
def test_a_large_study_shows_its_best_and_its_newest_trials(database: Written) -> None:
    rows = frame(database, "one")
    ranked = sorted((row for row in rows if row["objective"] is not None), key=lambda row: row["objective"])
    best = {row["number"] for row in ranked[:5]}
    rest = [row["number"] for row in reversed(rows) if row["number"] not in best]
    study = optuna.load_study(study_name="one", storage=open_storage(database.url, most=10))
    assert [trial.number for trial in study.trials] == sorted(best | set(rest[:5]))
    assert optuna_studies.MOST_SHOWN == 5_000


def test_what_a_caller_changes_is_not_seen_by_another(storage: ReadOnlyStorage) -> None:
    study = optuna.load_study(study_name="one", storage=storage)
    mine = study.trials[0]
    mine.params["optimizer.learning_rate"] = 7
    mine.user_attrs.clear()
    assert study.trials[0].params["optimizer.learning_rate"] != 7
    assert study.trials[0].user_attrs


@pytest.mark.parametrize("call", ["get_study_name_from_id", "get_all_trials", "get_trial", "get_study_directions"])
@pytest.mark.parametrize("key", [999, 3_000_000_001, 1_000_000_999])
def test_what_does_not_exist_is_a_key_error_as_optuna_has_it(storage: ReadOnlyStorage, call: str, key: int) -> None:
    with pytest.raises(KeyError, match="there is no"):
        getattr(storage, call)(key)


def test_a_trial_is_found_by_its_id_and_by_its_number(storage: ReadOnlyStorage) -> None:
    study_id = storage.get_study_id_from_name("two")
    trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, 12)
    assert storage.get_trial(trial_id).number == storage.get_trial_number_from_id(trial_id) == 12


# -- that it writes nothing ------------------------------------------------------------------------------------------

WRITES = [
    name
    for name, _ in inspect.getmembers(BaseStorage, inspect.isfunction)
    if name.startswith(("create_", "delete_", "set_"))
]


@pytest.mark.parametrize("name", WRITES)
def test_each_method_that_writes_refuses_in_one_line(database: Written, storage: ReadOnlyStorage, name: str) -> None:
    before = frame(database, "one")
    arguments = [1 for _ in list(inspect.signature(getattr(BaseStorage, name)).parameters)[1:]]
    with pytest.raises(StorageError, match=f"^{name}: Optuna only reads studies of Graft; .*enqueue") as caught:
        getattr(storage, name)(*arguments)
    assert "\n" not in str(caught.value)
    assert frame(database, "one") == before


def test_there_are_as_many_of_these_as_optuna_has() -> None:
    assert len(WRITES) == 10


@pytest.mark.parametrize(
    "act", [lambda study: study.ask(), lambda study: study.enqueue_trial({}), lambda study: study.set_user_attr("a", 1)]
)
def test_a_study_refuses_to_go_on(study: optuna.Study, act: Callable[[optuna.Study], object]) -> None:
    with pytest.raises(GraftError, match="Optuna only reads"):
        act(study)


# -- ranges ----------------------------------------------------------------------------------------------------------


def test_the_ranges_are_those_of_the_space(study: optuna.Study) -> None:
    ranges: dict[str, Any] = {}
    for trial in study.trials:
        ranges |= trial.distributions
    assert ranges["optimizer.learning_rate"] == FloatDistribution(1e-5, 0.1, log=True)
    assert ranges["optimizer.beta1"] == FloatDistribution(0.5, 0.9)
    assert ranges["model.scorer.temperature"] == FloatDistribution(0.3, 3.0, log=True)
    assert ranges["model.residual_dropout"] == FloatDistribution(0.0, 0.5)
    assert ranges["model.width"] == IntDistribution(8, 40)
    assert ranges["model.key_width"] == CategoricalDistribution([4, 6, 12])
    assert set(ranges["model.scorer"].choices) == {"average", "softmax"}
    assert set(ranges) == {
        "optimizer.learning_rate", "optimizer.beta1", "model.scorer", "model.scorer.temperature",
        "model.residual_dropout", "model.width", "model.key_width",
    }  # fmt: skip


def test_a_dimension_under_a_choice_is_that_of_the_trials_that_took_it(study: optuna.Study) -> None:
    for trial in study.trials:
        assert ("model.scorer.temperature" in trial.params) == (trial.params["model.scorer"] == "softmax")
    assert len({trial.params["model.scorer"] for trial in study.trials}) == 2


LEAVES: dict[str, BaseDistribution] = {
    "uniform(0, 3)": FloatDistribution(0.0, 3.0),
    "log_uniform(1e-3, 1)": FloatDistribution(1e-3, 1.0, log=True),
    "log_uniform(1, 4)": FloatDistribution(1.0, 4.0, log=True),
    "uniform(1, 4)": FloatDistribution(1.0, 4.0),
    "10 ** uniform(-4, 0)": FloatDistribution(1e-4, 1.0, log=True),
    "1 - uniform(0, 1)": FloatDistribution(0.0, 1.0),
    "1 - 10 ** uniform(-2, 0)": FloatDistribution(0.0, 0.99),
    "relu(uniform(-1/2, 1/2))": FloatDistribution(0.0, 0.5),
    "uniform(0, 1) * uniform(2, 3)": FloatDistribution(0.0, 3.0),
    "{choice: [0.5, 0.25, 0.125]}": CategoricalDistribution([0.125, 0.25, 0.5]),
    "{choice: [0, 'uniform(1, 2)']}": FloatDistribution(0.0, 2.0),
}
WIDTHS: dict[str, BaseDistribution] = {
    "int(2, 9)": IntDistribution(2, 9),
    "log_int(1, 64)": IntDistribution(1, 64, log=True),
    "1 + floor(2 ** uniform(0, 4))": IntDistribution(2, 16, log=True),
    "floor(uniform(1, 13))": IntDistribution(1, 12),
}
BODY = """
group: {{width: "{width}"}}
task: {{name: set_complement, length: 4, vocabulary: 9}}
model: {{name: minimal, width: $width, key_width: "floor(uniform(1, $width + 1))", value_width: 9}}
optimizer: {{name: adamw, learning_rate: 0.01, weight_decay: {decay}}}
averaging: none
"""


def quoted(leaf: str) -> str:
    return leaf if leaf.startswith("{") else f'"{leaf}"'


@pytest.mark.sampled(3)
@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_has_the_range_that_its_formula_says(leaf: str) -> None:
    ranges = Ranges([read_space(BODY.format(width="int(2, 9)", decay=quoted(leaf)))])
    assert ranges["optimizer.weight_decay"] == LEAVES[leaf]


@pytest.mark.long
@pytest.mark.parametrize("width", WIDTHS)
def test_so_has_a_size_and_one_that_depends_on_it(width: str) -> None:
    expected = WIDTHS[width]
    assert isinstance(expected, IntDistribution)
    ranges = Ranges([read_space(BODY.format(width=width, decay="0.1"))])
    assert ranges["model.width"] == expected
    key = ranges["model.key_width"]
    assert isinstance(key, IntDistribution)
    assert (key.low, key.high) == (1, expected.high)


SPACES = st.builds(BODY.format, width=st.sampled_from(list(WIDTHS)), decay=st.sampled_from(list(map(quoted, LEAVES))))


@pytest.mark.long
@settings(max_examples=5)
@given(body=SPACES, points=st.lists(st.floats(0, 1, exclude_max=True), min_size=3, max_size=30))
def test_each_trial_of_a_space_lies_in_its_ranges(body: str, points: list[float]) -> None:
    space = read_space(body)
    ranges = Ranges([space])
    endless = itertools.cycle(points)
    for number in range(20):
        params = space.sample(number, lambda _: next(endless)).params
        dimensions, others = ranges.split(params)
        assert {**dimensions, **others} == params
        assert not ranges.cover([params])
        for path, value in dimensions.items():
            assert ranges[path]._contains(ranges[path].to_internal_repr(value)), (path, value)


@given(values=st.lists(st.one_of(st.integers(-50, 50), st.floats(-50, 50), st.sampled_from(["a", "b"])), min_size=1))
def test_without_a_space_the_ranges_hold_what_is_stored(values: list[Any]) -> None:
    """As of a study whose space this version of Graft cannot read; a word among numbers is told beside them."""
    ranges = Ranges([])
    rows = [{"x": value} for value in values]
    ranges.cover(rows)
    assert not ranges.cover(rows)
    for row in rows:
        dimensions, others = ranges.split(row)
        assert {**dimensions, **others} == row
        assert all(ranges[path]._contains(ranges[path].to_internal_repr(value)) for path, value in dimensions.items())


@pytest.mark.long
def test_a_stored_trial_outside_of_the_space_widens_its_range() -> None:
    ranges = Ranges([read_space(BODY.format(width="int(2, 9)", decay="log_uniform(1e-3, 1)"))])
    assert ranges.cover([{"optimizer.weight_decay": 2.0, "model.width": 11}])
    assert ranges["optimizer.weight_decay"] == FloatDistribution(1e-3, 2.0, log=True)
    assert ranges["model.width"] == IntDistribution(2, 11)
    assert ranges.cover([{"optimizer.weight_decay": 0}])
    assert ranges["optimizer.weight_decay"] == FloatDistribution(0.0, 2.0)


@pytest.mark.long
def test_an_experiments_arms_are_a_dimension_and_its_seeds_are_none() -> None:
    text = BODY.format(width="int(2, 9)", decay="0.1") + "arms: {a: {}, b: {optimizer.beta1: 0.5}}\nseeds: 3\n"
    space = read_space(text, trials=4)
    ranges = Ranges([space])
    assert ranges["arm"] == CategoricalDistribution(["a", "b"])
    dimensions, others = ranges.split(space.sample(5, lambda _: 0.5).params)
    assert set(dimensions) == {"arm", "model.width", "model.key_width"}
    assert set(others) == {"seed", "configuration", "task.chance", "task.generalisation_gap"}


# -- Optuna's own tools ----------------------------------------------------------------------------------------------

PLOTS = ["optimization_history", "intermediate_values", "param_importances", "slice", "parallel_coordinate", "edf",
         "rank", "timeline", "contour"]  # fmt: skip


def test_importances_of_a_study(storage: ReadOnlyStorage) -> None:
    study = optuna.load_study(study_name="one", storage=storage)
    importances = optuna.importance.get_param_importances(study)
    assert set(importances) == set().union(*(trial.params for trial in study.trials))
    assert sum(importances.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_figures_of_a_study(storage: ReadOnlyStorage, plot: str) -> None:
    study = optuna.load_study(study_name="one", storage=storage)
    some = {"params": ["optimizer.learning_rate", "model.width"]} if plot in ("contour", "rank") else {}
    assert getattr(pytest_plotly(), f"plot_{plot}")(study, **some).data


def test_the_pareto_front_of_two_objectives(storage: ReadOnlyStorage) -> None:
    study = optuna.load_study(study_name="two", storage=storage)
    figure = pytest_plotly().plot_pareto_front(study)
    assert sum(len(part.x) for part in figure.data) == sum(trial.state is TrialState.COMPLETE for trial in study.trials)


def pytest_plotly() -> Any:
    pytest.importorskip("plotly")
    return optuna.visualization


# -- optuna-dashboard ------------------------------------------------------------------------------------------------

FROM_SERVER = ("slice", "parallel_coordinate", "edf", "timeline", "rank", "contour")
"""The figures that the page has its server draw."""
READS = [
    "/dashboard", "/dashboard/studies/1", "/api/meta", "/api/studies", "/api/studies/{id}", "/api/studies/{id}?after=3",
    "/api/studies/{id}/param_importances", "/csv/{id}", "/csv/{id}?trial_ids=0,1", "/favicon.ico", "/static/bundle.js",
    *(f"/api/studies/{{id}}/plot/{plot}" for plot in FROM_SERVER),
]  # fmt: skip


@pytest.fixture(scope="module")
def served(database: Written) -> Iterator[int]:
    """Yield the port of the dashboard over the database of a study that is running."""
    pytest.importorskip("optuna_dashboard")
    pytest.importorskip("plotly")
    from search.optuna_view.dashboard import open_dashboard

    server = open_server(open_dashboard(open_storage(database.url)), 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def asked(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    with closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", READS)
@pytest.mark.parametrize("study_id", [1, pytest.param(2, marks=pytest.mark.long)])
def test_the_dashboard_answers_what_it_reads(served: int, path: str, study_id: int) -> None:
    status, body = asked(served, "GET", path.format(id=study_id))
    assert (status, bool(body)) == (200, True)


@pytest.mark.parametrize("path", ["/dashboard", "/api/studies", "/api/studies/1"])
def test_the_dashboard_answers_head_without_a_body(served: int, path: str) -> None:
    assert asked(served, "HEAD", path) == (200, b"")


@pytest.mark.long
def test_the_dashboard_draws_the_front_of_two_objectives(served: int) -> None:
    assert asked(served, "GET", "/api/studies/2/plot/pareto_front")[0] == 200


def test_the_dashboard_shows_the_trials(served: int, storage: ReadOnlyStorage) -> None:
    detail = json.loads(asked(served, "GET", "/api/studies/1")[1])
    shown = {trial["number"]: trial for trial in detail["trials"]}
    for trial in storage.get_all_trials(1):
        assert shown[trial.number]["state"] == trial.state.name.capitalize()
        values = {param["name"]: param["param_external_value"] for param in shown[trial.number]["params"]}
        assert values == {path: str(value) for path, value in trial.params.items()}
    assert [trial["value"] for trial in shown[4]["intermediate_values"]] == [
        shown[4]["intermediate_values"][0]["value"],
        "nan",
        "nan",
    ]
    assert detail["best_trials"][0]["number"] == storage.get_best_trial(1).number


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get"])
@pytest.mark.parametrize(
    "path", ["/api/studies", "/api/studies/1", "/api/studies/1/rename", "/api/trials/1000000001/tell"]
)
def test_the_dashboard_refuses_what_would_write(database: Written, served: int, method: str, path: str) -> None:
    before = frame(database, "one")
    status, body = asked(served, method, path, b'{"study_name": "x", "directions": ["minimize"]}')
    assert (status, body) == (405, b"studies of Graft are only looked at here\n")
    assert frame(database, "one") == before


@pytest.mark.parametrize(("host", "status"), [("localhost:8080", 200), ("127.0.0.1", 200), ("evil.example", 403)])
def test_a_page_from_elsewhere_that_was_made_to_lead_here_reads_nothing(served: int, host: str, status: int) -> None:
    assert asked(served, "GET", "/api/studies", Host=host)[0] == status


def test_a_port_that_is_taken_is_one_line(served: int, database: Written, monkeypatch: Any, capsys: Any) -> None:
    status, _, error = called(monkeypatch, capsys, "optuna-dashboard", "--port", served, "--storage", database.url)
    assert (status, error) == (
        2,
        f"error: port {served} of 127.0.0.1: Address already in use; name another one, 0 for any\n",
    )


def test_without_optuna_dashboard_the_command_names_the_extra(database: Written, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    status, _, error = called(monkeypatch, capsys, "optuna-dashboard", "--storage", database.url)
    assert (status, error) == (2, "error: optuna-dashboard is not installed: pip install 'graft-search[optuna]'\n")


# -- a file of Optuna's own ------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("name", ["one", "two"])
def test_a_file_for_optuna_has_what_the_study_has(
    database: Written, storage: ReadOnlyStorage, tmp_path: Path, name: str, monkeypatch: Any, capsys: Any
) -> None:
    file = tmp_path / "study.journal"
    arguments = ("export", name, "--to", "optuna", "-o", file, "--storage", database.url)
    assert called(monkeypatch, capsys, *arguments) == (0, "", f"{file}: {STARTED} trials\n")
    assert called(monkeypatch, capsys, *arguments)[0] == 2
    assert called(monkeypatch, capsys, *arguments, "--force")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["study.journal"]
    copy = optuna.load_study(study_name=name, storage=JournalStorage(JournalFileBackend(str(file))))
    ours = optuna.load_study(study_name=name, storage=storage)
    assert (copy.directions, copy.metric_names) == (ours.directions, ours.metric_names)
    assert copy.user_attrs == ours.user_attrs
    for theirs, mine in zip(copy.trials, ours.trials, strict=True):
        assert theirs.user_attrs["number"] == mine.number
        for part in ("state", "values", "params", "distributions", "user_attrs", "constraints", "datetime_start",
                     "datetime_complete"):  # fmt: skip
            assert getattr(theirs, part) == getattr(mine, part), part
        assert repr(theirs.intermediate_values) == repr(mine.intermediate_values)
    copy.optimize(lambda trial: trial.suggest_float("optimizer.learning_rate", 1e-5, 0.1, log=True), n_trials=1) if (
        name == "one"
    ) else None
    assert len(ours.trials) == STARTED


def test_a_file_for_optuna_of_no_study_is_not_written(
    database: Written, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    arguments = ("export", "nope", "--to", "optuna", "-o", tmp_path / "x", "--storage", database.url)
    status, _, error = called(monkeypatch, capsys, *arguments)
    assert (status, error) == (2, "error: study 'nope' does not exist; there are one, two\n")
    assert list(tmp_path.iterdir()) == []
