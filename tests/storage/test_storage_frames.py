"""Reading: typed frames on both databases, the user's own SQL, and that nothing sent by a reader can write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from spaces.errors import StorageError, StudyError
from spaces.records import Metric, Report, TrialResult
from storage import Reader, annotate_study, frames, open_reader, open_store, trial_notes
from storage.copying import copy
from storage.frames.columns import METRICS, STUDIES, TRIALS
from tests.support.databases import controlled, make_report, make_trial, raw

pytestmark = pytest.mark.fast

RATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


@pytest.fixture
def reader(url: str) -> Iterator[Reader]:
    """Yield a study of five trials: 0 and 2 finished (0.5, 0.25), 4 diverged, 1 and 3 run; two reports each."""
    with controlled(url) as study:
        study.start([make_trial(n, rate) for n, rate in enumerate(RATES)], "w")
        endings = [TrialResult(number=n, fence=1, state="finished", objective=0.5 / (n or 1)) for n in (0, 2)]
        endings.append(TrialResult(number=4, fence=1, state="diverged", objective=None))
        study.record([make_report(n, step) for step in (10, 20) for n in range(5)], endings)
    with open_reader(url) as reader:
        yield reader


def numbers(frame: pl.DataFrame) -> list[int]:
    return frame["number"].to_list()


def test_empty_frames_have_their_types(url: str):
    with controlled(url), open_reader(url) as reader:
        assert reader.study("study").trials().schema == TRIALS
        assert reader.study("study").metrics().schema == METRICS
        raw(url, "DELETE FROM studies")
        assert reader.studies().schema == STUDIES
        with pytest.raises(StudyError, match="'study' does not exist; there is none yet"):
            reader.study("study").trials()


def test_full_frames_have_the_same_types(reader: Reader):
    assert (reader.study("study").trials().schema, reader.study("study").trials().height) == (TRIALS, 5)
    assert (reader.study("study").metrics().schema, reader.study("study").metrics().height) == (METRICS, 20)
    assert (reader.studies().schema, reader.studies().height) == (STUDIES, 1)


def test_the_values_come_back(reader: Reader):
    trial = reader.study("study").trials().row(4, named=True)
    assert (trial["state"], trial["objective"], trial["seed"]) == ("diverged", None, 2**62 + 4)
    assert trial["created_at"] <= trial["finished_at"]
    assert "100% η" in pl.Series([trial["config"]]).str.json_path_match("$.optimizer.note")[0]
    assert reader.study("study").metrics().rows()[:2] == [
        (0, 10, "loss", "raw", "length=64", 1.5),
        (0, 10, "tvd", "bema", "", 0.5),
    ]


def test_metrics_of_some_names(reader: Reader):
    assert set(reader.study("study").metrics(["tvd", "it's 100%"])["name"]) == {"tvd"}


def test_chosen_columns(reader: Reader):
    assert reader.study("study").trials(columns=["number", "objective"]).schema == {
        "number": pl.Int64,
        "objective": pl.Float64,
    }


def test_a_null_metric_is_null(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        study.record([Report(number=0, fence=1, step=1, metrics=(Metric("loss", "raw", "", float("nan")),))])
    with open_reader(url) as reader:
        assert reader.study("study").metrics()["value"].to_list() == [None]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("state = 'finished'", [0, 2]),
        ("objective < 0.3", [2]),
        ("params.optimizer.learning_rate >= 1e-3", [2, 3, 4]),
        ("params.model.scorer = 'ssa'", [1, 3]),
        ("params.model.gated", [0, 1, 2, 3, 4]),
        ("number = 1 OR number = 3", [1, 3]),
        ("task <> 'params.model.scorer' AND number = 0", [0]),
        ("number = 2 -- a remark", [2]),
        ("model LIKE 'min%' AND number = 0", [0]),
        ("params.nosuch.path IS NOT NULL", []),
    ],
)
def test_conditions(reader: Reader, where: str, expected: list[int]):
    assert numbers(reader.study("study").trials(where=where)) == expected


@pytest.mark.parametrize(
    ("sort", "top", "expected"),
    [
        (None, None, [0, 1, 2, 3, 4]),
        (None, 2, [2, 0]),
        ("objective DESC", None, [0, 2, 1, 3, 4]),
        ("objective", 3, [2, 0, 1]),
        ("objective DESC NULLS FIRST", 3, [1, 3, 4]),
        ("params.model.scorer DESC, number DESC", None, [3, 1, 4, 2, 0]),  # ssa, softmax
        ("-params.optimizer.learning_rate", 2, [4, 3]),
    ],
)
def test_orders(reader: Reader, sort: str | None, top: int | None, expected: list[int]):
    assert numbers(reader.study("study").trials(sort=sort, top=top)) == expected


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_an_order_by_the_objective_has_the_best_first_whatever_the_direction(reader: Reader, url: str, direction: str):
    raw(url, f"UPDATE studies SET direction = '{direction}', second_objective = '{direction} training.steps'")
    raw(url, "UPDATE trials SET second_objective = 10 * objective")
    best_first = [2, 0] if direction == "minimize" else [0, 2]
    with open_reader(url) as again:
        study = again.study("study")
        for sort in ("objective", " Objective ", "second_objective"):
            assert numbers(study.trials(sort=sort)) == [*best_first, 1, 3, 4]
            assert numbers(study.trials(sort=sort, top=2)) == best_first
            assert numbers(study.trial_page(None, sort, 0, 2, ("number",))) == best_first
        assert numbers(study.trials(top=2)) == best_first
        assert numbers(study.trials(sort="objective ASC", top=2)) == [2, 0]
        assert numbers(study.trials(sort="objective DESC", top=2)) == [0, 2]


MIXED = """
transfer: {tasks: {five: {space: a}, seven: {space: b, objective: {minimize: loss/raw}}}}
search: {objective: {maximize: accuracy/raw}}
"""


def test_tasks_that_are_minimized_and_maximized_have_no_order_with_the_best_first(reader: Reader, url: str):
    raw(url, f"UPDATE studies SET space = '{MIXED}'")
    with open_reader(url) as again:
        study = again.study("study")
        for read in (
            lambda: study.trials(sort="objective"),
            lambda: study.trials(sort=" Objective", top=2),
            lambda: study.trial_page(None, "objective", 0, 2, ("number",)),
            lambda: study.numbers(sort="objective"),
        ):
            with pytest.raises(StudyError, match="some of its tasks are minimized and others maximized"):
                read()
        assert numbers(study.trial_page(None, "objective DESC", 0, 2, ("number",))) == [0, 2]
        assert numbers(study.trials(top=2)) == [2, 0]  # reports and charts show these as they are


def test_the_best_trials_break_no_constraint_but_an_order_of_all_has_them(reader: Reader, url: str):
    raw(url, "UPDATE trials SET feasible = (number <> 2) WHERE objective IS NOT NULL")
    with open_reader(url) as again:
        assert numbers(again.study("study").trials(sort="objective", top=2)) == [0, 1]
        assert numbers(again.study("study").trials(sort="objective")) == [2, 0, 1, 3, 4]


def test_a_query_is_typed_by_its_values(reader: Reader):
    sql = (
        "SELECT number, objective, state, count(*) OVER () AS n, avg(steps) OVER () AS mean FROM trials ORDER BY number"
    )
    frame = reader.query(sql + ";")
    assert frame.schema == {
        "number": pl.Int64, "objective": pl.Float64, "state": pl.String, "n": pl.Int64, "mean": pl.Float64
    }  # fmt: skip
    assert frame.row(0) == (0, 0.5, "finished", 5, 20.0)


def test_an_empty_query_is_typed_by_its_columns(reader: Reader):
    frame = reader.query("SELECT number, objective, state FROM trials WHERE 1 = 0")
    assert frame.schema == {"number": pl.Int64, "objective": pl.Float64, "state": pl.String}


def test_percent_signs_and_json_in_a_query(reader: Reader):
    frame = reader.query("SELECT params FROM trials WHERE model LIKE '%min%' AND number = 1")
    assert frame.schema == {"params": pl.String}
    assert frame["params"].str.json_path_match("$['model.scorer']").to_list() == ["ssa"]


def test_two_columns_of_one_name_are_refused(reader: Reader):
    with pytest.raises(StorageError, match=r"one name \(number, number\); use AS"):
        reader.query("SELECT number, number FROM trials")


def test_a_mistake_in_sql_is_one_line_and_the_reader_goes_on(reader: Reader):
    with pytest.raises(StorageError, match="syntax error") as caught:
        reader.query("SELEC 1")
    assert "\n" not in str(caught.value)
    with pytest.raises(StorageError, match="nosuch"):
        reader.study("study").trials(where="nosuch = 1")
    assert reader.query("SELECT 1 AS one")["one"].to_list() == [1]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM metrics",
        "UPDATE studies SET name = 'x'",
        "DROP TABLE metrics",
        "CREATE TABLE t (i int)",
        "SELECT 1; DELETE FROM metrics",
        "COMMIT; DELETE FROM metrics",
        "WITH gone AS (DELETE FROM metrics RETURNING 1) SELECT * FROM gone",
    ],
)
def test_nothing_can_be_written_through_a_reader(url: str, reader: Reader, sql: str):
    before = raw(url, "SELECT count(*) FROM metrics")
    with pytest.raises(StorageError):
        reader.query(sql)
    with pytest.raises(StorageError):
        reader.study("study").trials(where=f"1 = 1); {sql} --")
    assert raw(url, "SELECT count(*) FROM metrics") == before


def test_an_unknown_study_names_the_known_ones(reader: Reader):
    with pytest.raises(StudyError, match=r"study \"it's\" does not exist; there are study"):
        reader.study("it's").metrics()


def test_a_reader_sees_what_is_written_after_it_was_opened(url: str):
    with controlled(url) as study, open_reader(url) as reader:
        assert reader.study("study").counts() == {}
        study.start([make_trial(0)], "w")
        assert reader.study("study").counts() == {"running": 1}
        assert reader.study("study").trials().height == 1


def test_a_frame_larger_than_one_chunk_is_whole(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("storage.frames.answers._CHUNK", 7)
    with controlled(url) as study:
        study.start([make_trial(n) for n in range(20)], "w")
    with open_reader(url) as reader:
        assert numbers(reader.study("study").trials()) == list(range(20))


LOOKS: dict[str, Callable[[Reader], object]] = {
    "running": lambda reader: reader.study("study").trials(where="state = 'running'"),
    "one": lambda reader: reader.study("study").trials(where="number = 7"),
    "top": lambda reader: reader.study("study").trials(sort="objective", top=3),
    "newest": lambda reader: reader.study("study").trials(sort="number DESC", top=1),
    "best": lambda reader: reader.study("study").best(),
    "study": lambda reader: reader.study("study").row,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_few_trials_does_not_read_the_others(tmp_path: Path, look: str):
    """Counted in SQLite's own operations, tens of them."""
    work: list[int] = []
    for trials in (30, 3000):
        url = f"sqlite:///{tmp_path}/{trials}.db"
        with controlled(url) as study:
            study.start([make_trial(number) for number in range(trials)], "w")
            ended = range(trials - 5)
            study.end([TrialResult(number=n, fence=1, state="finished", objective=n * 0.618 % 1) for n in ended])
        counted: list[None] = []
        with open_reader(url) as reader:
            driver = reader._answers.reading.connection.connection.driver_connection
            driver.set_progress_handler(lambda counted=counted: counted.append(None), 10)
            LOOKS[look](reader)
        work.append(len(counted))
    assert work[1] <= 2 * work[0] + 2


def test_what_is_read_in_a_moment_is_as_of_its_beginning(url: str):
    with controlled(url) as study:
        study.start([make_trial(0)], "w")
        with open_reader(url) as reader:
            with reader.moment():
                assert numbers(reader.study("study").trials()) == [0]
                study.start([make_trial(1)], "w")
                study.record([make_report(0, 10)])
                assert numbers(reader.study("study").trials()) == [0]
                assert reader.study("study").metrics().is_empty()
            assert numbers(reader.study("study").trials()) == [0, 1]
            assert reader.study("study").metrics().height == 2


def test_metrics_come_in_batches_of_whole_trials_in_one_order(url: str, monkeypatch: pytest.MonkeyPatch):
    with controlled(url) as study:
        study.start([make_trial(number) for number in range(7)], "w")
        for step in (30, 10, 20):
            study.record([make_report(number, step) for number in (3, 0, 6, 1)])
    with open_reader(url) as reader:
        whole = reader.study("study").metrics()
        assert whole.equals(whole.sort("number", "step", "name", "variant", "condition"))
        assert whole.height == 4 * 3 * 2
        for rows in (1, 5, 6, 7, 100):
            monkeypatch.setattr(frames.study, "BATCH", rows)
            batches = list(reader.study("study").metric_batches())
            assert pl.concat(batches).equals(whole)
            by_batch = [batch["number"].unique().to_list() for batch in batches if batch.height]
            assert sorted(number for some in by_batch for number in some) == [0, 1, 3, 6]
        assert reader.study("study").metrics(["tvd"])["name"].unique().to_list() == ["tvd"]
        assert reader.study("study").metrics(["none"]).is_empty()


def test_trials_come_in_batches_too(url: str, monkeypatch: pytest.MonkeyPatch):
    with controlled(url) as study:
        study.start([make_trial(number) for number in range(7)], "w")
    monkeypatch.setattr(frames.study, "BATCH_OF_TRIALS", 3)
    with open_reader(url) as reader:
        assert [batch.height for batch in reader.study("study").trial_batches()] == [0, 3, 3, 1]
        assert numbers(reader.study("study").trials(sort="number DESC")) == [6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("at_once", [1, 10_000])
def test_stars_tags_and_notes_of_trials(
    url: str, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
):
    monkeypatch.setattr(trial_notes, "_AT_ONCE", at_once)
    annotate_study(url, "study", numbers=[0, 3], starred=True, added=["b", "a"])
    annotate_study(url, "study", numbers=[3, 4], removed=["b"], note="Odd.")
    annotate_study(url, "study", numbers=[0], starred=False, removed=["a", "b"])
    with pytest.raises(StudyError, match="the study has no trial 9"):
        annotate_study(url, "study", numbers=[2, 9], note="None.")
    study = reader.study("study")
    rows = [(3, True, "a", "Odd."), (4, False, "", "Odd.")]
    assert study.trial_notes().rows() == rows
    assert numbers(study.trials("starred")) == [3]
    assert numbers(study.trials("NOT starred AND note = 'Odd.' OR tags LIKE '%a%'")) == [3, 4]
    assert numbers(study.trials("params.optimizer.learning_rate > 0 AND note <> ''", "tags DESC")) == [3, 4]
    other = f"sqlite:///{tmp_path}/other.db"
    [copied] = copy(url, other)
    assert copied.new
    with open_reader(other) as second:
        assert second.study("study").trial_notes().rows() == rows
    with open_store(url) as store:
        store.edit(study.row["id"]).delete()
    assert raw(url, "SELECT count(*) FROM trial_notes")[0][0] == 0
