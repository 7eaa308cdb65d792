"""Chosen trials for loggers, and studies for Prometheus, each read back by the program that they are for."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import graft
from graft.exports.interchange.prometheus import Sample, prometheus, write_metric
from spaces.records import State
from storage import open_reader
from tests.support.inside import called
from tests.support.optuna_studies import STARTED, Written, written

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    with written(f"sqlite:///{tmp_path_factory.mktemp('exchange')}/graft.db") as studies:
        yield studies


@pytest.fixture
def search(database: Written, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("SEARCH_STORAGE", database.url)
    return lambda *arguments: called(monkeypatch, capsys, *arguments)


def best(database: Written, top: int) -> list[dict[str, Any]]:
    """Return the rows of the trials that are chosen, by the SQL that everybody knows."""
    with open_reader(database.url) as reader:
        rows = reader.query(
            "SELECT * FROM trials WHERE study_id = 1 AND objective IS NOT NULL ORDER BY objective, number"
        )
    return rows.head(top).rows(named=True)


def metrics_of(database: Written, row: dict[str, Any]) -> dict[tuple[str, int], float]:
    """(`tvd/raw/length=8`, step) -> value."""
    with open_reader(database.url) as reader:
        metrics = reader.study("one").metrics().filter(number=row["number"])
    names = pl.concat_str("name", "variant", "condition", separator="/").str.strip_chars_end("/")
    rows = metrics.select(names.alias("tag"), "step", "value").rows()
    return {(tag, step): math.nan if value is None else value for tag, step, value in rows}


def single(value: float) -> float:
    """As float32 has it."""
    return struct.unpack("f", struct.pack("f", value))[0]


def test_event_files_of_tensorboard_have_the_metrics(database: Written, search: Run, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "runs"
    assert search("export", "one", "--to", "tensorboard", "-o", folder, "--top", 3) == (0, "", f"{folder}: 3 trials\n")
    rows = best(database, 3)
    assert {path.name for path in (folder / "one").iterdir()} == {f"trial-{row['number']:04}" for row in rows}
    for row in rows:
        events = accumulator.EventAccumulator(str(folder / "one" / f"trial-{row['number']:04}")).Reload()
        tags = [tag for tag in events.Tags()["scalars"] if tag != "objective"]
        read = {(tag, event.step): event.value for tag in tags for event in events.Scalars(tag)}
        assert read == {at: single(value) for at, value in metrics_of(database, row).items()}
        assert "loss/raw/length=8" in tags
        [last] = events.Scalars("objective")
        assert (last.step, last.value) == (row["steps"], single(row["objective"]))
        assert last.wall_time == pytest.approx(row_time(row, database))
        assert hyperparameters(events) == json.loads(row["params"])


def row_time(row: dict[str, Any], database: Written) -> float:
    with open_reader(database.url) as reader:
        return reader.study("one").trials(f"number = {row['number']}")["finished_at"].item().timestamp()


def hyperparameters(events: Any) -> dict[str, Any]:
    """Return what TensorBoard's table of hyperparameters reads of a run."""
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    values = metadata.parse_session_start_info_plugin_data(content).hparams
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in values.items()}


@pytest.mark.long
def test_a_project_of_trackio_has_the_metrics(database: Written, tmp_path: Path) -> None:
    """In a process of its own: Trackio has one folder in each."""
    if find_spec("trackio") is None:
        pytest.skip("the extra trackio is not installed")
    folder = tmp_path / "trackio"
    program = [sys.executable, "-c", "from cli.main import main; main()"]
    arguments = ["export", "one", "--to", "trackio", "-o", folder, "--top", "2", "--storage", database.url]
    subprocess.run([*program, *arguments], check=True, capture_output=True)
    with closing(sqlite3.connect(folder / "one.db")) as connection:
        rows = connection.execute("SELECT run_name, step, metrics FROM metrics").fetchall()
        configs = dict(connection.execute("SELECT run_name, config FROM configs").fetchall())
    for row in best(database, 2):
        name = f"trial-{row['number']:04}"
        read = {
            (tag, step): value for run, step, text in rows if run == name for tag, value in json.loads(text).items()
        }
        assert read == metrics_of(database, row)
        config = json.loads(configs[name])
        assert config["optimizer.name"] == "adamw"
        assert config["objective"] == row["objective"]
        assert config.items() >= json.loads(row["params"]).items()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_an_experiment_of_mlflow_has_the_metrics(database: Written, search: Run, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path / "mlflow"
    assert search("export", "one", "--to", "mlflow", "-o", folder, "--top", 2)[0] == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("one")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 2
    for row in best(database, 2):
        run = runs[f"trial-{row['number']:04}"]
        expected = metrics_of(database, row)
        for tag in {tag for tag, _ in expected}:
            history = client.get_metric_history(run.info.run_id, tag.replace("=", ":"))
            assert {(tag, point.step): point.value for point in history} == {
                at: value for at, value in expected.items() if at[0] == tag
            }
        params = json.loads(row["params"])
        assert {path: run.data.params[path] for path in params} == {path: str(value) for path, value in params.items()}
        assert (run.data.tags["state"], run.info.status) == (row["state"], "FINISHED")


def test_a_condition_chooses_trials(database: Written, search: Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    arguments = ("--to", "tensorboard", "-o", tmp_path / "runs", "--where", "params.model.scorer = 'average'")
    assert search("export", "one", *arguments)[0] == 0
    expected = {
        f"trial-{row['number']:04}"
        for row in best(database, STARTED)
        if json.loads(row["params"])["model.scorer"] == "average"
    }
    assert {path.name for path in (tmp_path / "runs" / "one").iterdir()} == expected


BAD = {
    "no such program": (("--to", "wandb"), "--to: 'wandb' must be one of optuna, tensorboard, trackio, mlflow"),
    "a choice for all": (("--to", "optuna", "--top", "3"), "--top and --where choose trials for --to tensorboard"),
    "no trial": (("--to", "tensorboard", "--where", "objective < 0"), "has no trial with an objective of this --where"),
    "no condition": (("--to", "tensorboard", "--where", "objective <"), "syntax error"),
    "force": (("--to", "tensorboard", "--force"), "--force does not replace a folder; name another one than"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_export_is_one_line_and_writes_nothing(search: Run, tmp_path: Path, case: str) -> None:
    arguments, words = BAD[case]
    status, out, error = search("export", "one", "-o", tmp_path / "x", *arguments)
    assert (status, out, error.count("\n")) == (2, "", 1), error
    assert words in error
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_kept(search: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    status, _, error = search("export", "one", "--to", "tensorboard", "-o", tmp_path)
    assert (status, error) == (2, f"error: {tmp_path} exists and is not empty; name another folder\n")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("to", "module"), [("tensorboard", "tensorboardX"), ("trackio", "trackio"), ("mlflow", "mlflow")]
)
def test_without_its_package_a_logger_names_pips_command(
    search: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    status, _, error = search("export", "one", "--to", to, "-o", tmp_path / "x")
    assert (status, error) == (2, f"error: {module} is not installed: pip install 'graft-search[{to}]'\n")
    assert list(tmp_path.iterdir()) == []


# -- Prometheus ------------------------------------------------------------------------------------------------------


def scraped(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return what Prometheus' own parser reads: metric and labels -> number."""
    parser = pytest.importorskip("prometheus_client.parser")
    families = list(parser.text_string_to_metric_families(text))
    assert all(family.documentation and family.type == "gauge" for family in families)
    samples = [sample for family in families for sample in family.samples]
    numbers = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(numbers) == len(samples)
    return numbers


def test_prometheus_reads_where_studies_stand(database: Written, search: Run) -> None:
    status, out, _ = search("status", "--format", "prometheus")
    assert status == 0
    numbers = scraped(out)
    states: tuple[State, ...] = ("queued", "running", "finished", "pruned", "diverged", "failed")
    for name in ("one", "two"):
        with open_reader(database.url) as reader:
            counts = reader.study(name).counts()
        for state in states:
            labels = (("state", state), ("study", name))
            assert numbers["graft_trials", labels] == counts.get(state, 0)
        assert numbers["graft_trials_planned", (("study", name),)] == 60
        state_now = graft.open(database.url)[name].status().state
        assert numbers["graft_study_state", (("state", state_now), ("study", name))] == 1
        assert sum(value for (metric, labels), value in numbers.items()
                   if metric == "graft_study_state" and ("study", name) in labels) == 1  # fmt: skip
    assert (
        numbers["graft_best_objective", (("direction", "minimize"), ("objective", "tvd/raw"), ("study", "one"))]
        == (best(database, 1)[0]["objective"])
    )


def test_prometheus_reads_both_databases(url: str) -> None:
    with written(url):
        numbers = scraped(prometheus(url))
    assert numbers["graft_trials", (("state", "diverged"), ("study", "two"))] == 1


def test_of_one_study_there_is_that_one_alone(database: Written, search: Run) -> None:
    _, out, _ = search("status", "two", "--format", "prometheus")
    actual, expected = scraped(out), scraped(prometheus(database.url, "two"))
    assert {dict(labels)["study"] for _, labels in actual} == {"two"}
    rates = {key for key in expected if key[0] in ("graft_steps_per_second", "graft_trials_per_minute")}
    assert actual.keys() == expected.keys()
    assert {key: actual[key] for key in actual.keys() - rates} == {key: expected[key] for key in actual.keys() - rates}


@given(text=st.text())
def test_a_label_keeps_what_is_in_it(text: str) -> None:
    sample = Sample("graft_steps", {"study": text}, 1.5)
    assert scraped(write_metric("graft_steps", [sample])) == {("graft_steps", (("study", text),)): 1.5}


def test_status_without_a_name_is_for_prometheus(search: Run) -> None:
    status, _, error = search("status")
    assert (status, error) == (2, "error: status needs the name of a study; --format prometheus goes without\n")
    assert search("status", "nope", "--format", "prometheus")[0] == 2
